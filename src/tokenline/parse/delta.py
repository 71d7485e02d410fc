"""What layer 4 hands to the server: the contract between `parse` and `server`, and of the parsers among themselves."""

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
class Delta:
    """A piece of the answer; usually only one of its parts is set."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


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
        """The text is complete (`cut`: ended by a length limit, not by the model); return what was held back."""
        ...

    @property
    def has_tool_calls(self) -> bool:
        """Whether at least one complete tool call was seen: the finish reason is then "tool_calls"."""
        ...
