"""The one place where a request's messages are changed before the template sees them.

Clients write what the OpenAI API allows; templates expect what their authors tried. `TemplateNeeds` says what one
template expects, found out once by rendering small chats; `normalize` adapts a request to that or refuses it, naming
the field. What is passed on unchanged: unknown fields, the order of everything, and every character of every text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.provenance import join
from tokenline.render.template import ChatTemplate
from tokenline.render.traced_json import dump, parse, with_members

_ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
_NAME, _KEY, _VALUE = "probe_function", "probe_key", "probe value"


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """How one template wants its messages."""

    roles: frozenset[str]  # roles it may be given
    developer: bool  # it has a branch for the role "developer"; otherwise that is given as "system"
    parts: frozenset[str]  # roles whose content may be a list of parts; for others they are joined
    tool_calls: bool  # it shows the tool calls of a message
    arguments_text: bool  # it copies tool-call arguments that are JSON text; otherwise it wants an object
    empty_content: bool  # an assistant message without content needs content ""


def find_needs(template: ChatTemplate, named_tokens: Mapping[str, str]) -> TemplateNeeds:
    """Try the template on small chats."""

    def attempt(messages: list[dict[str, Any]], **more: Any) -> str | None:
        variables = {**named_tokens, "messages": messages, "tools": None, "documents": None, **more}
        try:
            return template.render({"add_generation_prompt": False, **variables})
        except RenderError:
            return None

    user = {"role": "user", "content": "probe question"}

    def call(arguments: Any, **more: Any) -> list[dict[str, Any]]:
        function = {"name": _NAME, "arguments": arguments}
        tool_call = {"id": "probe12id", "type": "function", "function": function}
        return [
            user,
            {"role": "assistant", **more, "tool_calls": [tool_call]},
            {"role": "tool", "tool_call_id": "probe12id", "name": _NAME, "content": "probe result"},
        ]

    text = f'{{ "{_KEY}":"{_VALUE}" }}'  # with spaces as no serialiser would write them
    tried: dict[tuple[bool, bool], str | None] = {}
    for as_text in (False, True):
        for with_content in (False, True):
            more = {"content": ""} if with_content else {}
            arguments = text if as_text else {_KEY: _VALUE}
            tried[as_text, with_content] = attempt(call(arguments, **more))
    copies = any(out is not None and text in out for out in (tried[True, False], tried[True, True]))
    objects = any(_shows_object(out) for out in (tried[False, False], tried[False, True]))
    arguments_text = copies or not objects
    absent = tried[arguments_text, False]
    present = tried[arguments_text, True]
    shown: Any = call(text if arguments_text else {_KEY: _VALUE}, **({} if absent is not None else {"content": ""}))
    chats: dict[str, list[dict[str, Any]]] = {
        "system": [{"role": "system"}, user],
        "developer": [{"role": "developer"}, user],
        "user": [{"role": "user"}],
        "assistant": [user, {"role": "assistant"}, user],
        "tool": shown,
    }

    def reads_parts(role: str) -> bool:
        content = [{"type": "text", "text": "first probe"}, {"type": "text", "text": "second probe"}]
        chat = [{**message, "content": content} if message["role"] == role else message for message in chats[role]]
        out = attempt(chat)
        # what shows the list itself shows the parts' type
        return out is not None and all(part["text"] in out for part in content) and not re.search("['\"]type['\"]", out)

    return TemplateNeeds(
        roles=frozenset(_ROLES) | template.roles(),
        developer="developer" in template.roles(),
        parts=frozenset(role for role in chats if reads_parts(role)),
        tool_calls=any(out is not None and _NAME in out for out in tried.values()),
        arguments_text=arguments_text,
        empty_content=absent is None or (present is not None and _NAME in present and _NAME not in absent),
    )


def _shows_object(rendered: str | None) -> bool:
    return rendered is not None and _KEY in rendered and f"'{_KEY}'" not in rendered


def normalize(chat: ChatInput, needs: TemplateNeeds) -> dict[str, Any]:
    """The template's variables `messages` and `tools`. Raises RenderError naming the field at fault."""
    if not isinstance(chat.messages, Sequence) or isinstance(chat.messages, str):
        raise RenderError("messages must be an array", "messages")
    if not chat.messages:
        raise RenderError("messages must hold at least one message", "messages")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise RenderError("continue_final_message needs add_generation_prompt to be false", "continue_final_message")
    if not isinstance(chat.template_kwargs, Mapping):
        raise RenderError("chat_template_kwargs must be an object", "chat_template_kwargs")
    for name in chat.template_kwargs:
        if name in _RESERVED:
            raise RenderError(f"chat_template_kwargs may not set {name!r}", f"chat_template_kwargs.{name}")
    messages = [_message(message, f"messages[{i}]", needs) for i, message in enumerate(chat.messages)]
    return {"messages": messages, "tools": _tools(chat.tools)}


