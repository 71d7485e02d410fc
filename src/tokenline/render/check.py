"""What a chat must be like whatever the model: every field that decides its line has the right type and makes sense.

Each check of messages and tools that needs no template is here and nowhere else, so that one fault has one wording.
What depends on the template (which roles it takes, whether it has a place for tool calls) is `normalize`'s to check.
Nothing is changed, and unknown fields are not looked at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenline.fields import Path, shown
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")  # types of content parts that are text

_TEXT_FIELDS = frozenset({"name", "tool_call_id", "refusal", *REASONING_FIELDS})
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


def check_chat(chat: ChatInput) -> None:
    """Raise RenderError at the first fault, with its place, e.g. ("messages", 2, "tool_calls", 0, "id")."""
    if chat.messages is None:
        raise RenderError(("messages",), "is missing.", code="missing")
    if not _is_array(chat.messages) or not chat.messages:
        raise _type(("messages",), "a non-empty array of messages", chat.messages)
    for index, message in enumerate(chat.messages):
        _check_message(message, ("messages", index))
    if chat.tools is not None:
        check_tools(chat.tools)
    if not isinstance(chat.template_kwargs, Mapping):
        raise _type(("chat_template_kwargs",), "an object", chat.template_kwargs)
    for name in chat.template_kwargs:
        if name in _RESERVED:
            raise RenderError(("chat_template_kwargs", name), "is not allowed: ", (name,), " is a field of its own.")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise RenderError(
            ("continue_final_message",),
            "and ",
            ("add_generation_prompt",),
            " cannot both be true: the answer either continues the last message or begins a new one.",
        )
    if chat.continue_final_message and chat.messages[-1].get("tool_calls"):
        raise RenderError(
            ("continue_final_message",),
            "is not possible: ",
            ("messages", len(chat.messages) - 1, "tool_calls"),
            " end the last message.",
        )


def check_tools(tools: Any) -> None:
    """Raise RenderError for the first tool that is not a function as the API describes it."""
    if not _is_array(tools):
        raise _type(("tools",), "an array of tools", tools)
    for index, tool in enumerate(tools):
        path: Path = ("tools", index)
        if not isinstance(tool, Mapping):
            raise _type(path, "an object", tool)
        _check_function_type(tool, path)
        function = _function(tool, path)
        if not isinstance(function.get("description"), str | None):
            raise _type((*path, "function", "description"), "a string", function["description"])
        if not isinstance(function.get("parameters"), Mapping | None):
            raise _type((*path, "function", "parameters"), "an object (a JSON schema)", function["parameters"])
        if not isinstance(function.get("strict"), bool | None):
            raise _type((*path, "function", "strict"), "true or false", function["strict"])


def check_ids(ids: Sequence[Any], vocab_size: int, path: Path) -> None:
    """Raise RenderError for the first of `ids`, an array that stands at `path`, that is no token of the model."""
    for index, id in enumerate(ids):
        is_integer = type(id) is int  # `true` is none
        if not is_integer or not 0 <= id < vocab_size:
            raise RenderError(
                (*path, index),
                f"must be a token id, an integer from 0 to {vocab_size - 1}; got {shown(id)}.",
                code="invalid_value" if is_integer else "invalid_type",
            )


def _check_message(message: Any, path: Path) -> None:
    if not isinstance(message, Mapping):
        raise _type(path, "an object", message)
    if "role" not in message:
        raise RenderError((*path, "role"), "is missing.", code="missing")
    for name, value in message.items():
        if value is None:
            continue
        if name == "content":
            if not isinstance(value, str):
                _check_parts(value, (*path, "content"))
        elif name in _TEXT_FIELDS:
            if not isinstance(value, str):
                raise _type((*path, name), "a string", value)
        elif name == "role":
            if value == "function":
                raise _unsupported((*path, "role"), 'must not be "function", which is deprecated; use "tool".')
        elif name == "audio":
            raise _unsupported((*path, "audio"), "is not supported: this model reads text only.")
        elif name == "function_call":
            raise _unsupported((*path, "function_call"), "is not supported; use ", (*path, "tool_calls"), ".")
        elif name == "tool_calls" and value:
            if message["role"] != "assistant":
                raise RenderError((*path, "tool_calls"), "is only for assistant messages.")
            _check_calls(value, (*path, "tool_calls"))


def _check_parts(content: Any, path: Path) -> None:
    if not _is_array(content):
        raise _type(path, "a string or an array of text parts", content)
    for index, part in enumerate(content):
        here = (*path, index)
        if isinstance(part, str):
            continue
        if not isinstance(part, Mapping):
            raise _type(here, "an object", part)
        kind = part.get("type")
        if kind not in TEXT_PARTS:
            raise _unsupported(here, f"must be a text part; got one of type {shown(kind)}.")
        name = "refusal" if kind == "refusal" else "text"
        if not isinstance(part.get(name), str):
            raise _type((*here, name), "a string", part.get(name))


def _check_calls(calls: Any, path: Path) -> None:
    if not _is_array(calls):
        raise _type(path, "an array of tool calls", calls)
    for index, call in enumerate(calls):
        here = (*path, index)
        if not isinstance(call, Mapping):
            raise _type(here, "an object", call)
        _check_function_type(call, here)
        if not isinstance(call.get("id"), str | None):
            raise _type((*here, "id"), "a string", call["id"])
        _function(call, here)


def _check_function_type(value: Mapping[str, Any], path: Path) -> None:
    """Of a tool or a tool call."""
    if value.get("type", "function") != "function":
        raise _unsupported((*path, "type"), f'must be "function"; got {shown(value["type"])}.')


def _function(value: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The function of a tool or a tool call: an object with a name."""
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise _type((*path, "function"), "an object", function)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise _type((*path, "function", "name"), "a non-empty string", function.get("name"))
    return function


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _type(path: Path, accepted: str, given: Any) -> RenderError:
    return RenderError(path, f"must be {accepted}; got {shown(given)}.", code="invalid_type")


def _unsupported(path: Path, *parts: str | Path) -> RenderError:
    return RenderError(path, *parts, code="unsupported_value")
