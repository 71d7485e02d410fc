"""Schemas made at random, and answers drawn at random from their grammars: each fulfils its schema."""

import json
import random
from typing import Any

import pytest

from tests.grammar.drive import END, PADDED, TOKENS, VOCAB, constraint, encode_bytes, random_answer
from tests.grammar.real_schemas import REAL, Real
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import JsonSchema

NAMES = ["a", "b", "ab", "名", "x_1"]
PATTERNS = ["^a", "b$", "^[a-c]{1,3}$", "^x_", "中", "^(?=.*a)[abc]*$", "^(a|b)$", "^ab?$"]


def drawn_schema(draw: random.Random, depth: int = 3) -> Any:
    """A schema of any kind, with keywords beside each other that people would not put together."""
    if depth == 0 or draw.random() < 0.1:
        return draw.choice(
            [True, {}, {"type": "integer"}, {"type": "string"}, {"const": draw.choice([1, "a", None, [1]])}]
        )

    def inner() -> Any:
        return drawn_schema(draw, depth - 1)

    schema: dict[str, Any] = {}
    for keyword, make in {
        "type": lambda: draw.choice(
            ["object", "array", "string", "number", "integer", ["string", "null"], ["object", "array"]]
        ),
        "properties": lambda: {name: inner() for name in draw.sample(NAMES, draw.randint(1, 3))},
        "required": lambda: draw.sample(NAMES, draw.randint(1, 2)),
        "additionalProperties": lambda: draw.choice([False, inner()]),
        "patternProperties": lambda: {draw.choice(PATTERNS): inner()},
        "propertyNames": lambda: draw.choice(
            [{"pattern": draw.choice(PATTERNS)}, {"maxLength": 2}, {"enum": NAMES[:3]}]
        ),
        "minProperties": lambda: draw.randint(0, 2),
        "maxProperties": lambda: draw.randint(0, 3),
        "items": inner,
        "prefixItems": lambda: [inner() for _ in range(draw.randint(1, 2))],
        "minItems": lambda: draw.randint(0, 2),
        "maxItems": lambda: draw.randint(1, 3),
        "minLength": lambda: draw.randint(0, 2),
        "maxLength": lambda: draw.randint(1, 4),
        "pattern": lambda: draw.choice(PATTERNS),
        "minimum": lambda: draw.choice([-3, 0, 0.5, 7.25, 11]),
        "exclusiveMaximum": lambda: draw.choice([8, 12.75, 100]),
        "multipleOf": lambda: draw.choice([0.25, 2, 3]),
        "enum": lambda: draw.sample([1, 2.5, "a", "ab", None, True, [], {"a": 1}, {"名": "b"}], 4),
        "anyOf": lambda: [inner() for _ in range(2)],
        "allOf": lambda: [inner() for _ in range(draw.randint(1, 2))],
        "oneOf": lambda: [inner() for _ in range(2)],
        "$ref": lambda: draw.choice(["#/$defs/one", "#/$defs/two"]),
        "not": lambda: {"type": draw.choice(["null", "string", ["object", "array"]])},
    }.items():
        if draw.random() < 0.16:
            schema[keyword] = make()
    return schema


@pytest.mark.parametrize("close_objects", [False, True])
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 8))])
def test_drawn_answers_fulfil_drawn_schemas(part: int, close_objects: bool):
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema tells which values are valid")
    compiler = GrammarCompiler(TOKENS, VOCAB, PADDED, {END}, encode=encode_bytes, close_objects=close_objects)
    taken = answered = 0
    for seed in range(part * 100, part * 100 + 100):
        draw = random.Random(seed)
        schema = drawn_schema(draw)
        if isinstance(schema, dict):
            schema["$defs"] = {"one": drawn_schema(draw, 1), "two": drawn_schema(draw, 2)}
        try:
            make = compiler.compile(constraint(JsonSchema(schema)))
        except ConstraintError:
            continue
        taken += 1
        validator = jsonschema.Draft202012Validator(schema)
        for turn in range(4):
            if (text := random_answer(make, seed * 10 + turn, limit=300)) is not None:
                answered += 1
                assert validator.is_valid(json.loads(text)), (seed, schema, text)
    assert taken > 10
    assert answered > 30


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_no_answer_runs_into_a_dead_end(real: Real):
    """Each step leaves some way on, up to an end that is reached."""
    compiler = GrammarCompiler(TOKENS, VOCAB, PADDED, {END}, encode=encode_bytes, close_objects=True)
    try:
        make = compiler.compile(constraint(JsonSchema(real.schema)))
    except ConstraintError:
        return
    for seed in range(20):
        if (text := random_answer(make, seed, limit=300)) is not None:
            json.loads(text)
