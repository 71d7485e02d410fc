"""JSON values whose texts know where they came from, and JSON written and read without losing that.

`trace_value` wraps a request's value; `dump` is `json.dumps` and `parse` is `json.loads` for wrapped values.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tokenline.fields import json_pointer
from tokenline.render.line import Origin
from tokenline.render.provenance import (
    UNKNOWN,
    Run,
    Runs,
    Source,
    Traced,
    concat,
    from_request,
    literal,
    runs_of,
    standing_for,
    trace,
)


class TracedInt(int):
    """An integer of the request, or one computed from the request, whose origin is unknown (see `computed`).

    Arithmetic with it gives the latter, so that an integer without any origin is one the template made up.
    """

    _runs: Runs

    def __str__(self) -> str:
        return trace(int.__repr__(self), self._runs)

    __repr__ = int.__repr__


def _computing(name: str) -> Callable[..., Any]:
    operation = getattr(int, name)

    def compute(self: int, *others: Any) -> Any:
        return computed(operation(self, *others))

    return compute


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
    setattr(TracedInt, f"__{_name}__", _computing(f"__{_name}__"))
    setattr(TracedInt, f"__r{_name}__", _computing(f"__r{_name}__"))
for _name in ("neg", "pos", "abs", "invert", "round"):
    setattr(TracedInt, f"__{_name}__", _computing(f"__{_name}__"))


def computed(value: Any) -> Any:
    """A result of computing with a request's values: an integer is marked as of unknown origin."""
    if type(value) is not int:
        return value
    traced = TracedInt(value)
    traced._runs = (Run(len(int.__repr__(traced)), UNKNOWN),)
    return traced


class TracedFloat(float):
    """A floating-point number of the request."""

    _runs: Runs

    def __str__(self) -> str:
        text, written = float.__repr__(self), json.dumps(float(self))  # which differ for Infinity
        return trace(text, self._runs if text == written else standing_for(trace(written, self._runs), len(text)))

    __repr__ = float.__repr__


class TracedBool(TracedInt):
    """true or false of the request. Not a bool, which cannot be subclassed: `tracing` has tests that know it as one."""

    def __str__(self) -> str:
        return trace(repr(self), self._runs)

    def __repr__(self) -> str:  # type: ignore[override]
        return "True" if self else "False"


class TracedNone:
    """null of the request. Equal to None; `tracing` has a test that knows it as none."""

    _runs: Runs

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, TracedNone)

    def __hash__(self) -> int:
        return hash(None)

    def __str__(self) -> str:
        return trace("None", standing_for(trace("null", self._runs), len("None")))

    def __repr__(self) -> str:
        return "None"


class TracedDict(dict[Any, Any]):
    """A JSON object of the request. As text it is what Python writes, traced."""

    def __str__(self) -> str:
        return _python_text(self)


class TracedList(list[Any]):
    """A JSON array of the request."""

    def __str__(self) -> str:
        return _python_text(self)


def trace_value(value: Any, pointer: str, *, constants: bool = True) -> Any:
    """A JSON value with everything in it traced to `pointer` and what lies below it.

    true, false and null become traced objects only if `constants` (or inside the arguments of a tool call), since code
    that asks `is None` would not recognise them.
    """
    if isinstance(value, str):
        return from_request(value, pointer)
    if isinstance(value, Mapping):
        traced = TracedDict()
        for key, item in value.items():
            below = pointer + json_pointer((str(key),))
            name = from_request(key, below, key=True) if isinstance(key, str) else key
            inside = constants or (key == "arguments" and isinstance(item, Mapping))
            traced[name] = trace_value(item, below, constants=inside)
        return traced
    if isinstance(value, list | tuple):
        return TracedList(trace_value(item, f"{pointer}/{i}", constants=constants) for i, item in enumerate(value))
    if value is None or isinstance(value, bool | int | float):
        if not constants and isinstance(value, bool | None):
            return value
        return _scalar(value, (Run(len(json.dumps(value)), Source(Origin.REQUEST, pointer)),))
    return value


def _scalar(value: Any, runs: Runs) -> Any:
    """A number, true, false or null whose JSON text has these runs."""
    if value is None:
        traced = TracedNone()
    elif isinstance(value, bool):
        traced = TracedBool(value)
    else:
        traced = TracedFloat(value) if isinstance(value, float) else TracedInt(value)
    traced._runs = runs
    return traced


