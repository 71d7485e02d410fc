"""Objects that several schemas describe together (`allOf`, `anyOf` beside `properties`): which members they list."""

from typing import Any

from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.references import References

# A schema with one of these says itself which members there may be besides, or lists whole values.
_SAYS_ITSELF = (
    *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "dependentSchemas"),
    *("dependencies", "if", "enum", "const", "not"),
)
_LISTS = ("allOf", "anyOf", "oneOf")


def declared_names(schema: dict[str, Any], base: str, references: References) -> list[str] | None:
    """All members that a schema and those it is put together from list, in their order; None where one of them says
    more of members, or none lists any. `base`: what references in `schema` begin from.
    """
    names: dict[str, None] = {}
    lists_any, least = False, 0
    seen: set[int] = set()
    waiting: list[tuple[Any, str]] = [(schema, base)]
    while waiting:
        part, base = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        if any(keyword in part for keyword in _SAYS_ITSELF):
            return None
        if isinstance(count := part.get("minProperties"), int):
            least = max(least, count)
        listed = part.get("properties")
        lists_any = lists_any or isinstance(listed, dict)
        for given in (listed, part.get("required"), *_required_by(part)):
            if isinstance(given, dict | list):
                names.update((name, None) for name in given if isinstance(name, str))
        inner = [(one, references.base(one)) for form in _LISTS for one in _as_list(part.get(form))]
        if isinstance(reference := part.get("$ref"), str):
            try:
                target, _ = references.find(reference, base, ())
            except ConstraintError:
                return None
            inner.append((target, references.base(target)))
        waiting += reversed(inner)
    return list(names) if lists_any and least <= len(names) else None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _required_by(schema: dict[str, Any]) -> list[Any]:
    dependent = schema.get("dependentRequired")
    return [*dependent.values()] if isinstance(dependent, dict) else []
