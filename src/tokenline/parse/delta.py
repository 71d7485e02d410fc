"""What layer 4 hands to the service, and what its parsers have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call. `id` and `name` come once, with the first piece; `arguments` pieces
    add up to JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer's content, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the answer's reasoning, never empty."""

    text: str


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


class TokenBytes(Protocol):
    """What the detokenizer needs of a tokenizer (`render.tokenizer.Tokenizer` has it)."""

    strips_leading_space: bool  # SentencePiece: decoding drops one space at the start of the text

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that this id stands for, perhaps part of a character; b"" for an id past the vocabulary."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token (BOS, EOS, `<|im_end|>`), which never appears in content."""
        ...


class OutputParser(Protocol):
    """Splits an answer's text into content, reasoning and tool calls. One object an answer.

    The result must not depend on how the text was cut into pieces.
    """

    control_tokens: frozenset[str]  # texts of control tokens that this parser has to see; all others are dropped

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        """Take the next piece of text; return what is certain by now.

        `control`: the text is one control token of `control_tokens`, not spelled by ordinary ids.
        """
        ...

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        """The text is complete (`cut`: ended by a limit or a stop string, not by the model); return what was held."""
        ...

    @property
    def complete_calls(self) -> Sequence[int]:
        """Indexes of the tool calls that the model finished; their arguments are valid JSON. A call that was begun
        in the deltas but is not listed here must not be executed.
        """
        ...

    @property
    def message_calls(self) -> Sequence[int]:
        """Indexes of the tool calls that the whole answer has: the complete ones, and the one that a limit or a stop
        string has cut, as far as it came. A call that the model broke is content there.
        """
        ...

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one complete tool call was seen: the finish reason is then "tool_calls"."""
        ...

    @property
    def in_reasoning(self) -> bool:
        """Whether the text at this point is reasoning (for counting reasoning tokens)."""
        ...


def join(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring pieces of the same part become one delta, so that one engine step sends few chunks."""
    joined: list[Delta] = []
    for delta in deltas:
        both = _both(joined[-1], delta) if joined else None
        if both is None:
            joined.append(delta)
        else:
            joined[-1] = both
    return joined


def _both(first: Delta, second: Delta) -> Delta | None:
    """Two deltas as one, if they are pieces of the same part."""
    match first, second:
        case ContentDelta(a), ContentDelta(b):
            return ContentDelta(a + b)
        case ReasoningDelta(a), ReasoningDelta(b):
            return ReasoningDelta(a + b)
        case ToolCallDelta(), ToolCallDelta() if first.index == second.index:
            return ToolCallDelta(first.index, first.id, first.name, first.arguments + second.arguments)
    return None
