"""Places in a request, and the error that names one. Used by every room; knows none of them.

Rooms raise a `FieldError` in their own terms. Whoever speaks to the client puts it into words: a protocol whose JSON
differs translates the paths first (`FieldError.text`), so the message names the field that the client wrote.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str | int, ...]  # from the root of the request: ("messages", 0, "content")


def dotted(path: Path) -> str:
    """OpenAI's notation of a place: messages[0].content[1].type"""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def json_pointer(path: Path) -> str:
    """The same place as an RFC 6901 JSON pointer: /messages/0/content/1/type"""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def pointer_parts(pointer: str) -> list[str]:
    """The names of an RFC 6901 JSON pointer; those of the whole ("") are none."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def shown(value: Any, limit: int = 60) -> str:
    """A JSON value as a short piece of an error message, of about `limit` characters at most."""
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "a number that is not finite"
    if isinstance(value, str) and len(value) > limit:
        value = value[:limit] + "…"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit + 3 else text[:limit] + "…"


class FieldError(Exception):
    """What is wrong with one value of a request.

    `path`: the value's place; () where no single place is at fault. `parts`: what is said of it, a sentence that begins
    after the field's name: texts and, where other fields are mentioned, their paths. `code`: the kind of fault for
    programs: "invalid_value", "invalid_type", "missing", "unsupported_value", "unsupported_parameter",
    "context_length_exceeded".

        FieldError(("n",), "cannot be combined with ", ("best_of",), ".")    ->  'n' cannot be combined with 'best_of'.
    """

    def __init__(self, path: Path, *parts: str | Path, code: str = "invalid_value"):
        super().__init__(path, *parts)
        self.path = path
        self.parts = parts
        self.code = code

    def __str__(self) -> str:
        return self.text()

    def __reduce__(self) -> tuple[object, ...]:  # Exception's own forgets keyword arguments
        return _restore, (type(self), self.path, self.parts, self.code)

    def text(self, place: Callable[[Path], str] = dotted) -> str:
        """The whole sentence. `place` writes a path as the reader knows it."""
        said = "".join(part if isinstance(part, str) else f"'{place(part)}'" for part in self.parts)
        return f"'{place(self.path)}' {said}" if self.path else said


def _restore(kind: type[FieldError], path: Path, parts: tuple[str | Path, ...], code: str) -> FieldError:
    return kind(path, *parts, code=code)


class Places:
    """How a protocol's own JSON spells the paths of a request: what stands elsewhere than its path says, and where.

    Immutable. Called with a path, it gives the path in the client's JSON; what it does not know is where it says.
    """

    def __init__(self, moved: Mapping[Path, Path] | None = None):
        """`moved`: paths (of a value or of all below it) to the client's; the longest that fits counts."""
        self._moved = dict(moved or {})

    def __call__(self, path: Path) -> Path:
        for length in range(len(path), 0, -1):
            if (place := self._moved.get(path[:length])) is not None:
                return place + path[length:]
        return path

    def text(self, fault: FieldError) -> str:
        """What is wrong, with the fields' names as the client wrote them."""
        return fault.text(lambda path: dotted(self(path)))


IDENTITY = Places()
