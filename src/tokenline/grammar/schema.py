"""A client's JSON schema in the words that the grammar library enforces, or an error that names what it cannot.

The library (llguidance) reads most of JSON Schema 2020-12 strictly: what it knows and cannot do it refuses. This
preparation leaves out what says nothing of values (annotations), says in its words what it can do but does not know
(`propertyNames`, older drafts' forms, references by name, lookahead), and refuses by place what it cannot do, what it
would get wrong, and what is too large for it:

- A member's name may be escaped (`\\u0061` for `a`), which it overlooks where other members are free: then escapes are
  left out (`Schemas.escapes`).
- Free members may come twice, so `minProperties` cannot count them.
- Numbers are IEEE doubles in it, and `multipleOf` has 32 bits.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.patterns import PatternError, whole_patterns
from tokenline.grammar.references import References
from tokenline.grammar.schema_values import REFERENCE, Values, without_endless

MAX_SCHEMAS = 10_000  # schemas in one description, definitions counted as often as they are used differently
MAX_DEPTH = 100  # schemas in schemas
MAX_BYTES = 512 * 1024  # of a schema as JSON text
MAX_VALUE_BYTES = 16 * 1024  # of one const, or one value of an enum
MAX_PATTERNS = 20  # patternProperties of one object: each is compared with each
MAX_ITEMS = 5_000  # minItems, maxItems
MAX_LENGTH = 50_000  # minLength, maxLength
MAX_MULTIPLE = 10_000  # multipleOf, in units of its last digit
MAX_ONE_OF = 200  # each is compared with each

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
FORMATS = frozenset("date time date-time duration email hostname ipv4 ipv6 uuid uri".split())  # others are annotations
_COUNTS = {
    **dict.fromkeys(("minLength", "maxLength"), MAX_LENGTH),
    **dict.fromkeys(("minItems", "maxItems"), MAX_ITEMS),
    **dict.fromkeys(("minProperties", "maxProperties"), MAX_ITEMS),
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_TYPE = {  # which type a keyword is about; the others say nothing of values of other types
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys((*_BOUNDS, "multipleOf"), "number"),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties"), "object"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), "object"),
}
_REFUSED = {
    "$dynamicRef": "dynamic references",
    "$recursiveRef": "dynamic references",
    "if": "conditions",
    "contains": "items that must occur",
    "dependentSchemas": "dependent properties",
}
_FORMS = ("allOf", "anyOf", "oneOf", "$ref")  # what is said of the same value elsewhere

Matches = Callable[[str, str], bool]  # whether an expression for whole texts matches a text


class Schemas:
    """Prepares schemas that are compiled together; `definitions` is theirs."""

    def __init__(self, matches: Matches, *, close_objects: bool) -> None:
        """`close_objects`: an object that lists properties and does not say whether there may be others has none."""
        self._matches = matches
        self._close = close_objects
        self.definitions: dict[str, Any] = {}
        self.escapes = True  # whether characters may be written as \uXXXX
        self.places: dict[int, Path] = {}  # of prepared schemas, by id
        self._roots: list[Any] = []
        self._names: dict[tuple[Path, bool], str] = {}
        self._waiting: deque[tuple[str, Any, Path, References, bool]] = deque()
        self._one_ofs: list[tuple[dict[str, Any], Path]] = []
        self._multiples: set[float | int] = set()
        self._count = 0

    def add(self, schema: Any, path: Path = ()) -> Any:
        """Prepare a schema with all that it refers to. Raises ConstraintError, whose path begins with `path`."""
        _check_size(schema, path)
        references = References(schema, path)
        prepared = self._prepared(schema, path, references, False, 0)
        while self._waiting:
            name, target, place, references, merged = self._waiting.popleft()
            self.definitions[name] = self._prepared(target, place, references, merged, 0)
        self._roots.append(prepared)
        return prepared

    def finish(self) -> None:
        """To be called when all schemas have been added: what can only be seen of them together."""
        if not without_endless(self._roots, self.definitions):
            raise ConstraintError(
                (), "cannot be fulfilled by any value, since it would have to contain itself.", code="unsupported_value"
            )
        values = Values(self.definitions)
        for prepared, path in self._one_ofs:
            options = prepared["oneOf"]
            for (i, first), (k, second) in combinations(enumerate(options), 2):
                if not values.apart(first, second):
                    raise ConstraintError(
                        (*path, "oneOf"),
                        f"cannot be enforced: a value may fulfil both schema {i} and schema {k}. Use 'anyOf', or give "
                        "them a property with different constants.",
                        code="unsupported_value",
                    )
            prepared.setdefault("allOf", []).append({"anyOf": prepared.pop("oneOf")})
        _check_multiples(self._multiples)

    def _prepared(self, schema: Any, path: Path, references: References, merged: bool, depth: int) -> Any:
        """`merged`: other schemas speak of the members of the same object."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ConstraintError(path, f"must be an object, true or false (a JSON schema); got {shown(schema)}.")
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise ConstraintError(path, f"is one of more than {MAX_SCHEMAS:,} schemas.", code="unsupported_value")
        if depth > MAX_DEPTH:
            raise ConstraintError(path, f"is nested more than {MAX_DEPTH} schemas deep.", code="unsupported_value")
        prepared = _Preparation(self, schema, path, references, merged, depth).prepared()
        if isinstance(prepared, dict):
            self.places[id(prepared)] = path
        return prepared

    def definition(self, reference: str, base: str, references: References, at: Path, merged: bool) -> str:
        """The prepared schema's name for what a reference leads to."""
        target, place = references.find(reference, base, at)
        if (place, merged) not in self._names:
            name = str(len(self._names))
            self._names[place, merged] = name
            self._waiting.append((name, target, place, references, merged))
        return REFERENCE + self._names[place, merged]

    def matches(self, patterns: Sequence[str], text: str) -> bool:
        return all(self._matches(pattern, text) for pattern in patterns)

    def one_of(self, prepared: dict[str, Any], path: Path) -> None:
        self._one_ofs.append((prepared, path))

    def multiple(self, value: float) -> None:
        self._multiples.add(value)

    def closes(self, schema: Mapping[str, Any], merged: bool) -> bool:
        """Whether an object that does not say whether there may be other members has none."""
        return self._close and not merged and isinstance(schema.get("properties"), dict)


