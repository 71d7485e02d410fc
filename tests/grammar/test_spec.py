"""What crosses to the engine's side is plain data: it survives pickling, and so do the errors that come back."""

import pickle
from typing import Any

import pytest

from tests.grammar.drive import byte_compiler, lets_through
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import (
    Choice,
    ConstraintSpec,
    Function,
    Grammar,
    JsonSchema,
    NamedCall,
    Regex,
    RequiredCalls,
    StrictTools,
)

SCHEMA: Any = {"type": "object", "properties": {"a": {"enum": [1, "中", None]}}, "additionalProperties": False}
FUNCTION = Function("f", SCHEMA, strict=True)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (JsonSchema(SCHEMA), '{"a": "中"}'),
        (JsonSchema(True), "[1]"),
        (Regex("a+"), "aa"),
        (Choice(("x", "是")), "是"),
        (Grammar('root ::= "x"'), "x"),
        (NamedCall(FUNCTION, 2), '{"a": 1}'),
        (RequiredCalls((FUNCTION,), parallel=False), '[{"name": "f", "parameters": {}}]'),
        (StrictTools((FUNCTION,), "hermes"), 'x<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ],
)
@pytest.mark.parametrize("begins_after", ["", "</think>"])
def test_a_constraint_survives_pickling(compiler: GrammarCompiler, form: Any, text: str, begins_after: str):
    constraint = ConstraintSpec(form, begins_after)
    again = pickle.loads(pickle.dumps(constraint))
    assert again == constraint
    assert lets_through(compiler.compile(again), begins_after + text)


@pytest.mark.parametrize(
    "form",
    [
        JsonSchema({"properties": {"a": {"multipleOf": 1e-20}}}),
        JsonSchema(5),
        Regex("("),
        Choice(()),
        Grammar("root ::= x"),
        NamedCall(Function("f", {"not": {"required": ["a"]}}), 3),
        RequiredCalls(()),
        StrictTools((FUNCTION,), "pythonic"),
    ],
)
def test_an_error_survives_pickling(compiler: GrammarCompiler, form: Any):
    with pytest.raises(ConstraintError) as raised:
        compiler.compile(ConstraintSpec(form))
    error = raised.value
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ConstraintError
    assert (again.path, again.parts, again.code, str(again)) == (error.path, error.parts, error.code, str(error))
    assert again.text().endswith(".")
