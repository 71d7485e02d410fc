"""The one place where a request's messages are changed before the template sees them.

Clients send what the OpenAI API allows; templates expect what their authors had in mind. `TemplateNeeds` says what one
template expects, found out once by rendering small chats; `normalize` adapts a checked chat (see `check`) to that, or
refuses what this template has no place for. What is passed on unchanged: unknown fields, the order of everything, and
every character of every text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tokenline.fields import Path, shown
from tokenline.render.chat_input import ChatInput
from tokenline.render.check import REASONING_FIELDS
from tokenline.render.errors import RenderError
from tokenline.render.provenance import Traced, concat, join, literal, standing_for, trace
from tokenline.render.template import ChatTemplate
from tokenline.render.traced_json import dump, parse, with_members

_ROLES = ("system", "developer", "user", "assistant", "tool")


class CallStyle(StrEnum):
    """How an assistant message's tool calls get into the text."""

    TEMPLATE = "template"  # the template writes them
    TAGGED = "tagged"  # it has no place for them, but tells the model to answer <tool_call>{...}</tool_call>
    LISTED = "listed"  # ... or <|tool_call|>[{...}, ...] (Granite 3)
    NONE = "none"  # it knows no tool calls


class NoContent(StrEnum):
    """What an assistant message has for content when it only calls tools."""

    ABSENT = "absent"
    EMPTY = "empty"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """How one template wants its messages."""

    roles: frozenset[str]  # roles that it accepts
    developer: bool  # it has a branch for the role "developer"; if not, that role becomes "system"
    parts: frozenset[str]  # roles whose content may be a list of parts; "calls" is an assistant with tool calls
    calls: CallStyle
    arguments_text: bool  # it copies tool-call arguments that are JSON text; otherwise it wants an object
    no_content: NoContent


def find_needs(template: ChatTemplate, named_tokens: Mapping[str, str]) -> TemplateNeeds:
    """Try the template on small chats."""
    return _Probe(template, named_tokens).needs()


class _Probe:
    FUNCTION, KEY, VALUE = "probe_function", "probe_key", "probe value"
    TEXT = f'{{ "{KEY}":"{VALUE}" }}'  # with spaces as no serialiser would write them
    TOOL: ClassVar = {"type": "function", "function": {"name": "another", "description": "d", "parameters": {}}}
    USER: ClassVar = {"role": "user", "content": "probe question"}

    def __init__(self, template: ChatTemplate, named_tokens: Mapping[str, str]):
        self.template = template
        self.named_tokens = named_tokens
        self.found = {
            (as_text, content): self.attempt(self.call(self.TEXT if as_text else {self.KEY: self.VALUE}, content))
            for as_text in (False, True)
            for content in NoContent
        }

    def attempt(self, messages: list[dict[str, Any]]) -> str | None:
        """What the template makes of a chat, without tools or, if it insists on them, with; None if it refuses."""
        for tools in (None, [self.TOOL]):
            variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False}
            try:
                return self.template.render({**self.named_tokens, **variables})
            except RenderError:
                continue
        return None

    def call(self, arguments: Any, content: NoContent) -> list[dict[str, Any]]:
        """A chat with one tool call and its result."""
        message: dict[str, Any] = {"role": "assistant"}
        if content is not NoContent.ABSENT:
            message["content"] = "" if content is NoContent.EMPTY else None
        function = {"name": self.FUNCTION, "arguments": arguments}
        message["tool_calls"] = [{"id": "probe12id", "type": "function", "function": function}]
        result = {"role": "tool", "tool_call_id": "probe12id", "name": self.FUNCTION, "content": "probe result"}
        return [self.USER, message, result]

    def needs(self) -> TemplateNeeds:
        arguments_text = self.wants_text()
        no_content = self.no_content(arguments_text)
        return TemplateNeeds(
            roles=self.roles(arguments_text, no_content),
            developer="developer" in self.template.roles(),
            parts=frozenset(role for role in (*_ROLES, "calls") if self.reads_parts(role, arguments_text, no_content)),
            calls=self.calls(),
            arguments_text=arguments_text,
            no_content=no_content,
        )

    def wants_text(self) -> bool:
        outputs = {as_text: [self.found[as_text, content] or "" for content in NoContent] for as_text in (False, True)}
        if any(self.TEXT in output for output in outputs[True]):
            return True
        objects = any(self.KEY in output and f"'{self.KEY}'" not in output for output in outputs[False])
        return not objects and any(self.FUNCTION in output for output in outputs[True])

    def no_content(self, arguments_text: bool) -> NoContent:
        """As transformers has it, which drops what is null, unless only another form shows the call."""
        for content in NoContent:
            if self.FUNCTION in (self.found[arguments_text, content] or ""):
                return content
        absent = self.found[arguments_text, NoContent.ABSENT]
        return NoContent.EMPTY if absent is None or "None" in absent else NoContent.ABSENT

    def calls(self) -> CallStyle:
        outputs = [output for output in self.found.values() if output is not None]
        if not outputs or any(self.FUNCTION in output for output in outputs):
            return CallStyle.TEMPLATE  # one that refused all of them will refuse a request's, with its own message
        if "<|tool_call|>" in self.template.source:
            return CallStyle.LISTED
        return CallStyle.TAGGED if "<tool_call>" in self.template.source else CallStyle.NONE

    def chat_with(self, role: str, content: Any, arguments_text: bool, no_content: NoContent) -> list[dict[str, Any]]:
        if role in ("tool", "calls"):
            chat = self.call(self.TEXT if arguments_text else {self.KEY: self.VALUE}, no_content)
            at = 2 if role == "tool" else 1
            return [*chat[:at], {**chat[at], "content": content}, *chat[at + 1 :]]
        message = {"role": role, "content": content}
        if role == "user":
            return [message]
        return [self.USER, message, self.USER] if role == "assistant" else [message, self.USER]

    def roles(self, arguments_text: bool, no_content: NoContent) -> frozenset[str]:
        """All roles that may be used: without "tool" where the template silently leaves out a tool's results."""
        output = self.attempt(self.chat_with("tool", "probe outcome", arguments_text, no_content))
        silent = {"tool"} if output is not None and "probe outcome" not in output else set()
        return (frozenset(_ROLES) | self.template.roles()) - silent

    def reads_parts(self, role: str, arguments_text: bool, no_content: NoContent) -> bool:
        parts = [{"type": "text", "text": "first probe"}, {"type": "text", "text": "second probe"}]
        output = self.attempt(self.chat_with(role, parts, arguments_text, no_content))
        if output is None or not all(part["text"] in output for part in parts):
            return False
        return re.search("['\"]type['\"]", output.replace(self.TEXT, "")) is None  # it shows the list as it stands


