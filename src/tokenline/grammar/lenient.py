"""What of lenient schemas is left to the model: keywords that the grammar cannot enforce.

A schema is lenient where its client asked for no more than hosted APIs promise (a tool that is not strict). Leaving
out a keyword must let through more values, never fewer, so keywords that give others their meaning take those along.
"""

from collections.abc import Collection
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.members import closable
from tokenline.grammar.vocabulary import ABOUT, FORMS

# What a keyword's neighbours mean depends on it: without it they would forbid more.
_NEIGHBOURS = {
    "properties": ("additionalProperties",),
    "patternProperties": ("additionalProperties",),
    "prefixItems": ("items",),
    "items": ("additionalItems",),
    "if": ("then", "else"),
}
# Behind what could not be seen, what is left over cannot be told.
_LEFT_OVER = {"object": ("unevaluatedProperties",), "array": ("unevaluatedItems",)}
_COUNTS_MEMBERS = ("minProperties", "maxProperties")


class Lenience:
    """Which schemas are lenient, and what has been left out of them. Kept over several tries to compile them."""

    def __init__(self) -> None:
        self._roots: dict[Path, bool] = {}  # with whether they are lenient
        self._left: dict[Path, set[str]] = {}
        self._open: set[Path] = set()  # schemas that are left out as a whole
        self._notes: set[Path] = set()  # keywords that are enforced in part

    def add(self, root: Path, *, lenient: bool) -> None:
        """Whether the schema at this place, and all in it, may be left to the model where they cannot be enforced."""
        self._roots[root] = lenient

    def covers(self, path: Path) -> bool:
        """Whether what stands at this place is lenient. The innermost of the schemas that it stands in says it."""
        inside = [root for root in self._roots if path[: len(root)] == root]
        return bool(inside) and self._roots[max(inside, key=len)]

    def leave(self, error: ConstraintError, schemas: Collection[Path]) -> bool:
        """Leave out what an error is about. False if it is another kind of error, or nothing lenient.

        schemas: the places of all that are known to be schemas.
        """
        path = error.path
        if error.code != "unsupported_value" or not self.covers(path):
            return False
        size = next((size for size in range(len(path), -1, -1) if path[:size] in schemas), None)
        if size is None:
            return False
        place = path[:size]
        if size == len(path):
            if place in self._open:
                return False
            self._open.add(place)
            return True
        keyword, left = str(path[size]), self._left.setdefault(place, set())
        if keyword in left:
            return False
        left.add(keyword)
        return True

    def open_all(self, error: ConstraintError) -> bool:
        """Leave out whole lenient schemas: the one that an error is about, or all. False if that has been done, or
        would not help.
        """
        if error.code != "unsupported_value" or (error.path and not self.covers(error.path)):
            return False
        lenient = {root for root, is_lenient in self._roots.items() if is_lenient}
        about = {root for root in lenient if root and error.path[: len(root)] == root} or lenient
        if about <= self._open:
            return False
        self._open |= about
        return True

    def note(self, path: Path) -> None:
        """The keyword at this place is enforced in part."""
        self._notes.add(path)

    def without(self, schema: Any, path: Path) -> tuple[Any, bool]:
        """A schema without what has been left out of it, and whether others may say something of its members, so that
        it must not be closed.
        """
        if path in self._open:
            return True, False
        if path not in self._left or not isinstance(schema, dict):
            return schema, False
        left = set(self._left[path])
        for keyword in self._left[path]:
            if keyword == "items" and not isinstance(schema.get("items"), list):
                continue
            left.update(_NEIGHBOURS.get(keyword, ()))
        for keyword in self._left[path]:
            about = ABOUT.get(keyword)
            for kind, names in _LEFT_OVER.items():
                if about == kind or (about is None and keyword not in ("const", "enum", "type")):
                    left.update(names)
        is_partial = any(
            (ABOUT.get(keyword) == "object" and not (keyword in _COUNTS_MEMBERS and closable(schema)))
            or keyword in (*FORMS, "if", "not", "$dynamicRef", "$recursiveRef")
            for keyword in self._left[path]
        )
        return {keyword: value for keyword, value in schema.items() if keyword not in left}, is_partial

    @property
    def places(self) -> list[Path]:
        """What has been left to the model."""
        return sorted(
            {*self._open, *self._notes, *((*path, keyword) for path, left in self._left.items() for keyword in left)},
            key=lambda path: tuple(map(str, path)),
        )
