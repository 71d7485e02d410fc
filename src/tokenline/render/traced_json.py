"""JSON values whose texts know where they came from, and JSON written and read without losing that.

`trace_value` wraps a request's value; `dump` is `json.dumps` and `parse` is `json.loads` for wrapped values. Containers
are subclasses of dict and list that also remember the origin of what cannot carry one itself (true, false, null).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenline.render.line import Origin
from tokenline.render.provenance import Run, Runs, Source, Traced, concat, from_request, literal, runs_of, trace


class TracedInt(int):
    """An integer of the request."""

    _runs: Runs

    def __str__(self) -> str:
        return trace(int.__repr__(self), self._runs)

    __repr__ = int.__repr__


class TracedFloat(float):
    """A floating-point number of the request."""

    _runs: Runs

    def __str__(self) -> str:
        return trace(float.__repr__(self), self._runs)

    __repr__ = float.__repr__


class TracedDict(dict[Any, Any]):
    """A JSON object. `_constants`: the runs of its members that are true, false or null."""

    _constants: Mapping[Any, Runs]


class TracedList(list[Any]):
    """A JSON array. `_constants`: as with `TracedDict`, by index."""

    _constants: Mapping[Any, Runs]


def trace_value(value: Any, pointer: str) -> Any:
    """A JSON value with its texts traced to `pointer` and what lies below it."""
    if isinstance(value, str):
        return from_request(value, pointer)
    if isinstance(value, Mapping):
        traced = TracedDict()
        for key, item in value.items():
            below = pointer + "/" + str(key).replace("~", "~0").replace("/", "~1")
            traced[from_request(key, below, key=True) if isinstance(key, str) else key] = trace_value(item, below)
        traced._constants = {
            key: _whole(item, pointer + "/" + str(key).replace("~", "~0").replace("/", "~1"))
            for key, item in value.items()
            if item is None or isinstance(item, bool)
        }
        return traced
    if isinstance(value, list | tuple):
        items = TracedList(trace_value(item, f"{pointer}/{i}") for i, item in enumerate(value))
        items._constants = {
            i: _whole(item, f"{pointer}/{i}") for i, item in enumerate(value) if item is None or isinstance(item, bool)
        }
        return items
    return _number(value, _whole(value, pointer)) if type(value) in (int, float) else value


def with_members(original: Mapping[Any, Any], members: dict[Any, Any]) -> dict[Any, Any]:
    """`members`, which are those of `original` with changes, as an object that is traced if `original` is."""
    if not isinstance(original, TracedDict):
        return members
    traced = TracedDict(members)
    traced._constants = original._constants
    return traced


def dump(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter for traced values: the same text as `json.dumps`, whose errors it raises."""
    plain = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    item_separator, key_separator = separators or ((", ", ": ") if indent is None else (",", ": "))
    step = " " * indent if isinstance(indent, int) else indent
    writer = _Writer(ensure_ascii, step, item_separator, key_separator, sort_keys)
    writer.write(value, 0, None)
    traced = concat(writer.pieces)
    return traced if traced == plain else plain


def parse(text: str) -> Any:
    """`json.loads`, whose errors it raises; what was traced in the text is traced in the value."""
    plain = json.loads(text)
    if not isinstance(text, Traced):
        return plain
    value, _ = _Reader(text).value(_skip_space(text, 0))
    return value if value == plain else plain


class _Reader:
    """Reads JSON that is known to be valid, remembering where each value lay."""

    def __init__(self, text: Traced):
        self.text = text
        self.plain = str.__str__(text)

    def value(self, at: int) -> tuple[Any, int]:
        """The value that begins at `at`, and where it ends."""
        match self.plain[at]:
            case '"':
                return self.string(at)
            case "{":
                members = TracedDict()
                constants: dict[Any, Runs] = {}
                at = _skip_space(self.plain, at + 1)
                while self.plain[at] != "}":
                    key, at = self.string(at)
                    start = _skip_space(self.plain, _skip_space(self.plain, at) + 1)
                    members[key], at = self.value(start)
                    if members[key] is None or isinstance(members[key], bool):
                        constants[key] = runs_of(self.text[start:at])
                    else:
                        constants.pop(key, None)
                    at = self.next_item(at)
                members._constants = constants
                return members, at + 1
            case "[":
                items = TracedList()
                constants = {}
                at = _skip_space(self.plain, at + 1)
                while self.plain[at] != "]":
                    item, end = self.value(at)
                    if item is None or isinstance(item, bool):
                        constants[len(items)] = runs_of(self.text[at:end])
                    items.append(item)
                    at = self.next_item(end)
                items._constants = constants
                return items, at + 1
        end = _SCALAR.match(self.plain, at).end()  # type: ignore[union-attr]  # the text is valid JSON
        value = json.loads(self.plain[at:end])
        if isinstance(value, bool) or value is None:
            return value, end
        source, written = self.text[at:end], json.dumps(value)
        return _number(value, source._runs if source == written else _standing_for(source, len(written))), end

    def next_item(self, at: int) -> int:
        at = _skip_space(self.plain, at)
        return _skip_space(self.plain, at + 1) if self.plain[at] == "," else at

    def string(self, at: int) -> tuple[str, int]:
        end = _STRING.match(self.plain, at).end()  # type: ignore[union-attr]
        pieces: list[str] = []
        start = at + 1
        for match in _ESCAPE.finditer(self.plain, start, end - 1):
            pieces.append(self.text[start : match.start()])
            character = json.loads(f'"{match[0]}"')
            pieces.append(trace(character, _standing_for(self.text[match.start() : match.end()], len(character))))
            start = match.end()
        return concat([*pieces, self.text[start : end - 1]]), end


