"""Which JSON schemas can be enforced while sampling: what the grammar compiler would silently ignore is refused here.

The compiler (xgrammar) raises for much of what it cannot do, but only warns, or says nothing, where it overlooks a
keyword, or one beside another. An answer that does not hold to its schema would then look as if it did. A schema that
no finite value fulfils is refused, too: its answer would run on until its tokens do.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from tokenline.parse.schema_values import allowed_types, apart, has_finite_value, types_within

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
    "unevaluatedProperties": "unevaluated properties",
}
# Keywords whose value is a schema, a list of schemas, or schemas by name.
ONE = ("items", "additionalProperties", "propertyNames", "additionalItems")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
# Of these the compiler reads one, and what else says something of the value is overlooked.
FORMS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
ABOUT = (
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("items", "prefixItems", "minItems", "maxItems"),
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties"),
)
TELLING = ("properties", "additionalProperties", "items", "prefixItems")  # the compiler infers the type from these
# Formats that the compiler knows; others are annotations.
FORMATS = frozenset(
    "date time date-time duration email hostname ipv4 ipv6 json-pointer relative-json-pointer "
    "uri uri-reference uri-template uuid".split()
)
TOGETHER = (  # of each pair only one is enforced
    ("minLength", "pattern"),
    ("maxLength", "pattern"),
    ("minLength", "format"),
    ("maxLength", "format"),
    ("pattern", "format"),
    ("properties", "patternProperties"),
    ("properties", "propertyNames"),
    ("additionalProperties", "propertyNames"),
    ("patternProperties", "propertyNames"),
)
MAX_ONE_OF = 64  # each is compared with each
_LOOKAHEAD = re.compile(r"(?<!\\)(?:\\\\)*\(\?[=!]")
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_INNER_ANCHOR = re.compile(r"(?<![(|:])(?<!^)\^|\$(?![)|])(?!$)")

Schema = Mapping[str, Any]


def find_unsupported(schema: Any) -> str | None:
    """What in this schema cannot be enforced, with its JSON pointer; None if all can, as far as this module knows."""
    parts = list(_schemas(schema, ""))
    for pointer, part in parts:
        reason = next(_reasons(part, schema), None)
        if reason is not None:
            return f"{pointer}/{reason}"
    if not has_finite_value(schema, [part for _, part in parts]):
        return "no value can fulfil it, since it would have to contain itself"
    return None


def bad_pattern(pattern: str) -> str | None:
    """What in a regular expression the compiler would silently ignore."""
    if _LOOKAHEAD.search(pattern):
        return "lookahead cannot be enforced"
    if _INNER_ANCHOR.search(_ESCAPED.sub("_", pattern)):
        return "^ and $ can only stand at the start and at the end"
    return None


def _reasons(part: Schema, root: Any) -> Iterator[str]:
    yield from _overlooked(part)
    yield from _overlooked_beside(part)
    yield from _overlapping(part, root)


def _overlooked(part: Schema) -> Iterator[str]:
    """Keywords that the compiler does not read, or reads as less than they say."""
    for keyword, meaning in IGNORED.items():
        if keyword in part and not (keyword == "uniqueItems" and part[keyword] is False):
            yield f"{keyword}: {meaning} ({keyword!r}) cannot be enforced"
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        yield f"$ref: only references into the schema itself (#/...) can be followed, not {reference!r}"
    if part.get("type") == []:
        yield "type: no type is allowed"
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
        yield "allOf: more than one schema in 'allOf' cannot be enforced"
    named = part.get("patternProperties")
    patterns = [("pattern", part.get("pattern"))]
    patterns += [("patternProperties", pattern) for pattern in (named if isinstance(named, dict) else ())]
    for keyword, pattern in patterns:
        if isinstance(pattern, str) and (reason := bad_pattern(pattern)) is not None:
            yield f"{keyword}: {reason}"
    properties, required = part.get("properties", {}), part.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        for name in required:
            if isinstance(name, str) and name not in properties:
                yield f"required: {name!r} is required, but 'properties' does not describe it"


def _overlooked_beside(part: Schema) -> Iterator[str]:
    """Keywords that the compiler does not read beside some other, or without a type."""
    said = [keyword for keyword in ABOUT if keyword in part]
    if part.get("format") not in FORMATS and "format" in said:
        said.remove("format")
    forms = [form for form in FORMS if form in part]
    if forms:
        for other in (*forms[1:], *said):
            yield f"{other}: it cannot be enforced beside {forms[0]!r}"
    elif said and "type" not in part and not any(keyword in part for keyword in TELLING):
        yield f"{said[0]}: it can only be enforced with a 'type' beside it"
    for first, second in TOGETHER:
        if first in said and second in said:
            yield f"{second}: it cannot be enforced beside {first!r}"


def _overlapping(part: Schema, root: Any) -> Iterator[str]:
    """Alternatives that allow what a type beside them does not, or, of `oneOf`, what another one allows, too."""
    form = next((form for form in FORMS if form in part), None)
    if form is not None and "type" in part:
        without = {keyword: value for keyword, value in part.items() if keyword != "type"}
        if not types_within(allowed_types(without, root), allowed_types({"type": part["type"]}, root)):
            yield f"type: it cannot be enforced beside {form!r}, which allows other types"
    options = part.get("oneOf")
    if not isinstance(options, list):
        return
    if len(options) > MAX_ONE_OF:
        yield f"oneOf: more than {MAX_ONE_OF} schemas; use 'anyOf'"
    for (i, first), (k, second) in combinations(enumerate(options), 2):
        if not apart(first, second, root):
            yield f"oneOf: a value may fulfil both {i} and {k}, which cannot be prevented; use 'anyOf'"


def _schemas(schema: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield at, schema
    for keyword in ONE:
        inner = schema.get(keyword)
        if keyword == "propertyNames" and isinstance(inner, dict):
            inner = {"type": "string", **inner}  # names are nothing else
        yield from _schemas(inner, f"{at}/{keyword}")
    for keyword in LISTS:
        for index, part in enumerate(schema[keyword] if isinstance(schema.get(keyword), list) else ()):
            yield from _schemas(part, f"{at}/{keyword}/{index}")
    for keyword in NAMED:
        for name, part in schema[keyword].items() if isinstance(schema.get(keyword), dict) else ():
            yield from _schemas(part, f"{at}/{keyword}/{name}")