def with_members(original: Mapping[Any, Any], members: dict[Any, Any]) -> dict[Any, Any]:
    """`members`, which are those of `original` with changes, as an object that is traced if `original` is."""
    if not isinstance(original, TracedDict):
        return members
    return TracedDict(members)


def dump(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter for traced values: the text that `json.dumps` gives for plain ones, and its errors."""
    item_separator, key_separator = separators or ((", ", ": ") if indent is None else (",", ": "))
    step = " " * indent if isinstance(indent, int) else indent
    writer = _Writer(ensure_ascii, step, item_separator, key_separator, sort_keys)
    writer.write(list(value) if isinstance(value, Iterator) else value, 0)
    return concat(writer.pieces)


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
                at = _skip_space(self.plain, at + 1)
                while self.plain[at] != "}":
                    key, at = self.string(at)
                    start = _skip_space(self.plain, _skip_space(self.plain, at) + 1)
                    members[key], at = self.value(start)
                    at = self.next_item(at)
                return members, at + 1
            case "[":
                items = TracedList()
                at = _skip_space(self.plain, at + 1)
                while self.plain[at] != "]":
                    item, end = self.value(at)
                    items.append(item)
                    at = self.next_item(end)
                return items, at + 1
        end = _SCALAR.match(self.plain, at).end()  # type: ignore[union-attr]  # the text is valid JSON
        value = json.loads(self.plain[at:end])
        source, written = self.text[at:end], json.dumps(value)
        return _scalar(value, source._runs if source == written else standing_for(source, len(written))), end

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
            pieces.append(trace(character, standing_for(self.text[match.start() : match.end()], len(character))))
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

    def write(self, value: Any, depth: int) -> None:
        """Append one value."""
        if isinstance(value, str):
            self.pieces.append(_quoted(value, self.ensure_ascii))
        elif isinstance(value, dict):
            items = sorted(value.items()) if self.sort_keys else list(value.items())
            self._bracketed("{}", len(items), depth, lambda i: self._member(*items[i], depth))
        elif isinstance(value, list | tuple):
            self._bracketed("[]", len(value), depth, lambda i: self.write(value[i], depth + 1))
        elif isinstance(value, TracedBool):
            self.pieces.append(trace("true" if value else "false", value._runs))
        elif isinstance(value, TracedNone):
            self.pieces.append(trace("null", value._runs))
        else:
            text = json.dumps(value)
            self.pieces.append(trace(text, value._runs) if isinstance(value, TracedInt | TracedFloat) else text)

    def _member(self, key: Any, value: Any, depth: int) -> None:
        self.pieces.append(_quoted(key if isinstance(key, str) else json.dumps(key), self.ensure_ascii))
        self.pieces.append(literal(self.key_separator))
        self.write(value, depth + 1)

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
        pieces.append(trace(escape, standing_for(text[start:end], len(escape))))
        at = end
    return concat([*pieces, text[at:], literal('"')])


def _python_text(value: Any) -> str:
    """`repr` of a container, traced."""
    pieces: list[str] = []

    def write(value: Any) -> None:
        if isinstance(value, dict):
            pieces.append(literal("{"))
            for i, (key, item) in enumerate(value.items()):
                pieces.append(literal(", " if i else ""))
                write(key)
                pieces.append(literal(": "))
                write(item)
            pieces.append(literal("}"))
        elif isinstance(value, list):
            pieces.append(literal("["))
            for i, item in enumerate(value):
                pieces.append(literal(", " if i else ""))
                write(item)
            pieces.append(literal("]"))
        elif isinstance(value, Traced):
            plain = str.__repr__(value)
            pieces.append(literal(plain[0]))
            for character in value:
                shown = str.__repr__(character)[1:-1]
                if character == plain[0]:
                    shown = "\\" + plain[0]
                elif character in "'\"":
                    shown = str.__str__(character)
                pieces.append(character if shown == character else trace(shown, standing_for(character, len(shown))))
            pieces.append(literal(plain[0]))
        elif isinstance(value, TracedNone | TracedBool | TracedInt | TracedFloat):
            pieces.append(str(value))
        else:
            pieces.append(repr(value))

    write(value)
    traced = concat(pieces)
    plain = repr(value)
    return traced if traced == plain else plain
