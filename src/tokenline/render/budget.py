"""What a chat template may do: so many steps, and no single operation that makes something huge.

A template comes with a model, so from anybody. Steps are counted where a template can repeat itself (blocks of its
code, calls, filters, texts by their length), which is the same on every machine; what one operation would make is
estimated before it is done. `jinja_compiler` and `sandbox` call this.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

MAX_STEPS = 200_000  # of a rendering; and for each character of the request one more, for each of its values a hundred
STEPS_PER_VALUE = 100
MAX_STEPS_OF_ATTEMPT = 100_000  # of a small chat, with which a template's ways are found out
MAX_TEXT = 16 << 20  # characters of any text that is made, and of all that is written
MAX_VALUES = 500_000  # in one list or object, counted as often as they would be written
MAX_WIDTH = 10_000  # that a text is padded, indented or cut to
MAX_BITS = 100_000  # of an integer
MAX_SOURCE = 1 << 20  # characters of a template
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\d{5}|\*)|\{[^{}]*(?:\d{5}|:[^{}]*\{)")
_DEAR_FILTERS = frozenset({"urlize", "wordwrap", "striptags", "pprint", "xmlattr", "title", "wordcount"})
_MAX_DEAR = 1 << 16  # characters that these are given
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"})


class BudgetSpent(Exception):
    """The template did too much. The message is the end of a sentence about it."""


class _Left(threading.local):
    steps = MAX_STEPS  # outside of any rendering: what Jinja works out while it compiles


_left = _Left()


@contextmanager
def budget(steps: int) -> Iterator[None]:
    """Within it, so many steps may be done on this thread."""
    before, _left.steps = _left.steps, steps
    try:
        yield
    finally:
        _left.steps = before


def spend(steps: int = 1) -> None:
    """Raises BudgetSpent when there are none left."""
    _left.steps -= steps
    if _left.steps < 0:
        raise BudgetSpent("did more work than any conversation needs")


def text_of(length: int) -> None:
    """A text of so many characters is made."""
    if length > MAX_TEXT:
        raise BudgetSpent(f"made a text of more than {MAX_TEXT:,} characters")
    spend(1 + (length >> 6))


def look_at(*values: Any) -> None:
    """These are written, or gone through."""
    for value in values:
        if isinstance(value, str):
            spend(len(value) >> 10)
        elif isinstance(value, list | tuple | dict | set | frozenset | range):
            spend(_weight(value) >> 2)


def _weight(value: Any) -> int:
    """How many values, and hundreds of characters, would be written of this."""
    weight, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            weight += len(one) >> 7
        elif isinstance(one, list | tuple | set | frozenset | range):
            weight += len(one)
            if not isinstance(one, range):
                waiting += [item for item in one if not isinstance(item, int | float)]
        elif isinstance(one, Mapping):
            weight += 2 * len(one)
            waiting += one.values()
        if weight > MAX_VALUES:
            raise BudgetSpent(f"made a list or an object of more than {MAX_VALUES:,} values")
    return weight


def counted(items: Any) -> Any:
    """What a loop goes through."""
    spend(len(items) >> 2 if isinstance(items, str | list | tuple | dict | set | range) else 1)
    return items


def steps_for(*sent: Any) -> int:
    """How many steps a request's values are worth."""
    total, waiting = MAX_STEPS, [*sent]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        total += STEPS_PER_VALUE
    return total


def before_operation(operator: str, left: Any, right: Any) -> None:
    """Of `left operator right`, as far as it can make something large."""
    if isinstance(left, bool | int) and isinstance(right, bool | int):
        bits = left.bit_length()
        bits = bits * max(0, right) if operator == "**" else bits + right.bit_length()
        if bits > MAX_BITS and operator in ("*", "**"):
            raise BudgetSpent("made a number that is too large")
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        text_of(len(left) + len(right))
    elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _length(len(left) + len(right))
    elif operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(sequence, str):
                text_of(len(sequence) * max(0, times))
                spend(max(0, times) >> 2)
            elif isinstance(times, int) and isinstance(sequence, list | tuple):
                _length((len(sequence) + _weight(sequence)) * max(0, times))
    elif operator == "**" and isinstance(right, float | int) and abs(right) > 1000:
        raise BudgetSpent("raised a number to too high a power")
    elif operator == "%" and isinstance(left, str):
        _pattern(left)
        look_at(right)
        text_of(len(left) + 16 * MAX_WIDTH)


def before_format(pattern: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Of `str.format` and `str.format_map`."""
    _pattern(pattern)
    look_at(*args, *kwargs.values())


def _length(values: int) -> None:
    if values > MAX_VALUES:
        raise BudgetSpent(f"made a list of more than {MAX_VALUES:,} values")
    spend(1 + (values >> 6))


def _pattern(text: str) -> None:
    """A text that others are formatted into: no width in it may be large, or stand elsewhere."""
    if _WIDE.search(text):
        raise BudgetSpent("formatted a text to too great a width")


def before_call(name: str, text: str, args: tuple[Any, ...]) -> None:
    """Of a method of a text."""
    look_at(text, *args)
    if name in _PADDING:
        _width(args)
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _replaced(text, args[0], args[1])
    elif name == "join" and args:
        _joined(text, args[0])


def before_filter(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Of a filter. `args`: what it is given, without a context."""
    look_at(*args, *kwargs.values())
    given = args[0] if args else None
    if name in _PADDING:
        _width((*args[1:], *kwargs.values()))
        if name == "indent" and isinstance(given, str):
            text_of(len(given) + (given.count("\n") + 1) * max((_as_width(one) for one in args[1:2]), default=4))
    elif name == "replace" and len(args) >= 3 and all(isinstance(one, str) for one in args[:3]):
        _replaced(*args[:3])
    elif name == "join" and args:
        _joined(str(args[1]) if len(args) > 1 else "", given)
    elif name == "format" and isinstance(given, str):
        _pattern(given)
    elif name == "tojson":
        _width((*args[1:], *kwargs.values()))
    elif name in _DEAR_FILTERS and isinstance(given, str) and len(given) > _MAX_DEAR:
        raise BudgetSpent(f"gave the filter {name!r} a text of more than {_MAX_DEAR:,} characters")


def _as_width(value: Any) -> int:
    return len(value) if isinstance(value, str) else value if isinstance(value, int) else 0


def _width(args: Iterable[Any]) -> None:
    if any(_as_width(one) > MAX_WIDTH for one in args):
        raise BudgetSpent(f"padded a text to more than {MAX_WIDTH:,} characters")


def _replaced(text: str, old: str, new: str) -> None:
    times = text.count(old) if old else len(text) + 1
    text_of(len(text) + times * max(0, len(new) - len(old)))
    spend(times)


def _joined(separator: str, items: Any) -> None:
    if isinstance(items, list | tuple | dict | set):
        text_of(len(separator) * len(items) + sum(len(item) for item in items if isinstance(item, str)))


def after(result: Any) -> Any:
    """What an operation has made."""
    if isinstance(result, str):
        text_of(len(result))
    return result
