"""Text that knows where each of its characters came from: a `str` subclass that keeps its origin through `str`'s own
operations.

`Traced` behaves as `str`, but what is made from it keeps the origins. They are stored as runs of characters (run-length
encoded), so the cost depends on the number of pieces and not on the length of the text. Where an operation cannot be
followed, the result is a plain `str`, and a plain `str` counts as unknown: an origin is exact or it is not claimed.

Knows nothing of templates (see `tracing`) and of JSON (see `traced_json`).
"""

import bisect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

from tokenline.render.line import Origin, Span


class Source(NamedTuple):
    """Where characters come from. For a request: the JSON value that `pointer` names, or, if `key`, its name."""

    origin: Origin
    pointer: str | None = None
    key: bool = False


TEMPLATE = Source(Origin.TEMPLATE)
UNKNOWN = Source(Origin.UNKNOWN)


class Run(NamedTuple):
    """`length` characters of one source, in order, beginning at its character `offset`.

    With `width` they are not a copy but stand for `width` characters of the source, all of them for all of these: the
    two characters of an escaped line feed stand for one.
    """

    length: int
    source: Source
    offset: int = 0
    width: int | None = None

    def part(self, start: int, stop: int) -> "Run":
        """The run of the characters `start` to `stop` of this one."""
        if self.width is not None:
            return self._replace(length=stop - start)
        return Run(stop - start, self.source, self.offset + start)


Runs = tuple[Run, ...]


