"""Which parsers the served model's answers need, and the parser of one answer.

Found out once, from the chat template, unless the settings name them.
"""

from dataclasses import dataclass

from tokenline.fields import FieldError
from tokenline.grammar.spec import Channels, Reasoning
from tokenline.parse.delta import OutputParser
from tokenline.parse.parser import OneCall
from tokenline.parse.registry import (
    FINAL_CHANNEL,
    detect,
    make_parser,
    reasoning_before,
    reasoning_parsers,
    tool_markers,
    tool_parsers,
    uses_harmony,
)
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.render.renderer import Renderer
from tokenline.service.request import ChatRequest, NamedTool

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """The parsers of the served model by name; None where its answers need none."""

    tool_parser: str | None
    reasoning_parser: str | None
    control_tokens: frozenset[str] = frozenset()  # texts of the vocabulary's control tokens

    @classmethod
    def of(cls, renderer: Renderer, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO) -> "ParserChoice":
        """By name, or "auto": from the template, or "none". Raises ValueError for an unknown name."""
        try:
            tools, reasoning = detect(renderer.chats.template(tools=True).source)
        except RenderError:  # no template: then there are no chats either
            tools, reasoning = None, None
        return cls(
            _chosen("tool_call_parser", tool_call_parser, tools, tool_parsers()),
            _chosen("reasoning_parser", reasoning_parser, reasoning, reasoning_parsers()),
            frozenset(renderer.tokenizer.special_tokens),
        )

    def check(self, request: ChatRequest) -> None:
        """Raise FieldError for a `tool_choice` that cannot be honoured."""
        wanted = request.tool_choice
        if wanted not in (None, "none") and not request.chat.tools:
            raise FieldError(("tool_choice",), "needs ", ("tools",), " to choose from.")
        if request.may_call_tools and not request.must_call_tools and self.tool_parser is None:
            raise FieldError(
                ("tool_choice",),
                '"auto" (the default with tools) needs a tool-call parser, and none is known for this model\'s chat '
                "template. Start the server with --tool-call-parser and the name of the format that the model writes "
                f"({', '.join(tool_parsers())}), or with --chat-template and a template that shows tools and says how "
                'to call them. "none", "required" or a named function need no parser.',
                code="unsupported_value",
            )

    def parser_of(self, request: ChatRequest, line: Line) -> OutputParser | None:
        """A parser for one answer to this line; None where all of its text is content."""
        tool_parser, forced = None, None
        if request.may_call_tools:
            tool_parser = self.tool_parser
            if isinstance(request.tool_choice, NamedTool):
                forced = request.tool_choice.name
            elif request.must_call_tools:
                forced = ""
        if tool_parser is None and self.reasoning_parser is None and forced is None:
            return None
        parser = make_parser(
            tool_parser,
            self.reasoning_parser,
            tools=request.callable_tools,
            prompt_end=line.text,
            control_tokens=self.control_tokens,
            forced=forced,
        )
        return parser if request.parallel_tool_calls else OneCall(parser)

    def before_answer(self, line: Line) -> Reasoning | Channels | None:
        """What may stand before an answer to this line that holds to a grammar."""
        if uses_harmony(self.tool_parser, self.reasoning_parser):
            message = line.text.rpartition("<|start|>")[2]
            return None if FINAL_CHANNEL in message else Channels(in_message="<|message|>" in message)
        found = reasoning_before(self.reasoning_parser, line.text)
        return None if found is None else Reasoning(found[0].begin, found[0].end, found[1])

    @property
    def tool_markers(self) -> tuple[str, ...]:
        """The markers of the model's calls, the one that begins them first."""
        return () if self.tool_parser is None else tool_markers(self.tool_parser)


def _chosen(setting: str, name: str, found: str | None, known: list[str]) -> str | None:
    if name == AUTO:
        return found
    if name == NONE:
        return None
    if name not in known:
        raise ValueError(f'{setting} must be "auto", "none" or one of {", ".join(known)}; got {name!r}')
    return name
