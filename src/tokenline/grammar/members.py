"""What a schema says of an object's members.

The library knows listed properties, expressions for names, and a schema for all others. The names of others may come
twice, so it cannot count them; what is said of names (`propertyNames`) is said by expressions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenline.grammar.errors import shown
from tokenline.grammar.limits import MAX_LEVELS, MAX_OPTIONAL, MAX_PATTERN_PROPERTIES
from tokenline.grammar.vocabulary import ABOUT, FORMS

if TYPE_CHECKING:
    from tokenline.grammar.keywords import Keywords

_LOOKAHEAD = "has lookahead, which cannot be enforced for names."


def closable(schema: Mapping[str, Any]) -> bool:
    """Whether an object can do with the members that its schema lists."""
    listed, required, least = schema.get("properties"), schema.get("required"), schema.get("minProperties", 0)
    if not isinstance(listed, dict):
        return False
    names = {*listed, *(name for name in required if isinstance(name, str))} if isinstance(required, list) else listed
    return not isinstance(least, int) or least <= len(names)


def prepare_members(schema: "Keywords") -> None:
    """Add to `schema.made` what its keywords for objects say. Raises ConstraintError."""
    given, made = schema.given, schema.made
    if "properties" in given:
        made["properties"] = {
            name: schema.inner(part, "properties", name) for name, part in _named(schema, "properties").items()
        }
    required = _required(schema)
    if required:
        made["required"] = required
    if "patternProperties" in given:
        _pattern_properties(schema)
    if "additionalProperties" in given:
        made["additionalProperties"] = schema.inner(given["additionalProperties"], "additionalProperties")
    if given.get("unevaluatedProperties", True) is not True:
        if any(form in given for form in ("allOf", "anyOf", "oneOf", "$ref", "dependentSchemas", "if", "not")):
            raise schema.unsupported(
                "cannot be enforced beside other schemas for the same object.", "unevaluatedProperties"
            )
        if "additionalProperties" not in made:
            made["additionalProperties"] = schema.inner(given["unevaluatedProperties"], "unevaluatedProperties")
    if "propertyNames" in given:
        _Names(schema).prepare()
    elif not {"additionalProperties", "patternProperties"} & set(made) and schema.owner.closes(given, schema.merged):
        made["properties"] |= {name: True for name in required if name not in made["properties"]}
        made["additionalProperties"] = False
    _take_over_patterns(schema, required)
    schema.counts("minProperties", "maxProperties")
    _check_free_names(schema, required)


def _check_free_names(schema: "Keywords", required: list[str]) -> None:
    made = schema.made
    listed = {*made.get("properties", ()), *required}
    if len(listed) - len(set(required)) > MAX_OPTIONAL:
        raise schema.unsupported(f"has more than {MAX_OPTIONAL:,} optional properties.", "properties")
    patterns = bool(made.get("patternProperties"))
    others = made.get("additionalProperties", True) is not False
    if (others and listed) or patterns:
        schema.owner.escapes = False
    if (others or patterns) and made.get("minProperties", 0) > len(required) + 1:
        raise schema.unsupported(
            "cannot be enforced: the grammar cannot tell whether a member comes twice.", "minProperties"
        )


def _named(schema: "Keywords", keyword: str) -> dict[str, Any]:
    value = schema.given[keyword]
    if not isinstance(value, dict):
        raise schema.invalid(f"must be an object; got {shown(value)}.", keyword)
    return value


def _required(schema: "Keywords") -> list[str]:
    """The names of the members that must be there."""
    required = schema.given.get("required", [])
    if isinstance(required, bool):  # draft 3: it is about the object that this value is a member of
        required = []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise schema.invalid("must be a list of strings.", "required")
    needed = dict.fromkeys(required)
    for keyword in ("dependentRequired", "dependencies"):
        for name, others in _named(schema, keyword).items() if keyword in schema.given else ():
            if others in ([], {}, True):
                continue
            if name not in needed or not isinstance(others, list):
                raise schema.unsupported(
                    "cannot be enforced: dependent properties are not known to the grammar.", keyword, name
                )
            needed.update(dict.fromkeys(others))
    return list(needed)


def _pattern_properties(schema: "Keywords") -> None:
    patterns = _named(schema, "patternProperties")
    if len(patterns) > MAX_PATTERN_PROPERTIES:
        raise schema.unsupported(f"has more than {MAX_PATTERN_PROPERTIES} expressions.", "patternProperties")
    made = {}
    for pattern, part in patterns.items():
        whole, *more = schema.patterns(pattern, "patternProperties", pattern)
        if more:
            raise schema.unsupported(_LOOKAHEAD, "patternProperties", pattern)
        made[f"^{whole}$"] = schema.inner(part, "patternProperties", pattern)
    if made:
        schema.made["patternProperties"] = made


def _take_over_patterns(schema: "Keywords", required: list[str]) -> None:
    """An expression that matches no name but listed ones becomes part of what is said of them: the library would offer
    one more member, for which there is no name.
    """
    made, expressions = schema.made, schema.owner.expressions
    listed = list(dict.fromkeys([*made.get("properties", ()), *required]))
    for pattern, part in list(made.get("patternProperties", {}).items()):
        matched = [name for name in listed if expressions.matches(pattern[1:-1], name)]
        if not matched or expressions.matches_others(pattern[1:-1], matched):
            continue
        del made["patternProperties"][pattern]
        properties = made.setdefault("properties", {})
        for name in matched:
            properties[name] = {"allOf": [properties[name], part]} if name in properties else part
    if made.get("patternProperties") == {}:
        del made["patternProperties"]


class _Names:
    """`propertyNames`: expressions, listed names or a length, said by `properties` and `patternProperties`."""

    def __init__(self, schema: "Keywords") -> None:
        self._schema = schema
        names = schema.given["propertyNames"]
        for _ in range(MAX_LEVELS):
            if not (isinstance(names, dict) and len(names) == 1 and isinstance(names.get("$ref"), str)):
                break
            at = (*schema.path, "propertyNames", "$ref")
            names, _ = schema.references.find(names["$ref"], schema.references.base(names), at)
        self._names = names

    def prepare(self) -> None:
        wanted = self._wanted()
        if wanted is None:
            return
        schema, made = self._schema, self._schema.made
        if made.get("patternProperties"):
            raise schema.unsupported("cannot be enforced beside 'patternProperties'.", "propertyNames")
        properties = made.get("properties", {})
        for name in properties:
            if name not in wanted if isinstance(wanted, list) else not schema.owner.expressions.matches(wanted, name):
                properties[name] = False
        others = made.get("additionalProperties", True)
        made["additionalProperties"] = False
        if others is False:
            return
        if isinstance(wanted, list):
            made["properties"] = {**properties, **{name: others for name in wanted if name not in properties}}
            return
        if others is not True and any(part is not False for part in properties.values()):
            raise schema.unsupported(
                "cannot be enforced beside both 'properties' and 'additionalProperties'.", "propertyNames"
            )
        made["patternProperties"] = {f"^{wanted}$": others}

    def _wanted(self) -> str | list[str] | None:
        """An expression for the names, or the names where they are listed; None if any name will do."""
        schema, names = self._schema, self._names
        if isinstance(names, bool):
            return None if names else []
        if not isinstance(names, dict):
            raise schema.invalid(
                f"must be an object, true or false (a JSON schema); got {shown(names)}.", "propertyNames"
            )
        types = names.get("type", "string")
        if "string" not in (types if isinstance(types, list) else [types]):
            return []
        said = {key for key in names if ABOUT.get(key) == "string" or key in ("enum", "const", "not", "if", *FORMS)}
        said.discard("format")  # an annotation here
        if not said:
            return None
        if said in ({"enum"}, {"const"}):
            listed = names["enum"] if "enum" in names else [names["const"]]
            return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        if said == {"pattern"}:
            whole, *more = schema.patterns(names["pattern"], "propertyNames", "pattern")
            if more:
                raise schema.unsupported(_LOOKAHEAD, "propertyNames", "pattern")
            return whole
        if said <= {"minLength", "maxLength"}:
            lengths = schema.inner({"type": "string", **{key: names[key] for key in said}}, "propertyNames")
            return f"(?s:.{{{lengths.get('minLength', 0)},{lengths.get('maxLength', '')}}})"
        raise schema.unsupported(
            "cannot be enforced: names can be listed, matched or measured, only one of them.", "propertyNames"
        )
