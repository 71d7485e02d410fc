"""Which values a prepared schema allows, as far as its surface shows: types, listed values, and whether there are any.

Prepared schemas (`schema.py`) are JSON schemas of fewer words; their references point to definitions by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})  # integers are numbers
REFERENCE = "#/$defs/"
_MAX_PASSES = 50

Definitions = Mapping[str, Any]


def resolved(schema: Any, definitions: Definitions) -> Any:
    """What a schema that is nothing but a reference leads to; True (anything) if it leads in a circle."""
    for _ in range(len(definitions) + 1):
        if not (isinstance(schema, dict) and len(schema) == 1 and "$ref" in schema):
            return schema
        schema = definitions.get(schema["$ref"].removeprefix(REFERENCE), True)
    return True


def value_type(value: Any) -> str:
    """The JSON type of a value, in the words of schemas; "number" for integers, too."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return {int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def listed_values(schema: Any) -> Sequence[Any] | None:
    """The values that `const` or `enum` leave; None if there is neither."""
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that `type` allows."""
    given = schema.get("type", list(TYPES))
    names = given if isinstance(given, list) else [given]
    return frozenset("number" if name == "integer" else name for name in names)


class Values:
    """Answers about the schemas of one compilation; each question is worked out once."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._types: dict[int, frozenset[str]] = {}
        self._apart: dict[tuple[int, int], bool] = {}
        self._kept: list[Any] = []  # so that no other object takes the place of one that was asked about

    def types(self, schema: Any) -> frozenset[str]:
        """The types that values of this schema can have; perhaps more than they do."""
        schema = resolved(schema, self._definitions)
        if not isinstance(schema, dict):
            return TYPES if schema else frozenset()
        if id(schema) in self._types:
            return self._types[id(schema)]
        self._kept.append(schema)
        self._types[id(schema)] = TYPES  # for what leads back to it
        types = named_types(schema)
        if (values := listed_values(schema)) is not None:
            types &= frozenset(map(value_type, values))
        for form in ("anyOf", "oneOf"):
            if form in schema:
                types &= frozenset().union(*map(self.types, schema[form]))
        for part in schema.get("allOf", ()):
            types &= self.types(part)
        if "$ref" in schema:
            types &= self.types(self._target(schema))
        self._types[id(schema)] = types
        return types

    def _target(self, schema: Mapping[str, Any]) -> Any:
        return self._definitions.get(schema["$ref"].removeprefix(REFERENCE), True)

    def apart(self, first: Any, second: Any) -> bool:
        """Whether it is known that no value fulfils both: by types, listed values, or those of a property."""
        first, second = resolved(first, self._definitions), resolved(second, self._definitions)
        common = self.types(first) & self.types(second)
        if not common:
            return True
        if not (isinstance(first, dict) and isinstance(second, dict)):
            return False
        pair = (id(first), id(second))
        if pair not in self._apart:
            self._kept += (first, second)
            self._apart[pair] = False  # for what leads back to it
            self._apart[pair] = self._differ(first, second, common)
        return self._apart[pair]

    def told_apart(self, options: Sequence[Any]) -> bool:
        """Whether these are objects that all must have one property, with different listed values for each."""
        first = resolved(options[0], self._definitions)
        for name in first.get("required", ()) if isinstance(first, dict) else ():
            seen: set[str] = set()
            for option in options:
                option = resolved(option, self._definitions)
                values = (
                    listed_values(resolved(_member(option, name), self._definitions))
                    if isinstance(option, dict)
                    else None
                )
                keys = set(map(_key, values or ()))
                if (
                    not keys
                    or seen & keys
                    or self.types(option) != {"object"}
                    or name not in option.get("required", ())
                ):
                    break
                seen |= keys
            else:
                return True
        return False

    def _differ(self, first: dict[str, Any], second: dict[str, Any], common: frozenset[str]) -> bool:
        values = listed_values(first), listed_values(second)
        if values[0] is not None and values[1] is not None:
            return not set(map(_key, values[0])) & set(map(_key, values[1]))
        for one, other in ((first, second), (second, first)):
            if any(form in one and all(self.apart(part, other) for part in one[form]) for form in ("anyOf", "oneOf")):
                return True
            if any(self.apart(part, other) for part in one.get("allOf", ())):
                return True
            if "$ref" in one and self.apart(self._target(one), other):
                return True
        return common == {"object"} and any(
            self.apart(_member(first, name), _member(second, name))
            for name in {*first.get("required", ()), *second.get("required", ())}
        )


def _member(schema: Mapping[str, Any], name: str) -> Any:
    """The schema of this member of an object, as far as no pattern says more."""
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _key(value: Any) -> str:
    """Equal for equal JSON values: 1 is 1.0, and not true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def without_endless(roots: Sequence[Any], definitions: dict[str, Any]) -> bool:
    """Replace each schema in these that only values which contain themselves could fulfil, by false: sampling by one
    would go on until the tokens run out. Changes schemas and definitions in place. False if a root is one.
    """
    parts: list[dict[str, Any]] = []  # inner and later ones first, where most of what they need is known
    for top in [*reversed(definitions.values()), *roots]:
        found, waiting = [], [top]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                found.append(part)
                waiting += [inner for _, _, inner in children(part)]
        parts += reversed(found)
    finite: set[int] = set()

    def known(schema: Any) -> bool:
        return id(schema) in finite if isinstance(schema, dict) else bool(schema)

    def target(reference: str) -> bool:
        return known(definitions.get(reference.removeprefix(REFERENCE), True))

    unknown = parts
    for turn in range(_MAX_PASSES):
        left = []
        for part in unknown if turn % 2 == 0 else reversed(unknown):
            if _can_end(part, known, target):
                finite.add(id(part))
            else:
                left.append(part)
        if len(left) == len(unknown) or not left:
            unknown = left
            break
        unknown = left if turn % 2 == 0 else left[::-1]
    else:
        return True  # not found out
    endless = {id(part) for part in unknown}
    for part in parts if endless else ():
        for holder, key, inner in children(part):
            if id(inner) in endless:
                holder[key] = False
    for name, definition in definitions.items():
        if id(definition) in endless:
            definitions[name] = False
    return not any(id(root) in endless for root in roots)


def children(schema: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """The schemas directly inside a prepared one, each with what holds it and its key there."""
    found: list[tuple[Any, Any, Any]] = []
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            found.append((schema, keyword, schema[keyword]))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        found += [(schema[keyword], index, part) for index, part in enumerate(schema.get(keyword, ()))]
    for keyword in ("properties", "patternProperties"):
        found += [(schema[keyword], name, part) for name, part in schema.get(keyword, {}).items()]
    return found


def _can_end(part: dict[str, Any], known: Callable[[Any], bool], target: Callable[[str], bool]) -> bool:
    """Whether a value of this schema needs no others than those of schemas that are `known` to have one."""
    if "$ref" in part and not target(part["$ref"]):
        return False
    if not all(map(known, part.get("allOf", ()))):
        return False
    if any(form in part and not any(map(known, part[form])) for form in ("anyOf", "oneOf")):
        return False
    types = named_types(part)
    if (values := listed_values(part)) is not None or types - {"object", "array"}:
        return values is None or bool(values)
    if "object" in types and all(known(_member(part, name)) for name in part.get("required", ())):
        return True
    if "array" not in types:
        return False
    least = part.get("minItems", 0)
    first = part.get("prefixItems", [])[:least]
    return all(map(known, first)) and (len(first) >= least or known(part.get("items", True)))