def normalize(chat: ChatInput, needs: TemplateNeeds) -> dict[str, Any]:
    """The template's variables `messages` and `tools` for a chat that `check_chat` has passed.

    Raises RenderError for what this template cannot show.
    """
    messages = [_message(message, ("messages", i), needs) for i, message in enumerate(chat.messages)]
    return {"messages": messages, "tools": list(chat.tools) if chat.tools else None}


def _message(message: Mapping[str, Any], path: Path, needs: TemplateNeeds) -> dict[str, Any]:
    role = message["role"]
    if not isinstance(role, str) or role not in needs.roles:
        known = ", ".join(f'"{name}"' for name in _ROLES if name in needs.roles)
        raise RenderError((*path, "role"), f"must be one of {known}; got {shown(role)}.")
    result = with_members(message, {key: value for key, value in message.items() if value is not None})
    if role == "developer" and not needs.developer:
        result["role"] = trace("system", standing_for(role, 6)) if isinstance(role, Traced) else "system"
    if "content" not in result and "refusal" in result:
        result["content"] = result["refusal"]
    if not result.get("tool_calls"):
        result.pop("tool_calls", None)
    has_calls = "tool_calls" in result
    if "content" in result:
        kind = "calls" if has_calls else result["role"]
        result["content"] = _content(result["content"], kind in needs.parts)
    elif role != "assistant":
        raise RenderError((*path, "content"), "is missing.", code="missing")
    elif not has_calls or needs.no_content is NoContent.EMPTY or needs.calls is not CallStyle.TEMPLATE:
        result["content"] = ""
    elif needs.no_content is NoContent.NULL:
        result["content"] = None
    if has_calls:
        place = (*path, "tool_calls")
        if needs.calls is CallStyle.NONE:
            raise RenderError(place, "is not supported by this model's chat template.", code="unsupported_value")
        calls = [_tool_call(call, (*place, i), needs) for i, call in enumerate(result["tool_calls"])]
        if needs.calls is CallStyle.TEMPLATE:
            result["tool_calls"] = calls
        else:
            del result["tool_calls"]
            result["content"] = _with_calls(result["content"], calls, needs.calls)
    reasoning = next((result[field] for field in REASONING_FIELDS if field in result), None)
    if reasoning is not None:
        result = with_members(result, {"thinking": reasoning, **result, "reasoning_content": reasoning})
    return result


def _content(content: Any, as_parts: bool) -> Any:
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        else:
            text = part["refusal" if part["type"] == "refusal" else "text"]
            parts.append(with_members(part, {**part, "type": "text", "text": text}))
    return parts if as_parts else join("\n", [part["text"] for part in parts])


def _tool_call(call: Mapping[str, Any], path: Path, needs: TemplateNeeds) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments(function.get("arguments"), (*path, "function", "arguments"), needs)
    return with_members(call, {**call, "function": with_members(function, {**function, "arguments": arguments})})


def _with_calls(content: Any, calls: list[dict[str, Any]], style: CallStyle) -> Any:
    """The content with the calls behind it, in the words that the template asks the model to use."""
    functions = [call["function"] for call in calls]
    names = [{literal(key): function[key] for key in ("name", "arguments")} for function in functions]
    if style is CallStyle.LISTED:
        text = concat([literal("<|tool_call|>"), dump(names)])
    else:
        texts = [concat([literal("<tool_call>\n"), dump(call), literal("\n</tool_call>")]) for call in names]
        text = join("\n", texts)
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return concat([content, literal("\n"), text]) if content and style is CallStyle.TAGGED else concat([content, text])


def _arguments(arguments: Any, path: Path, needs: TemplateNeeds) -> Any:
    """Tool-call arguments in the form that the template wants; the client's own text where that may be kept."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"  # a call without arguments
    if isinstance(arguments, str):
        try:
            value = parse(arguments)
        except ValueError as error:
            raise RenderError(path, f"is not valid JSON: {error}.") from error
    else:
        value = arguments
    if not isinstance(value, Mapping):
        raise RenderError(path, f"must be a JSON object; got {shown(arguments)}.", code="invalid_type")
    if not needs.arguments_text or needs.calls is not CallStyle.TEMPLATE:
        return value
    return arguments if isinstance(arguments, str) else dump(value)
