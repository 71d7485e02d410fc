"""The seam for tool-call and reasoning parsers, and for constrained decoding: one place decides what a chat request
needs of layer 4, and refuses what this server cannot do yet.
"""

from typing import Any

from tokenline.parse.delta import OutputParser
from tokenline.render.line import Line
from tokenline.server.errors import ApiError, invalid, shown
from tokenline.server.wire import ChatBody


def make_output_parser(request: ChatBody, line: Line) -> OutputParser | None:
    """A parser for one answer to this line; None where all of its text is content."""
    return None


def has_tool_parser() -> bool:
    """Whether the served model's tool calls can be understood."""
    return False


def check_output_options(request: ChatBody) -> None:
    """Raise a 400 for a `tool_choice` or `response_format` that is wrong or cannot be honoured."""
    _check_response_format(request.response_format)
    choice = request.tool_choice
    if choice is None:
        choice = "auto" if request.tools else "none"
    elif choice != "none" and not request.tools:
        raise invalid("'tool_choice' needs 'tools' to choose from.", "tool_choice")
    if choice == "none":
        return
    if choice == "required" or _names_function(choice):
        raise _unsupported("tool_choice", f"{_shown_choice(choice)} needs constrained decoding")
    if choice != "auto":
        raise invalid(
            '\'tool_choice\' must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}; '
            f"got {shown(choice)}.",
            "tool_choice",
        )
    if not has_tool_parser():
        raise _unsupported(
            "tool_choice", '"auto" (the default with tools) needs a tool-call parser for this model; "none" works'
        )


def _check_response_format(chosen: dict[str, Any] | None) -> None:
    if chosen is None or chosen == {"type": "text"}:
        return
    kind = chosen.get("type")
    if kind in ("json_object", "json_schema"):
        raise _unsupported("response_format", f"{shown(kind)} needs constrained decoding")
    raise invalid(
        f'\'response_format.type\' must be "text", "json_object" or "json_schema"; got {shown(kind)}.',
        "response_format.type",
    )


def _names_function(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return False
    function = choice.get("function")
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _shown_choice(choice: Any) -> str:
    return '"required"' if choice == "required" else "a named function"


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"'{param}': {reason}, which is not yet supported.", param, code="unsupported_value")
