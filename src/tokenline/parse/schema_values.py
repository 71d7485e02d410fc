"""Which values a JSON schema allows, as far as its surface shows: types, listed values, and whether there are any.

Used by `schema_check`. What is not known is said to be so; wrong references are left for the compiler to name.
"""

from collections.abc import Callable, Sequence
from typing import Any

_MAX_NESTING = 3  # of anyOf in anyOf, whose types are looked for
_MAX_REFERENCES = 100
_MAX_PASSES = 50


def allowed_types(part: Any, root: Any, nesting: int = 0) -> frozenset[str] | None:
    """The JSON types of all values that a schema allows; None: not known. Without `type` as the compiler infers it."""
    part = resolved(part, root)
    if not isinstance(part, dict) or nesting > _MAX_NESTING:
        return None
    values = listed_values(part)
    if values is not None:
        return frozenset(map(_type_of, values))
    for form in ("anyOf", "oneOf", "allOf"):
        if isinstance(part.get(form), list):
            types: set[str] = set()
            for option in part[form]:
                found = allowed_types(option, root, nesting + 1)
                if found is None:
                    return None
                types |= found
            return frozenset(types)
    if "type" in part:
        types_given = part["type"] if isinstance(part["type"], list) else [part["type"]]
        return frozenset(name for name in types_given if isinstance(name, str)) or None
    if "properties" in part or "additionalProperties" in part:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in part or "prefixItems" in part else None


def types_within(types: frozenset[str] | None, allowed: frozenset[str] | None) -> bool:
    """Whether all of these types are known to be among the allowed ones."""
    if types is None or allowed is None:
        return False
    return types <= (allowed | {"integer"} if "number" in allowed else allowed)


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def listed_values(part: Any) -> Sequence[Any] | None:
    """The values that `const` or `enum` leave; None if there is neither."""
    if not isinstance(part, dict):
        return None
    return [part["const"]] if "const" in part else part["enum"] if isinstance(part.get("enum"), list) else None


def resolved(part: Any, root: Any) -> Any:
    """What a schema's references lead to; None where they lead nowhere, or in a circle."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, dict) or not isinstance(reference := part.get("$ref"), str):
            return part
        part = root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            part = part.get(step) if isinstance(part, dict) else None
    return None


def apart(first: Any, second: Any, root: Any) -> bool:
    """Whether it is known that no value fulfils both: by types, by listed values, or by those of a property."""
    first, second = resolved(first, root), resolved(second, root)
    types = allowed_types(first, root), allowed_types(second, root)
    if types[0] is not None and types[1] is not None:
        integers = frozenset({"integer"} if "number" in types[0] | types[1] else ())
        if not (types[0] | integers) & (types[1] | integers) or not types[0] | types[1]:
            return True
    if _differ(first, second):
        return True
    if not types[0] == types[1] == {"object"}:
        return False
    properties = [part.get("properties") for part in (first, second)]
    if not isinstance(properties[0], dict) or not isinstance(properties[1], dict):
        return False
    required = {name for part in (first, second) for name in part.get("required") or () if isinstance(name, str)}
    return any(
        _differ(resolved(properties[0][name], root), resolved(properties[1][name], root))
        for name in properties[0].keys() & properties[1].keys() & required
    )


def _differ(first: Any, second: Any) -> bool:
    values = listed_values(first), listed_values(second)
    return values[0] is not None and values[1] is not None and not any(value in values[1] for value in values[0])


def has_finite_value(root: Any, parts: Sequence[dict[str, Any]]) -> bool:
    """Whether some value fulfils the schema without containing itself. `parts`: all schemas in it, outer ones first."""
    finite: set[int] = set()  # parts that are known to have one

    def known(part: Any) -> bool:
        target = resolved(part, root)
        return not isinstance(target, dict) or id(target) in finite

    for _ in range(_MAX_PASSES):
        before = len(finite)
        for part in reversed(parts):
            if id(part) not in finite and (known(part) if "$ref" in part else _can_end(part, known)):
                finite.add(id(part))
        if known(root):
            return True
        if len(finite) == before:
            return False
    return True


def _can_end(part: dict[str, Any], known: Callable[[Any], bool]) -> bool:
    """Whether a value of this schema needs no others than those of schemas that are `known` to have one."""
    if listed_values(part) is not None:
        return True
    for form in ("anyOf", "oneOf", "allOf"):
        if isinstance(part.get(form), list):
            return any(map(known, part[form]))
    types = allowed_types(part, None)
    if types is None or types - {"object", "array"}:
        return True
    return ("object" in types and _object_can_end(part, known)) or ("array" in types and _array_can_end(part, known))


def _object_can_end(part: dict[str, Any], known: Callable[[Any], bool]) -> bool:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    return all(known(properties.get(name)) for name in required if isinstance(name, str))


def _array_can_end(part: dict[str, Any], known: Callable[[Any], bool]) -> bool:
    count = part.get("minItems")
    if not isinstance(count, int) or count < 1:
        return True
    first = part["prefixItems"][:count] if isinstance(part.get("prefixItems"), list) else []
    return all(map(known, first)) and (len(first) >= count or known(part.get("items")))