_SCALAR = re.compile(r"[^\s,\]}]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]")
_SPACE = re.compile(r"[ \t\n\r]*")


def _skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches always, perhaps nothing


class _Writer:
    def __init__(self, ensure_ascii: bool, step: str | None, item_separator: str, key_separator: str, sort_keys: bool):
        self.ensure_ascii = ensure_ascii
        self.step = step
        self.item_separator = item_separator
        self.key_separator = key_separator
        self.sort_keys = sort_keys
        self.pieces: list[str] = []

    def write(self, value: Any, depth: int, constant: Runs | None) -> None:
        """Append one value. `constant`: the runs of a value that is true, false or null, if the request has it."""
        if isinstance(value, str):
            self.pieces.append(_quoted(value, self.ensure_ascii))
        elif isinstance(value, dict):
            items = sorted(value.items()) if self.sort_keys else list(value.items())
            constants = getattr(value, "_constants", {})
            self._bracketed("{}", len(items), depth, lambda i: self._member(*items[i], depth, constants))
        elif isinstance(value, list | tuple):
            constants = getattr(value, "_constants", {})
            self._bracketed("[]", len(value), depth, lambda i: self.write(value[i], depth + 1, constants.get(i)))
        elif value is None or isinstance(value, bool):
            text = json.dumps(value)
            self.pieces.append(text if constant is None else trace(text, constant))
        else:
            text = json.dumps(value)
            self.pieces.append(trace(text, value._runs) if isinstance(value, TracedInt | TracedFloat) else text)

    def _member(self, key: Any, value: Any, depth: int, constants: Mapping[Any, Runs]) -> None:
        self.pieces.append(_quoted(key if isinstance(key, str) else json.dumps(key), self.ensure_ascii))
        self.pieces.append(literal(self.key_separator))
        self.write(value, depth + 1, constants.get(key))

    def _bracketed(self, brackets: str, count: int, depth: int, write_item: Callable[[int], None]) -> None:
        self.pieces.append(literal(brackets[0]))
        for i in range(count):
            if i:
                self.pieces.append(literal(self.item_separator))
            if self.step is not None:
                self.pieces.append(literal("\n" + self.step * (depth + 1)))
            write_item(i)
        if count and self.step is not None:
            self.pieces.append(literal("\n" + self.step * depth))
        self.pieces.append(literal(brackets[1]))


_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPED_ASCII = re.compile(r'["\\\x00-\x1f]|[^\x00-\x7e]')


def _quoted(text: str, ensure_ascii: bool) -> Traced:
    """A JSON string: copied but for its escapes, each of which stands for one character."""
    text = text if isinstance(text, Traced) else trace(text, runs_of(text))
    pieces: list[str] = [literal('"')]
    at = 0
    for match in (_ESCAPED_ASCII if ensure_ascii else _ESCAPED).finditer(text):
        start, end = match.span()
        pieces.append(text[at:start])
        escape = json.dumps(str.__getitem__(text, slice(start, end)), ensure_ascii=ensure_ascii)[1:-1]
        pieces.append(trace(escape, _standing_for(text[start:end], len(escape))))
        at = end
    return concat([*pieces, text[at:], literal('"')])


def _standing_for(source: Traced, length: int) -> Runs:
    """The run of `length` characters that together stand for the characters of `source`."""
    first = source._runs[0]
    if first.source.origin is not Origin.REQUEST:
        return (Run(length, first.source),)
    last = source._runs[-1]
    if last.source != first.source:
        return runs_of("?" * length)
    end = last.offset + (last.length if last.width is None else last.width)
    return (Run(length, first.source, first.offset, end - first.offset),)


def _whole(value: Any, pointer: str) -> Runs:
    """The run of a number or constant as JSON writes it."""
    return (Run(len(json.dumps(value)), Source(Origin.REQUEST, pointer)),)


def _number(value: int | float, runs: Runs) -> Any:
    traced = TracedFloat(value) if isinstance(value, float) else TracedInt(value)
    traced._runs = runs
    return traced