class Traced(str):
    """A string with the origin of each character. Make one with `trace` or `literal`."""

    _runs: Runs
    _ends: list[int] | None = None  # where each run ends; made when first needed

    def __str__(self) -> str:
        return self

    # Pieces of this string

    def _slice(self, start: int, stop: int) -> "Traced":
        return trace(str.__getitem__(self, slice(start, stop)), self._cut(start, stop))

    def _cut(self, start: int, stop: int) -> Runs:
        """The runs of the characters `start` to `stop`."""
        if self._ends is None:
            self._ends = list(itertools.accumulate(run.length for run in self._runs))
        found: list[Run] = []
        for i in range(bisect.bisect_right(self._ends, start), len(self._runs)):
            run = self._runs[i]
            at = self._ends[i] - run.length
            if at >= stop:
                break
            begin, end = max(start - at, 0), min(stop - at, run.length)
            if begin < end:
                found.append(run if end - begin == run.length else run.part(begin, end))
        return tuple(found)

    def __getitem__(self, index: SupportsIndex | slice) -> "Traced":
        if not isinstance(index, slice):
            at = range(len(self))[index]
            return self._slice(at, at + 1)
        start, stop, step = index.indices(len(self))
        if step == 1:
            return self._slice(start, max(start, stop))
        return concat([self._slice(at, at + 1) for at in range(start, stop, step)])

    def __iter__(self) -> Iterator["Traced"]:
        return (self._slice(at, at + 1) for at in range(len(self)))

    def lstrip(self, chars: str | None = None, /) -> "Traced":
        return self._slice(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> "Traced":
        return self._slice(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None, /) -> "Traced":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> "Traced":
        return self._slice(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> "Traced":
        return self._slice(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        first, second, third = self._pieces(str.partition(self, sep), "")
        return first, second, third

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        first, second, third = self._pieces(str.rpartition(self, sep), "")
        return first, second, third

    def _pieces(self, pieces: Iterable[str], gap: str | None) -> list[str]:
        """The same pieces, traced. `gap` is what lies between any two of them; None: white space."""
        found: list[str] = []
        at = 0
        for piece in pieces:
            if gap is None:  # and a piece has none at its start, or is the very first
                at = self.find(piece, at)
            found.append(self._slice(at, at + len(piece)))
            at += len(piece) + len(gap or "")
        return found

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines: list[str] = []
        at = 0
        for whole, line in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            lines.append(self._slice(at, at + len(line)))
            at += len(whole)
        return lines

    # Joining strings

    def __add__(self, other: str, /) -> "Traced":
        if not isinstance(other, str) or hasattr(other, "__html__"):  # Markup escapes what it is added to
            return NotImplemented
        return concat([self, other])

    def __radd__(self, other: str, /) -> "Traced":
        return concat([other, self]) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex, /) -> str:
        return concat([self] * len(str.__mul__("x", times)))

    def __rmul__(self, times: SupportsIndex, /) -> str:
        return self * times

    def join(self, items: Iterable[str], /) -> str:
        items = list(items)
        plain = str.join(self, items)  # raises for items that are no strings
        pieces = [piece for item in items for piece in (self, item)][1:]
        return _checked(concat(pieces), plain)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        plain = str.replace(self, old, new, count)
        most = len(self) + 1 if operator.index(count) < 0 else operator.index(count)
        pieces: list[str] = []
        at = 0
        for _ in range(min(most, len(self) + 1)):
            hit = self.find(old, at)
            if hit < 0:
                break
            if old:
                pieces += [self._slice(at, hit), new]
                at = hit + len(old)
            else:  # before each character, and at the end
                pieces += [new, self._slice(at, at + 1)]
                at += 1
        return _checked(concat([*pieces, self._slice(at, len(self))]), plain)

    def center(self, width: SupportsIndex, fill: str | None = None, /) -> str:
        plain = str.center(self, width, *([] if fill is None else [fill]))
        added = len(plain) - len(self)
        return self._padded(plain, added // 2 + (added & len(plain) & 1), fill)  # as CPython divides it

    def ljust(self, width: SupportsIndex, fill: str | None = None, /) -> str:
        return self._padded(str.ljust(self, width, *([] if fill is None else [fill])), 0, fill)

    def rjust(self, width: SupportsIndex, fill: str | None = None, /) -> str:
        plain = str.rjust(self, width, *([] if fill is None else [fill]))
        return self._padded(plain, len(plain) - len(self), fill)

    def _padded(self, plain: str, before: int, fill: str | None) -> str:
        fill = literal(" ") if fill is None else fill
        after = len(plain) - len(self) - before
        return _checked(concat([*[fill] * before, self, *[fill] * after]), plain)

    # Formatting

    def __mod__(self, values: Any, /) -> str:
        plain = str.__mod__(self, values)
        return _checked(_percent(self, values), plain)

    # Changes of case

    def upper(self) -> str:
        return self._mapped(str.upper)

    def lower(self) -> str:
        return self._mapped(str.lower)

    def casefold(self) -> str:
        return self._mapped(str.casefold)

    def swapcase(self) -> str:
        return self._mapped(str.swapcase)

    def capitalize(self) -> str:
        return self._mapped(str.capitalize)

    def title(self) -> str:
        return self._mapped(str.title)

    def _mapped(self, change: Callable[[str], str]) -> str:
        """Case changes never make fewer characters, so an equal length means character by character."""
        plain = change(self)
        return trace(plain, self._runs) if len(plain) == len(self) else plain


def trace(text: str, runs: Runs) -> Traced:
    """`text` with its runs, whose lengths add up to its own."""
    traced = Traced(text)
    traced._runs = runs
    return traced


def literal(text: str) -> Traced:
    """Text that the template wrote."""
    return trace(text, (Run(len(text), TEMPLATE),) if text else ())


def from_request(text: str, pointer: str, *, key: bool = False) -> Traced:
    """Text of the JSON string that `pointer` names, or of a member's name."""
    return trace(text, (Run(len(text), Source(Origin.REQUEST, pointer, key)),) if text else ())


def runs_of(text: str) -> Runs:
    """The runs of any string: unknown where it is not traced."""
    runs = getattr(text, "_runs", None)
    if runs is None:
        return (Run(len(text), UNKNOWN),) if text else ()
    return runs


def concat(pieces: Iterable[Any]) -> Traced:
    """All pieces one after another; what is not a string is written as `str` writes it."""
    texts = [str(piece) for piece in pieces]
    runs: list[Run] = []
    for text in texts:
        for run in runs_of(text):
            if runs and _follows(runs[-1], run):
                runs[-1] = runs[-1]._replace(length=runs[-1].length + run.length)
            elif run.length:
                runs.append(run)
    return trace("".join(texts), tuple(runs))


def join(separator: str, texts: Sequence[str]) -> str:
    """`separator.join(texts)`, traced if any of the texts is."""
    if any(isinstance(text, Traced) for text in texts):
        return literal(separator).join(texts)
    return separator.join(texts)


def standing_for(source: Traced, length: int) -> Runs:
    """The run of `length` characters that together stand for the characters of `source`."""
    first = source._runs[0]
    if first.source.origin is not Origin.REQUEST:
        return (Run(length, first.source),)
    last = source._runs[-1]
    if last.source != first.source:
        return runs_of("?" * length)
    end = last.offset + (last.length if last.width is None else last.width)
    return (Run(length, first.source, first.offset, end - first.offset),)


def spans_of(text: str) -> tuple[Span, ...]:
    """What `Line.spans` says of a rendered text."""
    spans = []
    at = 0
    for run in runs_of(text):
        source = run.source
        from_json = source.origin is Origin.REQUEST
        width = run.width if from_json else None
        spans.append(
            Span(at, at + run.length, source.origin, source.pointer, run.offset if from_json else 0, source.key, width)
        )
        at += run.length
    return tuple(spans)


def _follows(first: Run, second: Run) -> bool:
    if first.source != second.source or first.width is not None or second.width is not None:
        return False
    return first.source.origin is not Origin.REQUEST or first.offset + first.length == second.offset


def _checked(traced: str | None, plain: str) -> str:
    """The traced result of an operation if it is what `str` itself makes of it, else that: then nothing is known."""
    return traced if traced is not None and traced == plain else plain


_CONVERSION = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<form>[#0\- +]*[\d*]*(?:\.[\d*]+)?[hlL]?)(?P<kind>[a-zA-Z%])")


def _percent(pattern: Traced, values: Any) -> Traced | None:
    """`pattern % values` where every conversion is simple; None where it is not."""
    pieces: list[Any] = []
    at = used = 0
    arguments = values if isinstance(values, tuple) else (values,)
    for match in _CONVERSION.finditer(pattern):
        pieces.append(pattern[at : match.start()])
        at = match.end()
        if match["kind"] == "%":
            pieces.append(pattern[at - 1 : at])
            continue
        if "*" in match["form"]:
            return None
        if match["key"] is not None:
            value = values[match["key"]] if isinstance(values, Mapping) else None
        else:
            value = arguments[used] if used < len(arguments) else None
            used += 1
        plain_copy = match["kind"] == "s" and not match["form"]
        pieces.append(str(value) if plain_copy else str.__mod__("%" + match["form"] + match["kind"], (value,)))
    pieces.append(pattern[at:])
    return concat(pieces)
