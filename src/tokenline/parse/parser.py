"""The parsers of an answer: `Parser` runs readers (see source.py) over the pieces of text as they come."""

from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from typing import Protocol

from tokenline.parse.blocks import read_content
from tokenline.parse.delta import ContentDelta, Delta, OutputParser, ToolCallDelta
from tokenline.parse.sink import Sink, new_call_id
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.schema import ToolSchemas


class Reader(Protocol):
    """A format of answers, or of a part of them."""

    @property
    def markers(self) -> Iterable[str]:
        """All markers of the format; those that are control tokens reach the reader only if they are named here."""
        ...

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        """Read the format from the source and put what it means into the sink."""
        ...


class Parser:
    """An OutputParser made of readers, one after another; the last one reads to the end of the text."""

    def __init__(
        self,
        *readers: Reader,
        control_tokens: Set[str] | None = None,
        dropped: Iterable[str] = (),
        new_id: Callable[[], str] = new_call_id,
        schemas: ToolSchemas | None = None,
    ) -> None:
        """`control_tokens`: those of the vocabulary. Where a marker is one of them, or has one in it, it counts only
        where the model wrote the token itself; without them (None, a raw text) every marker is found in the text.

        `schemas`: the request's tools. Only calls of these are calls; without them, those of any name.
        """
        dropped = tuple(dropped)
        markers = frozenset(dropped).union(*(reader.markers for reader in readers))
        self.control_tokens = markers if control_tokens is None else _in_markers(markers, frozenset(control_tokens))
        self._source = Source(frozenset() if control_tokens is None else self.control_tokens, dropped)
        self._sink = Sink(new_id, (schemas or ToolSchemas(None)).meant)
        self._reading = self._read(readers)
        self._advance()

    def _read(self, readers: Sequence[Reader]) -> Reading[None]:
        for reader in readers:
            yield from reader.read(self._source, self._sink)
        yield from read_content(self._source, self._sink)

    def _advance(self) -> None:
        next(self._reading, None)

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        self._source.push(text, control=control)
        self._advance()
        return self._sink.take()

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        self._source.end(cut=cut)
        self._advance()
        self._sink.finish()
        return self._sink.take()

    @property
    def complete_calls(self) -> Sequence[int]:
        return tuple(self._sink.complete_calls)

    @property
    def message_calls(self) -> Sequence[int]:
        return tuple(self._sink.message_calls)

    @property
    def has_tool_calls(self) -> bool:
        return bool(self._sink.complete_calls)

    @property
    def in_reasoning(self) -> bool:
        return self._sink.in_reasoning


@lru_cache(maxsize=64)
def _in_markers(markers: frozenset[str], control_tokens: frozenset[str]) -> frozenset[str]:
    """The control tokens of a vocabulary (there may be thousands) of which these markers are made."""
    return frozenset(token for token in control_tokens if token and any(token in marker for marker in markers))


class PlainParser:
    """The OutputParser of a model without reasoning and tools: all text is content, at once."""

    control_tokens: frozenset[str] = frozenset()
    complete_calls: Sequence[int] = ()
    message_calls: Sequence[int] = ()
    has_tool_calls = False
    in_reasoning = False

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        return (ContentDelta(text),) if text else ()

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        return ()


class OneCall:
    """`parallel_tool_calls: false`: leaves out what another OutputParser finds behind its first complete call."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self.control_tokens = parser.control_tokens

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        return self._up_to_first(self._parser.feed(text, control=control))

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        return self._up_to_first(self._parser.finish(cut=cut))

    def _up_to_first(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        if not self.complete_calls:
            return deltas
        (first,) = self.complete_calls
        return [delta for delta in deltas if not isinstance(delta, ToolCallDelta) or delta.index <= first]

    @property
    def complete_calls(self) -> Sequence[int]:
        return self._parser.complete_calls[:1]

    @property
    def message_calls(self) -> Sequence[int]:
        calls = self._parser.message_calls
        return [call for call in calls if call <= self.complete_calls[0]] if self.complete_calls else calls

    @property
    def has_tool_calls(self) -> bool:
        return self._parser.has_tool_calls

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning
