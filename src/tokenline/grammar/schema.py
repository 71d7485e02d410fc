"""A client's JSON schemas in the words that the grammar library enforces, or an error that names what it cannot.

The library (llguidance) reads most of JSON Schema 2020-12 strictly: what it knows and cannot do it refuses. The
preparation leaves out what says nothing of values (annotations), says in its words what it can do but does not know
(`propertyNames`, older drafts' forms, references by name, lookahead), and refuses by place what it cannot do, what it
would get wrong, and what is too large for it. Here is what concerns several schemas; `keywords` has what stands in one.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.closing import declared_names
from tokenline.grammar.errors import ConstraintError, impossible, shown, unsupported
from tokenline.grammar.keywords import Expressions, Keywords
from tokenline.grammar.lenient import Lenience
from tokenline.grammar.limits import MAX_LEVELS, MAX_NESTED, MAX_ONE_OF, MAX_SCHEMA_LENGTH, MAX_SCHEMAS
from tokenline.grammar.members import closable
from tokenline.grammar.numbers import multiples_fit
from tokenline.grammar.references import References
from tokenline.grammar.schema_values import REFERENCE, Values, without_endless


class Schemas:
    """Prepares schemas that are compiled together; `definitions` is theirs."""

    def __init__(self, expressions: Expressions, *, close_objects: bool, lenience: Lenience | None = None) -> None:
        """`close_objects`: an object that lists properties and does not say whether there may be others has none.
        `lenience`: of which schemas something may be left out, and what has been.
        """
        self.expressions = expressions
        self.lenience = lenience or Lenience()
        self._close_objects = close_objects
        self.definitions: dict[str, Any] = {}
        self.places: dict[int, Path] = {}  # of prepared schemas, by id
        # Whether characters may be written as \uXXXX. A name that is written so is not seen to be one that a schema
        # lists, so where other names are free, too, nothing may.
        self.escapes = True
        self.seen: set[Path] = set()  # places of schemas
        self._roots: list[Any] = []
        self._names: dict[tuple[Path, bool], str] = {}
        self._waiting: deque[tuple[str, Any, Path, References, bool]] = deque()
        self._one_ofs: list[tuple[dict[str, Any], Path]] = []
        self._multiples: set[float] = set()
        self._count = 0

    def add(self, schema: Any, path: Path = ()) -> Any:
        """Prepare a schema with all that it refers to. Raises ConstraintError, whose path begins with `path`."""
        self.seen.add(path)
        try:
            _check_size(schema, path)
        except ConstraintError as error:
            if not self.lenience.leave(error, self.seen):
                raise
            schema = True
        references = References(schema, path)
        prepared = self.inner(schema, path, references)
        while self._waiting:
            name, target, place, references, merged = self._waiting.popleft()
            self.definitions[name] = self.inner(target, place, references, merged=merged)
        self._roots.append(prepared)
        return prepared

    def finish(self) -> None:
        """To be called when all schemas have been added: what can only be seen of them together."""
        if not without_endless(self._roots, self.definitions) and self.definitions:  # else the library says it better
            raise impossible("cannot be fulfilled by any value, since it would have to contain itself.")
        values = Values(self.definitions)
        for prepared, path in self._one_ofs:
            try:
                _check_one_of(prepared["oneOf"], values, (*path, "oneOf"))
            except ConstraintError as error:  # lenient: any of them, which more values are
                if not self.lenience.covers(path):
                    raise
                self.lenience.note(error.path)
            prepared.setdefault("allOf", []).append({"anyOf": prepared.pop("oneOf")})

    # What `Keywords` asks

    def inner(self, schema: Any, path: Path, references: References, *, merged: bool = False, depth: int = 0) -> Any:
        """The prepared schema. `merged`: other schemas speak of the members of the same object. `depth`: how many
        schemas it stands in.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ConstraintError(path, f"must be an object, true or false (a JSON schema); got {shown(schema)}.")
        if depth > MAX_NESTED:
            return {"$ref": self._defined(schema, path, references, merged)}
        self.seen.add(path)
        while True:
            said, is_partial = self.lenience.without(schema, path)
            if said is True:
                return True
            try:
                base = references.base(schema)
                return self._prepared(said, path, references, base, merged or is_partial, depth)
            except ConstraintError as error:
                if not self.lenience.leave(error, self.seen):
                    raise

    def _prepared(
        self, schema: dict[str, Any], path: Path, references: References, base: str, merged: bool, depth: int
    ) -> Any:
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise unsupported(f"is one of more than {MAX_SCHEMAS:,} schemas.", *path)
        prepared = Keywords(self, schema, path, references, base, merged, depth).prepared()
        if isinstance(prepared, dict):
            self.places[id(prepared)] = path
        return prepared

    def definition(self, reference: str, base: str, references: References, at: Path, merged: bool) -> str:
        """The reference in prepared words. `at`: where it stands."""
        target, place = references.find(reference, base, at)
        return self._defined(target, place, references, merged)

    def _defined(self, target: Any, place: Path, references: References, merged: bool) -> str:
        if (place, merged) not in self._names:
            name = self._names[place, merged] = str(len(self._names))
            self._waiting.append((name, target, place, references, merged))
        return REFERENCE + self._names[place, merged]

    def one_of(self, prepared: dict[str, Any], path: Path) -> None:
        """This schema has `oneOf`, which is to be looked at when all that it refers to is known."""
        self._one_ofs.append((prepared, path))

    def multiple(self, step: float) -> bool:
        """Some number must be a multiple of this. False: that cannot be enforced beside the others."""
        if not multiples_fit({*self._multiples, step}):
            return False
        self._multiples.add(step)
        return True

    def closes(self, schema: Mapping[str, Any], merged: bool) -> bool:
        """Whether an object that does not say whether there may be other members has none."""
        return self._close_objects and not merged and closable(schema)

    def close_together(self, schema: Keywords) -> None:
        """Close an object that several schemas describe, and none says whether there may be other members."""
        if not self._close_objects:
            return
        names = declared_names(schema.given, schema.base, schema.references)
        if names is not None:
            listed = schema.made.get("properties", {})
            schema.made["properties"] = {**listed, **{name: True for name in names if name not in listed}}
            schema.made["additionalProperties"] = False


def _check_one_of(options: Sequence[Any], values: Values, path: Path) -> None:
    """That no value fulfils two of these, so that "one of" is "any of"."""
    if values.told_apart(options):
        return
    if len(options) > MAX_ONE_OF:
        raise unsupported(f"has more than {MAX_ONE_OF} schemas without a property to tell them apart.", *path)
    for (i, first), (k, second) in combinations(enumerate(options), 2):
        if not values.apart(first, second):
            raise unsupported(
                f"cannot be enforced: a value may fulfil both schema {i} and schema {k}. Use 'anyOf', or give them a "
                "property with different constants.",
                *path,
            )


def _check_size(schema: Any, path: Path) -> None:
    """Before anything recursive touches it."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_LEVELS:
            raise unsupported(f"is nested more than {MAX_LEVELS} levels deep.", *path)
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MAX_SCHEMA_LENGTH:
        raise unsupported(f"is longer than {MAX_SCHEMA_LENGTH:,} characters.", *path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConstraintError(path, "has half of a surrogate pair, which is no character.") from None