def _message(message: Any, place: str, needs: TemplateNeeds) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RenderError(f"{place} must be an object", place)
    role = message.get("role")
    if not isinstance(role, str) or role not in needs.roles:
        known = ", ".join(_ROLES)
        raise RenderError(f"{place}.role is {json.dumps(role, default=str)}; supported are: {known}", f"{place}.role")
    result = with_members(message, {key: value for key, value in message.items() if value is not None})
    if role == "developer" and not needs.developer:
        result["role"] = "system"
    if not result.get("tool_calls"):
        result.pop("tool_calls", None)
    has_calls = "tool_calls" in result
    if "content" in result:
        result["content"] = _content(result["content"], f"{place}.content", result["role"] in needs.parts)
    elif role != "assistant":
        raise RenderError(f"{place}.content is missing", f"{place}.content")
    elif not has_calls and not any(message.get(field) for field in _REASONING_FIELDS):
        result["content"] = ""  # an answer that was cut off before its first word
    elif needs.empty_content or not has_calls:
        result["content"] = ""
    if has_calls:
        if not needs.tool_calls:
            raise RenderError(
                f"{place}.tool_calls: this model's chat template has no place for tool calls", f"{place}.tool_calls"
            )
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{place}.tool_calls", needs)
    reasoning = next((result[field] for field in _REASONING_FIELDS if field in result), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise RenderError(f"{place}.reasoning_content must be a string", f"{place}.reasoning_content")
        result = with_members(result, {"thinking": reasoning, **result, "reasoning_content": reasoning})
    return result


def _content(content: Any, place: str, as_parts: bool) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RenderError(f"{place} must be a string or an array of text parts", place)
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        elif kind in ("text", "input_text", "output_text", "refusal"):
            text = part.get("refusal" if kind == "refusal" else "text")
            if not isinstance(text, str):
                raise RenderError(f"{place}[{i}].text must be a string", f"{place}[{i}].text")
            part = with_members(part, {**part, "type": "text", "text": text})
        else:
            what = json.dumps(kind, default=str) if isinstance(part, Mapping) else type(part).__name__
            raise RenderError(f"{place}[{i}] is {what}; only text parts are supported", f"{place}[{i}]")
        parts.append(part)
    return parts if as_parts else join("\n", [part["text"] for part in parts])


def _tool_calls(calls: Any, place: str, needs: TemplateNeeds) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RenderError(f"{place} must be an array", place)
    result = []
    for i, call in enumerate(calls):
        here = f"{place}[{i}].function"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise RenderError(f"{here} must be an object", here)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise RenderError(f"{here}.name must be a string", f"{here}.name")
        arguments = _arguments(function.get("arguments"), f"{here}.arguments", needs)
        function = with_members(function, {**function, "arguments": arguments})
        result.append(with_members(call, {**call, "function": function}))
    return result


def _arguments(arguments: Any, place: str, needs: TemplateNeeds) -> Any:
    """Tool-call arguments in the form that the template wants; the client's own text where that may be kept."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"  # a call without arguments
    if isinstance(arguments, str):
        try:
            value = parse(arguments)
        except ValueError as error:
            raise RenderError(f"{place} is not valid JSON: {error}", place) from error
    else:
        value = arguments
    if not isinstance(value, Mapping):
        raise RenderError(f"{place} must be a JSON object", place)
    if not needs.arguments_text:
        return value
    return arguments if isinstance(arguments, str) else dump(value)


def _tools(tools: Any) -> list[Any] | None:
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RenderError("tools must be an array", "tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RenderError(f"tools[{i}] must be an object", f"tools[{i}]")
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RenderError(f"tools[{i}].function.name must be a string", f"tools[{i}].function.name")
    return list(tools) or None
