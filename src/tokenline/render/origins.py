"""Token -> where it came from: which characters of which value of the request each token of a traced line shows.

Everyone who shows or explains a line uses `token_origins`: the command line, the diagnosis, the page. Knows lines and
the bytes of tokens; nothing of how to print them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tokenline.render.line import Line, Origin, Span


class TokenBytes(Protocol):
    """What is needed of a `Tokenizer`."""

    def token_bytes(self, token_id: int, /) -> bytes: ...


class TokenPart(NamedTuple):
    """The characters of one token that have one origin."""

    start: int  # of the line's text
    end: int
    origin: Origin
    pointer: str | None = None  # RFC 6901: the value of the request; None unless `origin` is the request
    key: bool = False  # what is shown is the name of the member that `pointer` names, not its value
    # Characters `offset` to `offset + length` of the value (of the name, if `key`; for a number, true, false and null:
    # of its JSON text) are what this part shows. None where it shows no characters: a token id of the request.
    offset: int | None = None
    length: int | None = None
    # The part shows these characters in another spelling, such as a line feed as "\n". Where the spelling has several
    # tokens, each of them has the whole range.
    escape: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "origin": str(self.origin),
            "pointer": self.pointer,
            "key": self.key,
            "offset": self.offset,
            "length": self.length,
            "escape": self.escape,
        }


class LineToken(NamedTuple):
    """One token of a line."""

    position: int  # in the line, from 0
    id: int
    text: str  # its bytes as text, with U+FFFD for what is no whole character
    broken: bytes | None  # its bytes, where `text` cannot show them
    start: int  # characters of the line's text; a character of several tokens belongs to each of them
    end: int
    parts: tuple[TokenPart, ...]  # in order, covering start to end: one, or several where origins meet inside the token

    def as_json(self) -> dict[str, Any]:
        """The token with its origin; if it has several, `origin` is "mixed" and `parts` has them."""
        token: dict[str, Any] = {"id": self.id, "text": self.text}
        if self.broken is not None:
            token["bytes"] = list(self.broken)
        if len(self.parts) == 1:
            return token | self.parts[0].as_json()
        mixed = TokenPart(self.start, self.end, Origin.UNKNOWN).as_json() | {"origin": "mixed"}
        return token | mixed | {"parts": [part.as_json() for part in self.parts]}


def token_origins(line: Line, tokenizer: TokenBytes) -> Iterator[LineToken]:
    """The tokens of a traced line in order. Without `spans` the origin of its characters is unknown."""
    known: dict[int, tuple[str, bytes | None]] = {}
    first = 0  # the first span that can touch the token at hand: spans and tokens both run from left to right
    for position, (token_id, (start, end)) in enumerate(zip(line.ids.tolist(), line.offsets.tolist(), strict=True)):
        if token_id not in known:
            known[token_id] = _text_of(tokenizer.token_bytes(token_id))
        text, broken = known[token_id]
        if line.ids_pointer is not None:
            parts = (TokenPart(start, end, Origin.REQUEST, f"{line.ids_pointer}/{position}"),)
        elif start == end:
            parts = (TokenPart(start, end, Origin.TOKENIZER),)
        else:
            first = _first_touching(line.spans, first, start)
            parts = _parts(line.spans, first, start, end)
        yield LineToken(position, token_id, text, broken, start, end, parts)


def _text_of(data: bytes) -> tuple[str, bytes | None]:
    text = data.decode("utf-8", "replace")
    return text, data if text.encode() != data else None


def _first_touching(spans: Sequence[Span], at: int, start: int) -> int:
    while at > 0 and spans[at - 1].end > start:  # tokens of one character begin at the same place
        at -= 1
    while at < len(spans) and spans[at].end <= start:
        at += 1
    return at


def _parts(spans: Sequence[Span], first: int, start: int, end: int) -> tuple[TokenPart, ...]:
    if first < len(spans) and end <= spans[first].end:  # as most tokens
        return (_part(spans[first], start, end),)
    parts: list[TokenPart] = []
    at = start
    while first < len(spans) and at < end:
        stop = min(end, spans[first].end)
        parts.append(_part(spans[first], at, stop))
        first, at = first + 1, stop
    if at < end:  # the line is not traced
        parts.append(TokenPart(at, end, Origin.UNKNOWN))
    return tuple(parts)


def _part(span: Span, start: int, end: int) -> TokenPart:
    if span.pointer is None:
        return TokenPart(start, end, span.origin)
    if span.width is None:
        offset = span.offset + start - span.start
        return TokenPart(start, end, span.origin, span.pointer, span.key, offset, end - start)
    return TokenPart(start, end, span.origin, span.pointer, span.key, span.offset, span.width, True)
