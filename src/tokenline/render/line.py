"""The line: what a request looks like to the model, and where each piece of it came from."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tokenline.ids import common_prefix


class Origin(StrEnum):
    REQUEST = "request"  # copied from a JSON value of the request; `pointer` and `offset` say which
    TEMPLATE = "template"  # written by the chat template
    UNKNOWN = "unknown"  # made from request values by an operation that could not be followed


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` of `Line.text` and their origin. Spans are in order and cover the whole text."""

    start: int
    end: int
    origin: Origin
    pointer: str | None = None  # RFC 6901 JSON pointer into the request, e.g. "/messages/3/content"
    offset: int = 0  # character of that JSON string at which this span begins


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One request as the model sees it. Immutable."""

    ids: np.ndarray  # int32 [n]
    text: str  # the rendered prompt; for a prompt given as ids, their decoding
    offsets: np.ndarray  # int32 [n, 2]: each token's characters in `text`, start and end
    spans: tuple[Span, ...] = ()  # empty unless provenance was asked for

    def __len__(self) -> int:
        return len(self.ids)

    def common_prefix(self, other: "Line") -> int:
        """Number of equal ids from the start."""
        return common_prefix(self.ids, other.ids)
