"""What one schema says, keyword by keyword, on its way from the client's words to the library's.

Here is what concerns any value, strings, numbers and arrays; `members` has what concerns objects.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError, shown, unsupported
from tokenline.grammar.limits import MAX_ITEMS, MAX_MULTIPLE, MAX_STRING, MAX_VALUE_LENGTH
from tokenline.grammar.members import prepare_members
from tokenline.grammar.numbers import LARGEST, has_multiple, inward, is_finite, representable, scaled, shorter
from tokenline.grammar.patterns import PatternError, whole_patterns
from tokenline.grammar.references import References
from tokenline.grammar.vocabulary import ABOUT, BOUNDS, FORMS, TYPES

FORMATS = frozenset("date time date-time duration email hostname ipv4 ipv6 uuid uri".split())  # others are annotations
_COUNTS = {
    **dict.fromkeys(("minLength", "maxLength"), MAX_STRING),
    **dict.fromkeys(("minItems", "maxItems", "minProperties", "maxProperties"), MAX_ITEMS),
}
_REFUSED = {
    "$dynamicRef": "dynamic references",
    "$recursiveRef": "dynamic references",
    "if": "conditions",
    "contains": "items that must occur",
    "dependentSchemas": "dependent properties",
}


class Expressions(Protocol):
    """What is asked of expressions for whole texts (`library.Library`)."""

    def matches(self, pattern: str, text: str) -> bool: ...
    def matches_others(self, pattern: str, texts: Sequence[str]) -> bool: ...


class Owner(Protocol):
    """What is asked of all schemas together (`schema.Schemas`)."""

    escapes: bool
    expressions: Expressions

    def inner(self, schema: Any, path: Path, references: References, *, merged: bool, depth: int) -> Any: ...
    def definition(self, reference: str, base: str, references: References, at: Path, merged: bool) -> str: ...
    def one_of(self, prepared: dict[str, Any], path: Path) -> None: ...
    def multiple(self, step: float) -> bool: ...
    def closes(self, schema: Mapping[str, Any], merged: bool) -> bool: ...
    def close_together(self, schema: "Keywords") -> None: ...


class Keywords:
    """One schema. `given`: what it says of values; `made`: the same in the library's words."""

    def __init__(
        self,
        owner: Owner,
        schema: dict[str, Any],
        path: Path,
        references: References,
        base: str,
        merged: bool,
        depth: int,
    ) -> None:
        self.owner = owner
        self.path = path
        self.references = references
        self._depth = depth
        self.base = base
        self._types = self._allowed_types(schema)
        kinds = {*self._types, "number"} if "integer" in self._types else {*self._types}
        self.given = {key: value for key, value in schema.items() if ABOUT.get(key) is None or ABOUT[key] in kinds}
        self.made: dict[str, Any] = {}
        # Whether other schemas say something of the same object's members than what stands here.
        forms = sum(
            len(self.given[form]) if isinstance(self.given[form], list) and form == "allOf" else 1
            for form in FORMS
            if form in self.given
        )
        self._is_part = merged
        self.merged = merged or forms + any(ABOUT.get(key) == "object" for key in self.given) > 1

    def prepared(self) -> Any:
        """The schema in the library's words; true or false where that is all it says."""
        for keyword, meaning in _REFUSED.items():
            if keyword in self.given and not self._demands_nothing(keyword):
                raise self.unsupported(f"cannot be enforced: {meaning} are not known to the grammar.", keyword)
        if "type" in self.given:
            self.made["type"] = self.given["type"]
        members = False
        for keyword in self.given:  # their order decides the order of members
            if keyword == "$ref":
                self.made["$ref"] = self._reference(self.given["$ref"])
            elif keyword in ("const", "enum"):
                self._listed(keyword)
            elif keyword in FORMS:
                self._combined(keyword)
            elif ABOUT.get(keyword) == "object" and not members:
                members = True
                prepare_members(self)
        if "object" in self._types and self.merged and not self._is_part:
            self.owner.close_together(self)
        self._string()
        self._number()
        self._array()
        if "not" in self.given and not self._negation():
            return False
        return self.made or True

    # For this module and `members`

    def inner(self, schema: Any, *place: str | int, merged: bool = False) -> Any:
        """A prepared schema that stands in this one."""
        return self.owner.inner(schema, (*self.path, *place), self.references, merged=merged, depth=self._depth + 1)

    def patterns(self, pattern: Any, *place: str | int) -> list[str]:
        """Expressions that a whole text must match, all of them, to be found by a pattern."""
        if not isinstance(pattern, str):
            raise self.invalid(f"must be a string; got {shown(pattern)}.", *place)
        try:
            return whole_patterns(pattern, search=True)
        except PatternError as error:
            raise self.unsupported(f"{error}.", *place) from None

    def counts(self, *keywords: str) -> None:
        """Take over these counts, where they are given."""
        for keyword in keywords:
            if keyword in self.given:
                self.made[keyword] = self._count(keyword)

    def invalid(self, reason: str, *place: str | int) -> ConstraintError:
        return ConstraintError((*self.path, *place), reason)

    def unsupported(self, reason: str, *place: str | int) -> ConstraintError:
        return unsupported(reason, *self.path, *place)

    # Any value

    def _allowed_types(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        if "type" not in schema:
            return TYPES
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for name in names:
            if name not in TYPES:
                raise self.invalid(f"must be one of {', '.join(TYPES)}, or a list of them; got {shown(name)}.", "type")
        if not names:
            raise self.invalid("allows no type.", "type")
        return tuple(names)

    def _demands_nothing(self, keyword: str) -> bool:
        """Whether a keyword that cannot be enforced allows every value here."""
        if keyword == "if":
            return "then" not in self.given and "else" not in self.given
        if keyword == "contains":
            return self.given.get("minContains") == 0 and "maxContains" not in self.given
        return self.given[keyword] == {}

    def _reference(self, reference: Any) -> str:
        if not isinstance(reference, str):
            raise self.invalid(f"must be a string; got {shown(reference)}.", "$ref")
        return self.owner.definition(reference, self.base, self.references, (*self.path, "$ref"), self.merged)

    def _listed(self, keyword: str) -> None:
        values = self.given[keyword]
        if keyword == "enum" and (not isinstance(values, list) or not values):
            raise self.invalid("must be a list of at least one value.", "enum")
        for index, value in enumerate(values) if keyword == "enum" else [(None, values)]:
            place = (keyword,) if index is None else (keyword, index)
            if not representable(value):
                raise self.unsupported("has a number that 64-bit floating point cannot hold.", *place)
            if len(json.dumps(value, ensure_ascii=False)) > MAX_VALUE_LENGTH:
                raise self.unsupported(f"is longer than {MAX_VALUE_LENGTH:,} characters.", *place)
        self.made[keyword] = values

    def _combined(self, keyword: str) -> None:
        options = self.given[keyword]
        if not isinstance(options, list) or not options:
            raise self.invalid("must be a list of at least one schema.", keyword)
        made = [self.inner(option, keyword, index, merged=self.merged) for index, option in enumerate(options)]
        if keyword == "oneOf":
            made = [option for option in made if option is not False] or [False]
            self.owner.one_of(self.made, self.path)
        self.made[keyword] = made

    def _negation(self) -> bool:
        """Take types away, which is all that negation can be made of. False if no value is left."""
        negated = self.given["not"]
        if isinstance(negated, bool) or negated == {}:
            return negated is False
        if isinstance(negated, dict) and list(negated) == ["type"]:
            names = negated["type"] if isinstance(negated["type"], list) else [negated["type"]]
            if all(name in TYPES for name in names) and ("integer" not in names or "number" in names):
                left = [
                    name for name in self._types if name not in names and not (name == "integer" and "number" in names)
                ]
                if "number" in left:
                    left = [name for name in left if name != "integer"]
                self.made["type"] = left
                return bool(left)
        raise self.unsupported("cannot be enforced: the grammar knows negation of types only.", "not")

    # Values of one type

    def _string(self) -> None:
        self.counts("minLength", "maxLength")
        if "pattern" in self.given:
            first, *more = self.patterns(self.given["pattern"], "pattern")
            self.made["pattern"] = f"^{first}$"
            others = [name for name in self._types if name != "string"]
            for pattern in more:
                part: dict[str, Any] = {"type": "string", "pattern": f"^{pattern}$"}
                if others:
                    part = {"anyOf": [part, {"type": others}]}
                self.made.setdefault("allOf", []).append(part)
        if self.given.get("format") in FORMATS:
            self.made["format"] = self.given["format"]

    def _number(self) -> None:
        given = dict(self.given)
        for strict, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(given.get(strict), bool) and given.pop(strict) and plain in given:  # draft 4
                given[strict] = given.pop(plain)
        for keyword in BOUNDS:
            if keyword in given:
                bound = inward(self._finite(keyword, given[keyword]), is_minimum=keyword.endswith("inimum"))
                if bound is None:
                    raise self.unsupported(f"is beyond {LARGEST:,}, up to which it can be enforced.", keyword)
                self.made[keyword] = bound
        if "multipleOf" in given:
            step = self._finite("multipleOf", given["multipleOf"])
            if step <= 0:
                raise self.invalid(f"must be greater than 0; got {shown(step)}.", "multipleOf")
            if scaled(step) is None:
                raise self.unsupported(
                    f"has too many digits: up to {MAX_MULTIPLE:,} units of the last one can be enforced.", "multipleOf"
                )
            if not self.owner.multiple(step):
                raise self.unsupported("is too different from other ones to be enforced beside them.", "multipleOf")
            self.made["multipleOf"] = step
            self._check_multiples(step)
        self._add_shorter_numbers()

    def _add_shorter_numbers(self) -> None:
        bounds = {keyword: self.made[keyword] for keyword in BOUNDS if keyword in self.made}
        least = max((bounds[key] for key in bounds if key.endswith("inimum")), default=-LARGEST)
        most = min((bounds[key] for key in bounds if key.endswith("aximum")), default=LARGEST)
        found = [number for bound in bounds.values() for number in shorter(bound) if least < number < most]
        if not found or "number" not in self._types:
            return
        for keyword in bounds:
            del self.made[keyword]
        options: list[Any] = [{"type": "number", **bounds}, {"enum": found}]
        if others := [name for name in self._types if name not in ("number", "integer")]:
            options.append({"type": others})
        self.made.setdefault("allOf", []).append({"anyOf": options})

    def _check_multiples(self, step: float) -> None:
        """Where no multiple lies between the bounds the library would see it only when it is too late to choose."""
        bounds = {keyword: self.made[keyword] for keyword in BOUNDS if keyword in self.made}
        if has_multiple(bounds, step, whole="number" not in self._types):
            return
        others = [name for name in self._types if name not in ("number", "integer")]
        for keyword in (*bounds, "multipleOf"):
            del self.made[keyword]
        if others:
            self.made["type"] = others
        else:
            self.made["enum"] = []

    def _finite(self, keyword: str, value: Any) -> float:
        if isinstance(value, bool) or not is_finite(value):
            raise self.invalid(f"must be a number; got {shown(value)}.", keyword)
        return value

    def _count(self, keyword: str) -> int:
        value = self.given[keyword]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.invalid(f"must be an integer of at least 0; got {shown(value)}.", keyword)
        if value > _COUNTS[keyword]:
            raise self.unsupported(f"is {value:,}; up to {_COUNTS[keyword]:,} can be enforced.", keyword)
        return value

    def _array(self) -> None:
        given, made = self.given, self.made
        self.counts("minItems", "maxItems")
        if given.get("uniqueItems") is True and made.get("maxItems", 2) > 1:
            raise self.unsupported("cannot be enforced: the grammar cannot compare items.", "uniqueItems")
        first, rest = "prefixItems", "items"
        if isinstance(given.get("items"), list):  # up to draft 2019-09
            first, rest = "items", "additionalItems"
        if first in given:
            if not isinstance(given[first], list):
                raise self.invalid(f"must be a list of schemas; got {shown(given[first])}.", first)
            made["prefixItems"] = [self.inner(part, first, index) for index, part in enumerate(given[first])]
        if rest in given:
            made["items"] = self.inner(given[rest], rest)
        if given.get("unevaluatedItems", True) is not True:
            if any(form in given for form in (*FORMS, "contains", "if", "not")):
                raise self.unsupported("cannot be enforced beside other schemas for the same list.", "unevaluatedItems")
            if "items" not in made:
                made["items"] = self.inner(given["unevaluatedItems"], "unevaluatedItems")
