"""The one place where a request's messages and tools are changed before the template sees them.

Clients send what the OpenAI API allows; templates expect what their authors had in mind, which `needs` has found out.
`normalize` adapts a checked chat (see `check`) to that, or refuses what this template has no place for. What a template
takes as it is stays as it is: unknown fields, the order of everything, and every character of every text.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from tokenline.fields import Path, shown
from tokenline.render.call_ids import CallIds
from tokenline.render.calls import tools_text, with_calls
from tokenline.render.chat_input import ChatInput
from tokenline.render.check import REASONING_FIELDS
from tokenline.render.errors import RenderError
from tokenline.render.needs import ROLES, CallStyle, NoContent, TemplateNeeds
from tokenline.render.provenance import Traced, concat, literal, standing_for, trace
from tokenline.render.tool_schemas import ToolForms
from tokenline.render.traced_json import dump, parse, with_members
from tokenline.render.turns import (
    Turn,
    as_text,
    join_systems,
    mark_text_beside_calls,
    one_call_each,
    results_as_user,
    systems_as_user,
    text_before_calls,
    with_command,
    with_tools,
)


@dataclass(frozen=True, slots=True)
class Normalized:
    """What the template is given."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    sources: list[int]  # for each message the index of the request's message that it comes from
    # texts that this template has no place for, by the mark in the call before which they belong (see `insert_texts`)
    texts: dict[str, str]


def normalize(
    chat: ChatInput,
    needs: TemplateNeeds,
    tool_forms: ToolForms,
    *,
    hidden_systems: Set[int] = frozenset(),
    command: str = "",
) -> Normalized:
    """The template's `messages` and `tools` for a chat that `check_chat` has passed.

    `hidden_systems`: system messages that the template leaves out where they stand; they become the user's words.
    `command`: a text for the template, put behind the last user message.
    Raises RenderError for what this template cannot show.
    """
    ids = CallIds(needs.ids)
    turns = [Turn(_message(message, ("messages", i), needs, ids), i) for i, message in enumerate(chat.messages)]
    tools = [tool_forms.fitting(tool) for tool in chat.tools] if chat.tools else None
    if hidden_systems:
        turns = systems_as_user(turns, hidden_systems)
    if command:
        turns = with_command(turns, command)
    if not needs.systems:
        turns = join_systems(turns)
    if needs.calls is not CallStyle.TEMPLATE and not needs.results:
        turns = results_as_user(turns)
    if needs.text_apart or needs.thought_apart:
        turns = text_before_calls(turns, _no_content(needs), only_with_thought=not needs.text_apart)
    if needs.single_calls:
        turns = one_call_each(turns, _no_content(needs))
    texts: dict[str, str] = {}
    if needs.text_lost is not None:
        turns, texts = mark_text_beside_calls(turns)
    if tools and not needs.tools:
        turns = with_tools(turns, tools_text(tools, needs), system=needs.system)
    return Normalized([turn.message for turn in turns], tools, [turn.source for turn in turns], texts)


def insert_texts(rendered: str, texts: Mapping[str, str], needs: TemplateNeeds) -> str:
    """The rendering with the texts beside calls where the model wrote them: before the words that open the call."""
    if needs.text_lost is None:
        return rendered
    before_answer, before_call = needs.text_lost
    for mark, text in texts.items():
        at = rendered.find(mark)
        if at < 0:
            continue
        head, tail = rendered[:at], rendered[at + len(mark) :]
        if head.endswith(before_call):
            head = concat(
                [
                    head[: len(head) - len(before_call)],
                    literal(before_answer),
                    text,
                    head[len(head) - len(before_call) :],
                ]
            )
        rendered = concat([head, tail])
        rendered = rendered.replace(mark, literal(""))
    return rendered


def _message(message: Mapping[str, Any], path: Path, needs: TemplateNeeds, ids: CallIds) -> dict[str, Any]:
    role = message["role"]
    takes_results = needs.calls is not CallStyle.TEMPLATE  # as the user's words, if there is no other way
    if not isinstance(role, str) or (role not in needs.roles and not (role == "tool" and takes_results)):
        known = ", ".join(f'"{name}"' for name in ROLES if name in needs.roles)
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
    elif not has_calls or needs.calls is not CallStyle.TEMPLATE:
        result["content"] = ""
    if has_calls:
        place = (*path, "tool_calls")
        calls = [_tool_call(call, (*place, i), needs, ids) for i, call in enumerate(result["tool_calls"])]
        if needs.calls is CallStyle.TEMPLATE:
            result["tool_calls"] = calls
            if not result.get("content"):
                result.pop("content", None)
                result |= _no_content(needs)
        else:
            del result["tool_calls"]
            result["content"] = with_calls(result["content"], calls, needs.calls)
    elif result["role"] == "tool" and "tool_call_id" in result:
        result["tool_call_id"] = ids.of_result(result["tool_call_id"])
    reasoning = next((result[field] for field in REASONING_FIELDS if field in result), None)
    if reasoning is not None:
        result = with_members(result, {"thinking": reasoning, **result, "reasoning_content": reasoning})
    return result


def _no_content(needs: TemplateNeeds) -> dict[str, Any]:
    """The content of a message that only calls tools, as a member or as none."""
    if needs.no_content is NoContent.ABSENT:
        return {}
    return {"content": "" if needs.no_content is NoContent.EMPTY else None}


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
    return parts if as_parts else as_text(parts)


def _tool_call(call: Mapping[str, Any], path: Path, needs: TemplateNeeds, ids: CallIds) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments(function.get("arguments"), (*path, "function", "arguments"), needs)
    changed: dict[str, Any] = {**call, "function": with_members(function, {**function, "arguments": arguments})}
    if "type" not in call:
        changed = {"type": literal("function"), **changed}
    return with_members(call, ids.named(changed))


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
