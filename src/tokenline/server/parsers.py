"""The seam to layer 4's parsers: one place decides which parser an answer gets, and refuses what no parser can do.

Which parsers fit the model is found out once, from its chat template, unless the settings name them.
"""

from dataclasses import dataclass
from typing import Any

from tokenline.parse.delta import OutputParser
from tokenline.parse.one_call import OneCall
from tokenline.parse.registry import detect, make_parser, reasoning_parsers, tool_parsers
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.render.renderer import Renderer
from tokenline.server.errors import ApiError, invalid, shown
from tokenline.server.settings import AUTO, NONE, ServerSettings
from tokenline.server.wire import ChatBody


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """The parsers of the served model by name; None where its answers need none."""

    tool_parser: str | None
    reasoning_parser: str | None
    control_tokens: frozenset[str] = frozenset()  # texts of the vocabulary's control tokens

    @classmethod
    def of(cls, renderer: Renderer, settings: ServerSettings) -> "ParserChoice":
        """From the settings, where they name one, else from the template. Raises ValueError for an unknown name."""
        try:
            tools, reasoning = detect(renderer.chats.template(tools=True).source)
        except RenderError:  # no template: then there are no chats either
            tools, reasoning = None, None
        return cls(
            _chosen("tool_call_parser", settings.tool_call_parser, tools, tool_parsers()),
            _chosen("reasoning_parser", settings.reasoning_parser, reasoning, reasoning_parsers()),
            frozenset(renderer.tokenizer.special_tokens),
        )


def _chosen(setting: str, name: str, found: str | None, known: list[str]) -> str | None:
    if name == AUTO:
        return found
    if name == NONE:
        return None
    if name not in known:
        raise ValueError(f'{setting} must be "auto", "none" or one of {", ".join(known)}; got {name!r}')
    return name


def make_output_parser(choice: ParserChoice, request: ChatBody, line: Line) -> OutputParser | None:
    """A parser for one answer to this line; None where all of its text is content."""
    tool_parser, forced = None, None
    if asks_for_tools(request):
        tool_parser = choice.tool_parser
        forced = "" if request.tool_choice == "required" else named_function(request.tool_choice)
    if tool_parser is None and choice.reasoning_parser is None and forced is None:
        return None
    parser = make_parser(
        tool_parser,
        choice.reasoning_parser,
        tools=request.tools,
        prompt_end=line.text,
        control_tokens=choice.control_tokens,
        forced=forced,
    )
    return OneCall(parser) if request.parallel_tool_calls is False else parser


def asks_for_tools(request: ChatBody) -> bool:
    """Whether the answer may call tools."""
    return bool(request.tools) and request.tool_choice != "none"


def check_output_options(choice: ParserChoice, request: ChatBody) -> None:
    """Raise a 400 for a `tool_choice` that is wrong or cannot be honoured."""
    wanted = request.tool_choice
    if wanted not in (None, "none", "auto", "required") and named_function(wanted) is None:
        raise invalid(
            '\'tool_choice\' must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}; '
            f"got {shown(wanted)}.",
            "tool_choice",
        )
    if wanted not in (None, "none") and not request.tools:
        raise invalid("'tool_choice' needs 'tools' to choose from.", "tool_choice")
    if not asks_for_tools(request):
        return
    if wanted in (None, "auto") and choice.tool_parser is None:
        raise _unsupported(
            "tool_choice",
            '"auto" (the default with tools) needs a tool-call parser, and none is known for this model\'s chat '
            'template; set one when the server starts, or send "none"',
        )


def named_function(choice: Any) -> str | None:
    """The function that a `tool_choice` names."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"'{param}': {reason}.", param, code="unsupported_value")
