"""The shape of `messages` and `tools`, checked but not changed: the chat template gets them as the client sent them.

Knows OpenAI's message format. Whether a template can render a valid conversation is the renderer's business.
"""

from collections.abc import Mapping
from typing import Any

from tokenline.server.errors import ApiError, invalid, shown

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: list[Any]) -> None:
    """Raise a 400 that names the place of the first fault, e.g. messages[2].content[0].type"""
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Any, at: str) -> None:
    if not isinstance(message, dict):
        raise _type(at, "an object", message)
    role = message.get("role")
    if role is None:
        raise invalid(f"'{at}.role' is missing.", f"{at}.role", code="missing_required_parameter")
    if role == "function":
        raise _unsupported(f"{at}.role", 'the role "function" is deprecated; use "tool"')
    if role not in ROLES:
        raise invalid(f"'{at}.role' must be one of {', '.join(map(_quoted, ROLES))}; got {shown(role)}.", f"{at}.role")
    for name in ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning"):
        if message.get(name) is not None and not isinstance(message[name], str):
            raise _type(f"{at}.{name}", "a string", message[name])
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise _unsupported(f"{at}.{name}", "this model reads text and 'tool_calls' only")
    if message.get("tool_calls") is not None:
        if role != "assistant":
            raise invalid(f"'{at}.tool_calls': only an assistant message can have them.", f"{at}.tool_calls")
        _check_tool_calls(message["tool_calls"], f"{at}.tool_calls")
    _check_content(message, role, f"{at}.content")


def _check_content(message: Mapping[str, Any], role: str, at: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None:
        # An assistant that called tools, refused or only thought has said nothing.
        if role == "assistant" and any(
            message.get(name) for name in ("tool_calls", "refusal", "reasoning_content", "reasoning")
        ):
            return
        raise invalid(f"'{at}' must be a string or an array of text parts; got null.", at)
    if not isinstance(content, list):
        raise _type(at, "a string or an array of text parts", content)
    for index, part in enumerate(content):
        _check_part(part, role, f"{at}[{index}]")


def _check_part(part: Any, role: str, at: str) -> None:
    if not isinstance(part, dict):
        raise _type(at, 'an object like {"type": "text", "text": "…"}', part)
    kind = part.get("type")
    accepted = ("text", "refusal") if role == "assistant" else ("text",)
    if kind not in accepted:
        if isinstance(kind, str):
            raise _unsupported(
                f"{at}.type", f"parts of type {shown(kind)} are not supported, this model reads text only"
            )
        raise _type(f"{at}.type", '"text"', kind)
    if not isinstance(part.get(kind), str):
        raise _type(f"{at}.{kind}", "a string", part.get(kind))


def _check_tool_calls(calls: Any, at: str) -> None:
    if not isinstance(calls, list):
        raise _type(at, "an array", calls)
    for index, call in enumerate(calls):
        here = f"{at}[{index}]"
        if not isinstance(call, dict):
            raise _type(here, "an object", call)
        if call.get("id") is not None and not isinstance(call["id"], str):
            raise _type(f"{here}.id", "a string", call["id"])
        if call.get("type", "function") != "function":
            raise _unsupported(f"{here}.type", 'only calls of type "function" are supported')
        function = call.get("function")
        if not isinstance(function, dict):
            raise _type(f"{here}.function", "an object", function)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _type(f"{here}.function.name", "a non-empty string", function.get("name"))
        if not isinstance(function.get("arguments", ""), str):
            raise _type(f"{here}.function.arguments", "a string of JSON", function["arguments"])


def check_tools(tools: list[Any]) -> None:
    """Raise a 400 for the first tool that is not a function with a name."""
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise _type(at, "an object", tool)
        if tool.get("type") != "function":
            raise invalid(f"'{at}.type' must be \"function\"; got {shown(tool.get('type'))}.", f"{at}.type")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _type(f"{at}.function", "an object", function)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _type(f"{at}.function.name", "a non-empty string", function.get("name"))
        if not isinstance(function.get("description") or "", str):
            raise _type(f"{at}.function.description", "a string", function["description"])
        if not isinstance(function.get("parameters") or {}, dict):
            raise _type(f"{at}.function.parameters", "an object (a JSON schema)", function["parameters"])
        if function.get("strict") is not None and not isinstance(function["strict"], bool):
            raise _type(f"{at}.function.strict", "true or false", function["strict"])


def _type(param: str, accepted: str, given: Any) -> ApiError:
    return invalid(f"'{param}' must be {accepted}; got {shown(given)}.", param, code="invalid_type")


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"'{param}': {reason}.", param, code="unsupported_value")


def _quoted(text: str) -> str:
    return f'"{text}"'