class _Preparation:
    """One schema on its way from the client's words to the library's."""

    def __init__(
        self, owner: Schemas, schema: dict[str, Any], path: Path, references: References, merged: bool, depth: int
    ) -> None:
        self._owner = owner
        self._path = path
        self._references = references
        self._depth = depth
        self._types = self._allowed_types(schema)
        self._given = {key: value for key, value in schema.items() if self._says_something(key)}
        self._base = references.base(schema)
        others = sum(len(self._given.get(form) or ()) if form == "allOf" else form in self._given for form in _FORMS)
        members = any(_OF_TYPE.get(key) == "object" for key in self._given)
        self._merged = merged or others + members > 1  # what others say of the same object is said apart from this
        self._made: dict[str, Any] = {}

    def _says_something(self, keyword: str) -> bool:
        about = _OF_TYPE.get(keyword)
        return about is None or about in self._types or (about == "number" and "integer" in self._types)

    def _allowed_types(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        if "type" not in schema:
            return TYPES
        given = schema["type"]
        names = tuple(given) if isinstance(given, list) else (given,)
        for name in names:
            if not (isinstance(name, str) and name in TYPES):
                raise self._invalid("type", f"must be one of {', '.join(TYPES)}, or a list of them; got {shown(name)}.")
        if not names:
            raise self._invalid("type", "allows no type.")
        return names

    def prepared(self) -> Any:
        given, made = self._given, self._made
        for keyword, meaning in _REFUSED.items():
            if keyword in given and not self._is_void(keyword):
                raise self._unsupported(keyword, f"cannot be enforced: {meaning} are not known to the grammar.")
        if "type" in given:
            made["type"] = given["type"]
        # What the library calls applicators stands where the schema has it: it decides the order of members.
        for keyword in given:
            if keyword == "$ref":
                made["$ref"] = self._reference(given["$ref"])
            elif keyword in ("const", "enum"):
                self._listed(keyword)
            elif keyword in ("allOf", "anyOf", "oneOf"):
                self._combined(keyword)
            elif keyword in ("properties", "required", "patternProperties", "additionalProperties"):
                self._object()
        if "not" in given and self._negation() is False:
            return False
        self._string()
        self._number()
        self._array()
        self._object()
        return made if made else True

    def _is_void(self, keyword: str) -> bool:
        """Whether a keyword that cannot be enforced demands nothing here."""
        value = self._given[keyword]
        if keyword == "if":
            return "then" not in self._given and "else" not in self._given
        if keyword == "contains":
            return self._given.get("minContains") == 0 and "maxContains" not in self._given
        return value == {}

    # What is said of any value

    def _reference(self, reference: Any) -> str:
        if not isinstance(reference, str):
            raise self._invalid("$ref", f"must be a string; got {shown(reference)}.")
        return self._owner.definition(reference, self._base, self._references, (*self._path, "$ref"), self._merged)

    def _listed(self, keyword: str) -> None:
        values = self._given[keyword]
        if keyword == "enum":
            if not isinstance(values, list) or not values:
                raise self._invalid("enum", "must be a list of at least one value.")
        else:
            values = [values]
        for index, value in enumerate(values):
            place = ("enum", index) if keyword == "enum" else ("const",)
            if not _representable(value):
                raise self._unsupported(*place, reason="has a number beyond the 53 bits that can be enforced.")
            if len(json.dumps(value)) > MAX_VALUE_BYTES:
                raise self._unsupported(*place, reason=f"is longer than {MAX_VALUE_BYTES:,} bytes.")
        self._made[keyword] = self._given[keyword]

    def _combined(self, keyword: str) -> None:
        options = self._given[keyword]
        if not isinstance(options, list) or not options:
            raise self._invalid(keyword, "must be a list of at least one schema.")
        made = [self._inner(option, keyword, index, merged=self._merged) for index, option in enumerate(options)]
        if keyword != "oneOf":
            self._made[keyword] = made
            return
        made = [option for option in made if option is not False]
        if len(made) > MAX_ONE_OF:
            raise self._unsupported("oneOf", f"has more than {MAX_ONE_OF} schemas; use 'anyOf'.")
        self._made["oneOf"] = made or [False]
        self._owner.one_of(self._made, self._path)

    def _negation(self) -> bool | None:
        """Negation of nothing, of everything and of types. False: no value is left."""
        negated = self._given["not"]
        if negated is False:
            return None
        if negated is True or negated == {}:
            return False
        if (
            isinstance(negated, dict)
            and list(negated) == ["type"]
            and set(negated) | set(self._given) <= {"type", "not"}
        ):
            names = negated["type"] if isinstance(negated["type"], list) else [negated["type"]]
            if set(names) <= set(TYPES) and ("integer" not in names or "number" in names):
                without = {*names, "integer"} if "number" in names else set(names)
                left = [name for name in self._types if name not in without]
                left = [name for name in left if name != "integer" or "number" not in left]
                self._made["type"] = left
                return None if left else False
        raise self._unsupported("not", "cannot be enforced: negation is known to the grammar for types only.")

    # What is said of values of one type

    def _string(self) -> None:
        self._counts("minLength", "maxLength")
        if "pattern" in self._given:
            patterns = self._patterns(self._given["pattern"], "pattern")
            self._made["pattern"] = f"^{patterns[0]}$"
            if patterns[1:]:
                more = [{"type": "string", "pattern": f"^{pattern}$"} for pattern in patterns[1:]]
                rest = [name for name in self._types if name != "string"]
                self._made.setdefault("allOf", []).extend(
                    {"anyOf": [one, {"type": rest}]} if rest else one for one in more
                )
        if self._given.get("format") in FORMATS:
            self._made["format"] = self._given["format"]

    def _patterns(self, pattern: Any, *place: str | int) -> list[str]:
        if not isinstance(pattern, str):
            raise self._invalid(*place, reason=f"must be a string; got {shown(pattern)}.")
        try:
            return whole_patterns(pattern, search=True)
        except PatternError as error:
            raise self._unsupported(*place, reason=f"{error}.") from None

    def _number(self) -> None:
        given = dict(self._given)
        for strict, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(given.get(strict), bool) and given.pop(strict) and plain in given:  # draft 4
                given[strict] = given.pop(plain)
        for keyword in _BOUNDS:
            if keyword in given:
                self._made[keyword] = _inward(self._numeric(keyword, given[keyword]), up="inimum" in keyword)
        if "multipleOf" in given:
            step = self._numeric("multipleOf", given["multipleOf"])
            if step <= 0:
                raise self._invalid("multipleOf", f"must be greater than 0; got {shown(step)}.")
            if _scaled(step) is None:
                raise self._unsupported(
                    "multipleOf",
                    f"has more digits than can be enforced; at most {MAX_MULTIPLE:,} units of the last one.",
                )
            self._owner.multiple(step)
            self._made["multipleOf"] = step

    def _numeric(self, keyword: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._invalid(keyword, f"must be a number; got {shown(value)}.")
        return value

    def _counts(self, *keywords: str) -> None:
        for keyword in keywords:
            if (count := self._count(keyword)) is not None:
                self._made[keyword] = count

    def _count(self, keyword: str) -> int | None:
        value = self._given.get(keyword)
        if keyword not in self._given:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._invalid(keyword, f"must be an integer of at least 0; got {shown(value)}.")
        if value > _COUNTS[keyword]:
            raise self._unsupported(keyword, f"is {value:,}; up to {_COUNTS[keyword]:,} can be enforced.")
        return value

    def _array(self) -> None:
        given, made = self._given, self._made
        self._counts("minItems", "maxItems")
        if given.get("uniqueItems") is True and made.get("maxItems", 2) > 1:
            raise self._unsupported("uniqueItems", "cannot be enforced: the grammar cannot compare items.")
        first, rest = "prefixItems", "items"
        if isinstance(given.get("items"), list):  # up to draft 2019-09
            first, rest = "items", "additionalItems"
        if first in given:
            if not isinstance(given[first], list):
                raise self._invalid(first, f"must be a list of schemas; got {shown(given[first])}.")
            made["prefixItems"] = [self._inner(part, first, index) for index, part in enumerate(given[first])]
        if rest in given:
            made["items"] = self._inner(given[rest], rest)
        if "unevaluatedItems" in given and given["unevaluatedItems"] is not True:
            if any(form in given for form in (*_FORMS, "contains", "if", "not")):
                raise self._unsupported(
                    "unevaluatedItems", "cannot be enforced beside other schemas for the same list."
                )
            if "items" not in made:
                made["items"] = self._inner(given["unevaluatedItems"], "unevaluatedItems")

    _object_done = False

    def _object(self) -> None:
        if self._object_done:
            return
        self._object_done = True
        given, made = self._given, self._made
        if "properties" in given:
            properties = self._named("properties")
            made["properties"] = {name: self._inner(part, "properties", name) for name, part in properties.items()}
        required = self._required()
        if required:
            made["required"] = required
        if "patternProperties" in given:
            self._pattern_properties()
        if "additionalProperties" in given:
            made["additionalProperties"] = self._inner(given["additionalProperties"], "additionalProperties")
        self._unevaluated_properties()
        if "propertyNames" in given:
            self._property_names(given["propertyNames"])
        elif not {"additionalProperties", "patternProperties"} & set(made) and self._owner.closes(given, self._merged):
            made["properties"] |= {name: True for name in required if name not in made["properties"]}
            made["additionalProperties"] = False
        self._counts("minProperties", "maxProperties")
        is_open = made.get("additionalProperties", True) is not False
        if (is_open and (made.get("properties") or required)) or made.get("patternProperties"):
            self._owner.escapes = False
        free = is_open or made.get("patternProperties")
        if free and made.get("minProperties", 0) > len(required) + 1:
            raise self._unsupported(
                "minProperties", "cannot be enforced: the grammar cannot tell whether a member comes twice."
            )

    def _named(self, keyword: str) -> dict[str, Any]:
        value = self._given[keyword]
        if not isinstance(value, dict):
            raise self._invalid(keyword, f"must be an object of schemas; got {shown(value)}.")
        return value

    def _required(self) -> list[str]:
        required = self._given.get("required", [])
        if isinstance(required, bool):  # draft 3, inside of a property
            required = []
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._invalid("required", "must be a list of strings.")
        needed = dict.fromkeys(required)
        for keyword in ("dependentRequired", "dependencies"):
            if keyword in self._given:
                for name, others in self._named(keyword).items():
                    if others == [] or others is True or others == {}:
                        continue
                    if name not in needed or not isinstance(others, list):
                        raise self._unsupported(
                            keyword, name, reason="cannot be enforced: the grammar does not know dependent properties."
                        )
                    needed.update(dict.fromkeys(others))
        return list(needed)

    def _pattern_properties(self) -> None:
        patterns = self._named("patternProperties")
        if len(patterns) > MAX_PATTERNS:
            raise self._unsupported("patternProperties", f"has more than {MAX_PATTERNS} expressions.")
        made = {}
        for pattern, part in patterns.items():
            whole = self._patterns(pattern, "patternProperties", pattern)
            if whole[1:]:
                raise self._unsupported("patternProperties", pattern, reason="has lookahead, which cannot be enforced.")
            made[f"^{whole[0]}$"] = self._inner(part, "patternProperties", pattern)
        if made:
            self._made["patternProperties"] = made

    def _unevaluated_properties(self) -> None:
        given = self._given
        if "unevaluatedProperties" not in given or given["unevaluatedProperties"] is True:
            return
        if any(form in given for form in (*_FORMS, "dependentSchemas", "if", "not")):
            raise self._unsupported(
                "unevaluatedProperties", "cannot be enforced beside other schemas for the same object."
            )
        if "additionalProperties" not in self._made:
            part = self._inner(given["unevaluatedProperties"], "unevaluatedProperties")
            self._made["additionalProperties"] = part

    def _property_names(self, names: Any) -> None:
        """Names are a matter of `properties` and `patternProperties`, so what is demanded of them is said there."""
        made = self._made
        place = ("propertyNames",)
        for _ in range(MAX_DEPTH):
            if not (isinstance(names, dict) and isinstance(names.get("$ref"), str) and len(names) == 1):
                break
            names, _ = self._references.find(names["$ref"], self._references.base(names), (*self._path, *place))
        if names is True:
            return
        if names is False:
            names = {"enum": []}
        if not isinstance(names, dict):
            raise self._invalid(*place, reason=f"must be an object, true or false (a JSON schema); got {shown(names)}.")
        said = {key for key in names if key in _OF_TYPE or key in ("enum", "const", "not", "if", *_FORMS)}
        said = {key for key in said if _OF_TYPE.get(key, "string") == "string" and key != "format"}
        if "type" in names and "string" not in (names["type"], *_as_list(names["type"])):
            names, said = {"enum": []}, {"enum"}
        if not said:
            return
        if said <= {"enum", "const"}:
            listed = [names["const"]] if "const" in names else names["enum"]
            texts = [name for name in listed if isinstance(name, str)]
            whole = (
                "(?:" + "|".join("".join(map(_in_pattern, name)) for name in texts) + ")"
                if texts
                else "[^\\x{0}-\\x{10ffff}]"
            )
        elif said == {"pattern"}:
            found = self._patterns(names["pattern"], *place, "pattern")
            if found[1:]:
                raise self._unsupported(*place, reason="has lookahead, which cannot be enforced.")
            whole, texts = found[0], None
        elif said <= {"minLength", "maxLength"}:
            inner = _Preparation(
                self._owner, {"type": "string", **names}, (*self._path, *place), self._references, False, 0
            )
            inner._string()
            whole, texts = f"(?s:.{{{inner._made.get('minLength', 0)},{inner._made.get('maxLength', '')}}})", None
        else:
            raise self._unsupported(
                *place, reason="cannot be enforced: only an expression, listed names or a length can be demanded."
            )
        if made.get("patternProperties"):
            raise self._unsupported(*place, reason="cannot be enforced beside 'patternProperties'.")
        properties = made.get("properties", {})
        for name in properties:
            if not (name in texts if texts is not None else self._owner.matches([whole], name)):
                properties[name] = False
        others = made.get("additionalProperties", True)
        if others is False:
            return
        if any(part is not False for part in properties.values()) and others is not True:
            raise self._unsupported(*place, reason="cannot be enforced beside 'properties' and 'additionalProperties'.")
        if texts is None or texts:
            made["patternProperties"] = {f"^{whole}$": others}
        made["additionalProperties"] = False

    # Helpers

    def _inner(self, schema: Any, *place: str | int, merged: bool = False) -> Any:
        return self._owner._prepared(schema, (*self._path, *place), self._references, merged, self._depth + 1)

    def _invalid(self, *place: str | int, reason: str | None = None) -> ConstraintError:
        return self._error(place, reason, "invalid_value")

    def _unsupported(self, *place: str | int, reason: str | None = None) -> ConstraintError:
        return self._error(place, reason, "unsupported_value")

    def _error(self, place: tuple[str | int, ...], reason: str | None, code: str) -> ConstraintError:
        if reason is None:
            *place_, reason_ = place
            return ConstraintError((*self._path, *place_), str(reason_), code=code)
        return ConstraintError((*self._path, *place), reason, code=code)


def shown(value: Any) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _in_pattern(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"


def _check_size(schema: Any, path: Path) -> None:
    """Before anything recursive touches it."""
    waiting, depth = [schema], 0
    while waiting:
        depth += 1
        if depth > 4 * MAX_DEPTH:
            raise ConstraintError(path, f"is nested more than {4 * MAX_DEPTH} levels deep.", code="unsupported_value")
        waiting = [
            inner
            for value in waiting
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if len(json.dumps(schema, ensure_ascii=False, default=str)) > MAX_BYTES:
        raise ConstraintError(path, f"is longer than {MAX_BYTES:,} characters.", code="unsupported_value")


def _representable(value: Any) -> bool:
    """Whether all numbers in a value are the same as IEEE doubles."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    if isinstance(value, int):
        return abs(value) <= 2**53
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) <= 2**53
    return all(map(_representable, value.values() if isinstance(value, dict) else value))


def _inward(value: float, *, up: bool) -> float:
    """A bound that the library's doubles hold: where they are too coarse, the next one that allows no value more."""
    if isinstance(value, float):
        return value
    try:
        near = float(value)
    except OverflowError:
        return math.copysign(1e300, value)
    if near == value:
        return value
    if up and near < value:
        near = math.nextafter(near, math.inf)
    elif not up and near > value:
        near = math.nextafter(near, -math.inf)
    return near


def _scaled(step: float) -> tuple[int, int] | None:
    """A multiple as an integer of so many decimal places; None if it is too long."""
    value, places = float(step), 0
    while not value.is_integer():
        value, places = value * 10, places + 1
        if places > 9 or value > MAX_MULTIPLE:
            return None
    return (int(value), places) if value <= MAX_MULTIPLE else None


def _check_multiples(multiples: set[float | int]) -> None:
    """The library multiplies them with 32 bits where they meet in one number."""
    found = [pair for step in multiples if (pair := _scaled(step)) is not None]
    most = max((places for _, places in found), default=0)
    units = [value * 10 ** (most - places) for value, places in found]
    if len(units) > 1 and math.lcm(*units) * max(units) >= 2**32:
        raise ConstraintError((), "has values of 'multipleOf' that are too different to be enforced together.")
