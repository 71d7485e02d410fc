"""Schemas that the compiler reads as less than they say are refused; those of everyday use are not."""

import json
from typing import Any

import pytest

from tests.parse.fake_tokens import Vocabulary
from tokenline.parse.constrain import Constrainer
from tokenline.parse.schema_check import bad_pattern, find_unsupported

END = 256
TOKENS = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>"], special={END})


@pytest.fixture(scope="module")
def constrainer() -> Constrainer:
    return Constrainer(TOKENS, END + 1, END + 1, {END})


def lets_through(constrainer: Constrainer, schema: dict[str, Any], value: Any) -> bool:
    """Whether the grammar of this schema takes the value as an answer."""
    grammar = constrainer.json_schema(schema)()
    for token_id in [*json.dumps(value).encode(), END]:
        if not grammar.mask().view("uint32")[token_id // 32] >> token_id % 32 & 1:
            return False
        grammar.accept(token_id)
    return True


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"minLength": 2}, "/minLength"),
        ({"required": ["a"]}, "/required"),
        ({"type": "object", "required": ["a"]}, "'a' is required"),
        ({"type": "string", "minLength": 9, "pattern": "^a+$"}, "/pattern"),
        ({"type": "string", "maxLength": 2, "format": "date"}, "/format"),
        ({"type": "string", "pattern": "^a$", "format": "date"}, "/format"),
        ({"type": "string", "pattern": "^(?=b)a"}, "/pattern"),
        ({"type": "object", "patternProperties": {"a^b": {}}}, "/patternProperties"),
        ({"type": "object", "properties": {"a": INTEGER}, "propertyNames": {"maxLength": 1}}, "/propertyNames"),
        ({"type": "object", "properties": {"a": INTEGER}, "patternProperties": {"^a": {}}}, "/patternProperties"),
        ({"type": "object", "additionalProperties": False, "propertyNames": {"pattern": "^a"}}, "/propertyNames"),
        ({"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False}, "/unevaluatedProperties"),
        ({"type": "array", "unevaluatedItems": False}, "/unevaluatedItems"),
        ({"$defs": {"s": STRING}, "$ref": "#/$defs/s", "maxLength": 3}, "/maxLength"),
        ({"$defs": {"s": {"$anchor": "s", **INTEGER}}, **closed(a={"$ref": "#s"})}, "/properties/a/$ref"),
        ({"type": "integer", "enum": ["x", 2]}, "/type"),
        ({"type": "integer", "const": "x"}, "/type"),
        ({"enum": ["x"], "const": "y"}, "/enum"),
        ({"type": "string", "anyOf": [{"pattern": "^a$"}]}, "/type"),
        ({"type": "object", "properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}]}, "/properties"),
        ({"type": "string", "oneOf": [STRING, INTEGER]}, "/type"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "/oneOf"),
        ({"oneOf": [closed(a=INTEGER), closed(a=STRING)]}, "/oneOf"),
        ({"oneOf": [{}, {"type": "null"}]}, "/oneOf"),
        ({"type": []}, "/type"),
        (closed(a={"$ref": "#"}), "contain itself"),
        ({"$defs": {"n": closed(next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}, "contain itself"),
        (closed(a={"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "contain itself"),
        (closed(a={"anyOf": [{"$ref": "#"}, closed(b={"$ref": "#"})]}), "contain itself"),
    ],
)
def test_refused(schema: dict[str, Any], named: str):
    reason = find_unsupported(schema)
    assert reason is not None
    assert named in reason


TREE = closed(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})
CAT, DOG = closed(kind={"const": "cat"}), closed(kind={"enum": ["dog", "wolf"]}, name=STRING)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": INTEGER}, "required": ["a"]}, {"a": 1}, {"a": "x"}),
        ({"$defs": {"n": TREE}, "$ref": "#/$defs/n"}, {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1}),
        ({"oneOf": [CAT, DOG]}, {"kind": "dog", "name": "Rex"}, {"kind": "dog"}),
        ({"$defs": {"c": CAT}, "anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}, None, 1),
        ({"allOf": [{"$ref": "#/$defs/s"}], "$defs": {"s": STRING}, "description": "d"}, "x", 1),
        ({"type": ["string", "null"], "enum": ["a", None]}, None, "b"),
        ({"type": "number", "enum": [1, 2.5]}, 2.5, 2),
        ({"type": "object", "anyOf": [{"properties": {"a": INTEGER}}]}, {"a": 1}, 1),
        ({"type": "string", "format": "password", "minLength": 3}, "abc", "ab"),
        ({"type": "string", "format": "date"}, "2026-01-01", "today"),
        ({"type": "string", "pattern": r"^[^$^]\$?$"}, "a$", "$"),
        ({"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 1}, {"a": 1}, {"ab": 1}),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]], [1]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "type": "boolean"}, True, "true"),
        ({}, {"any": 1}, ...),
    ],
)
def test_enforced(constrainer: Constrainer, schema: dict[str, Any], right: Any, wrong: Any):
    assert find_unsupported(schema) is None
    assert lets_through(constrainer, schema, right)
    assert wrong is ... or not lets_through(constrainer, schema, wrong)


@pytest.mark.parametrize("pattern", ["(?=a)b", "x(?!a)", r"\\(?=a)", "a^b", "a$b", "(a$)b^"])
def test_patterns_that_would_be_read_as_less(pattern: str):
    assert bad_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["^a$", "^(a|b)$", "(^a|^b)", "a$|b$", r"\^\$", "[$^]", r"[\]^]x", r"\(?=a", "(?:a)"]
)
def test_patterns_that_are_read_as_they_stand(pattern: str):
    assert bad_pattern(pattern) is None


def test_a_schema_made_to_cost_time_does_not():
    """Every definition needs the next one twice: walked one by one that is 2 ** 200 of them."""
    definitions = {
        f"d{i}": closed(a={"$ref": f"#/$defs/d{i + 1}"}, b={"$ref": f"#/$defs/d{i + 1}"}) for i in range(200)
    }
    schema = {"$defs": {**definitions, "d200": INTEGER}, "$ref": "#/$defs/d0"}
    assert find_unsupported(schema) is None
    assert "contain itself" in (find_unsupported({**schema, "$defs": {**definitions, "d200": {"$ref": "#"}}}) or "")
