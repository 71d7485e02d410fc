"""Answers as JSON. A large one is put together and written on a thread, a piece at a time.

`json.dumps` of a large answer holds the interpreter's lock until it is through; in pieces, others run in between.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from starlette.responses import Response

from tokenline.aside import Aside

PIECE_VALUES = 4096
_NESTED = (dict, list)
BYTES_PER_VALUE = 16  # of an answer's values, on the whole: to compare them with bytes of text


async def json_answer(aside: Aside, values: int, make: Callable[[], Any]) -> Response:
    """What `make` gives, an answer of so many values, as a response. Raises Declined."""
    data = await aside.run_if_large(values * BYTES_PER_VALUE, lambda: encode(make()))
    return Response(data, media_type="application/json")


def encode(value: Any) -> bytes:
    """UTF-8 JSON without white space."""
    return "".join(_pieces(value)).encode()


def _pieces(value: Any) -> Iterator[str]:
    """The JSON of a value, in pieces of about `PIECE_VALUES` values at most."""
    if _values(value) <= PIECE_VALUES:
        yield _dumps(value)
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            yield f"{before}{_dumps(key)}:"
            yield from _pieces(item)
            before = ","
        yield "}"
    else:
        before = "["
        for items in _batches(value):
            yield before
            yield from _pieces(items[0]) if len(items) == 1 else (_dumps(items)[1:-1],)
            before = ","
        yield "]"


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The items in their order: single ones that are large, and runs that are small together."""
    start, values = 0, 0
    for at, item in enumerate(items):
        more = _values(item)
        if values + more > PIECE_VALUES and at > start:
            yield items[start:at]
            start, values = at, 0
        values += more
    yield items[start:]


def _values(value: Any) -> int:
    """How many values this has in all; where it is more than `PIECE_VALUES`, some number above."""
    count, waiting = 1, [value]
    while waiting and count <= PIECE_VALUES:
        one = waiting.pop()
        if isinstance(one, _NESTED):
            count += len(one)
            if count <= PIECE_VALUES:
                items = one.values() if isinstance(one, dict) else one
                waiting += [item for item in items if isinstance(item, _NESTED)]
    return count


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
