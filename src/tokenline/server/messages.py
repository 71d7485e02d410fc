"""Fields of messages and tools that the API knows and no model here can honour, and the types of the harmless ones.

What a chat is made of (roles, content, tool calls) the renderer checks, since it depends on the template. Nothing
is changed: the template gets messages and tools as the client sent them.
"""

from collections.abc import Mapping
from typing import Any

from tokenline.server.errors import ApiError, invalid, shown


def check_messages(messages: list[Any]) -> None:
    """Raise a 400 that names the place of the first fault, e.g. messages[2].audio"""
    for index, message in enumerate(messages):
        if isinstance(message, dict):
            _check_message(message, f"messages[{index}]")


def _check_message(message: Mapping[str, Any], at: str) -> None:
    role = message.get("role")
    if role == "function":
        raise _unsupported(f"{at}.role", 'the role "function" is deprecated; use "tool"')
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise _unsupported(f"{at}.{name}", "this model reads text and 'tool_calls' only")
    for name in ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning"):
        if message.get(name) is not None and not isinstance(message[name], str):
            raise _type(f"{at}.{name}", "a string", message[name])
    calls = message.get("tool_calls")
    if calls and role != "assistant":
        raise invalid(f"'{at}.tool_calls': only an assistant message can have them.", f"{at}.tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            here = f"{at}.tool_calls[{index}]"
            if call.get("type", "function") != "function":
                raise _unsupported(f"{here}.type", 'only calls of type "function" are supported')
            if call.get("id") is not None and not isinstance(call["id"], str):
                raise _type(f"{here}.id", "a string", call["id"])


def check_tools(tools: list[Any]) -> None:
    """Raise a 400 for the first tool that is not a function as the API describes it."""
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise _type(at, "an object", tool)
        if tool.get("type", "function") != "function":
            raise _unsupported(f"{at}.type", f'only "function" is supported, not {shown(tool["type"])}')
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _type(f"{at}.function", "an object", function)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _type(f"{at}.function.name", "a non-empty string", function.get("name"))
        if not isinstance(function.get("description"), str | None):
            raise _type(f"{at}.function.description", "a string", function["description"])
        if not isinstance(function.get("parameters"), dict | None):
            raise _type(f"{at}.function.parameters", "an object (a JSON schema)", function["parameters"])
        if not isinstance(function.get("strict"), bool | None):
            raise _type(f"{at}.function.strict", "true or false", function["strict"])


def _type(param: str, accepted: str, given: Any) -> ApiError:
    return invalid(f"'{param}' must be {accepted}; got {shown(given)}.", param, code="invalid_type")


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"'{param}': {reason}.", param, code="unsupported_value")
