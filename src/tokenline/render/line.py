"""The line: what a request looks like to the model, and where each piece of it came from."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Origin(StrEnum):
    REQUEST = "request"  # copied from a JSON value of the request; `pointer` and `offset` say which
    TEMPLATE = "template"  # written by the chat template
    TOKENIZER = "tokenizer"  # put there by the tokenizer, and no character of the text: BOS before a raw prompt
    UNKNOWN = "unknown"  # made from request values by an operation that could not be followed


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` of `Line.text` and their origin. Spans are in order, never empty, and cover the whole
    text.

    With `width` None the characters are a copy: the i-th is character `offset + i` of the value (for a number, true,
    false and null: of its JSON text), perhaps in another case. Otherwise all of them together stand for `width`
    characters of the value from `offset` on: a line feed written as "\\n" is two characters that stand for one.
    """

    start: int
    end: int
    origin: Origin
    pointer: str | None = None  # RFC 6901 JSON pointer into the request, e.g. "/messages/3/content"
    offset: int = 0  # character of that JSON string at which this span begins
    key: bool = False  # the characters are the name of the member that `pointer` names, not its value
    width: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One request as the model sees it. Immutable."""

    ids: np.ndarray  # int32 [n]
    text: str  # the rendered prompt; for a prompt given as ids, their decoding
    offsets: np.ndarray  # int32 [n, 2]: each token's characters in `text`, start and end
    spans: tuple[Span, ...] = ()  # empty where provenance was not asked for, or the prompt was given as ids
    ids_pointer: str | None = None  # JSON pointer to the array of ids, where the prompt was given as ids

    def __len__(self) -> int:
        return len(self.ids)
