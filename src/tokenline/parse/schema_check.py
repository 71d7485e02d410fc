"""Which JSON schemas can be enforced while sampling: what the grammar compiler would silently ignore is refused here.

The compiler (xgrammar) raises for most of what it cannot do, but only warns, or says nothing, for the keywords below.
An answer that does not hold to its schema would then look as if it did.
"""

from collections.abc import Iterator
from typing import Any

IGNORED = {
    "not": "negation",
    "if": "conditions",
    "then": "conditions",
    "else": "conditions",
    "uniqueItems": "unique items",
    "contains": "items that must occur",
    "minContains": "items that must occur",
    "maxContains": "items that must occur",
    "multipleOf": "multiples",
    "dependentRequired": "dependent properties",
    "dependentSchemas": "dependent properties",
    "dependencies": "dependent properties",
    "$dynamicRef": "dynamic references",
    "unevaluatedItems": "unevaluated items",
}
# Keywords whose value is a schema, a list of schemas, or schemas by name.
ONE = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "additionalItems")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")


def find_unsupported(schema: Any, at: str = "") -> str | None:
    """What in this schema cannot be enforced, with its JSON pointer; None if all can, as far as this module knows."""
    for pointer, part in _schemas(schema, at):
        for keyword, meaning in IGNORED.items():
            if keyword in part and part[keyword] is not False:
                return f"{pointer}/{keyword}: {meaning} ({keyword!r}) cannot be enforced"
        reference = part.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            return f"{pointer}/$ref: only references into the schema itself (#/...) can be followed, not {reference!r}"
        if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
            return f"{pointer}/allOf: more than one schema in 'allOf' cannot be enforced"
        properties, required = part.get("properties", {}), part.get("required", [])
        if part.get("additionalProperties") is False and isinstance(properties, dict) and isinstance(required, list):
            missing = [name for name in required if name not in properties]
            if missing and "patternProperties" not in part:
                return f"{pointer}/required: {missing[0]!r} is required, but 'additionalProperties': false forbids it"
    return None


def _schemas(schema: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield at, schema
    for keyword in ONE:
        yield from _schemas(schema.get(keyword), f"{at}/{keyword}")
    for keyword in LISTS:
        for index, part in enumerate(schema[keyword] if isinstance(schema.get(keyword), list) else ()):
            yield from _schemas(part, f"{at}/{keyword}/{index}")
    for keyword in NAMED:
        for name, part in schema[keyword].items() if isinstance(schema.get(keyword), dict) else ():
            yield from _schemas(part, f"{at}/{keyword}/{name}")
