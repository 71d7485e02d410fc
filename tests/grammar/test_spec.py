"""What crosses to the engine's side is plain data: it survives pickling, and so do the errors that come back."""

import pickle
from typing import Any

import pytest

from tests.grammar.drive import byte_compiler, lets_through
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import (
    CallsOrAnswer,
    Choice,
    ConstraintSpec,
    Function,
    Grammar,
    JsonSchema,
    NamedCall,
    Reasoning,
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
        (CallsOrAnswer((FUNCTION,), "hermes", Choice(("x", "y"))), "y"),
    ],
)
@pytest.mark.parametrize(("before", "text_before"), [(None, ""), (Reasoning((), ("</think>",), True), "</think>")])
def test_a_constraint_survives_pickling(
    compiler: GrammarCompiler, form: Any, text: str, before: Reasoning | None, text_before: str
):
    constraint = ConstraintSpec(form, before)
    again = pickle.loads(pickle.dumps(constraint))
    assert again == constraint
    assert lets_through(compiler.compile(again), text_before + text)


@pytest.mark.parametrize(
    "form",
    [
        JsonSchema({"properties": {"a": {"multipleOf": 1e-20}}}),
        JsonSchema(5),
        Regex("("),
        Choice(()),
        Grammar("root ::= x"),
        NamedCall(Function("f", {"not": {"required": ["a"]}}, strict=True), 3),
        RequiredCalls(()),
        StrictTools((FUNCTION,), "nope"),
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
