"""Schemas that cannot be enforced are refused by the place in the client's JSON, in words."""

from typing import Any

import pytest

from tests.grammar.drive import byte_compiler, constraint, takes
from tests.grammar.kinds import CAT, INTEGER, NULL, STRING, closed
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import JsonSchema


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler()


A = ("properties", "a")
EMPTY = {"type": "string", "minLength": 3, "maxLength": 2}


@pytest.mark.parametrize(
    ("schema", "path", "said"),
    [
        # wrong
        ([1], (), "must be an object, true or false"),
        ("x", (), "must be an object, true or false"),
        ({"properties": {"a": 5}}, ("properties", "a"), "must be an object, true or false"),
        ({"type": "foo"}, ("type",), 'must be one of null, boolean, .*got "foo"'),
        ({"type": 5}, ("type",), "must be one of"),
        ({"type": []}, ("type",), "allows no type"),
        ({"enum": []}, ("enum",), "at least one value"),
        ({"anyOf": []}, ("anyOf",), "at least one schema"),
        ({"$ref": 3}, ("$ref",), "must be a string"),
        ({"properties": []}, ("properties",), "must be an object"),
        ({"required": "a"}, ("required",), "list of strings"),
        ({"prefixItems": {}}, ("prefixItems",), "list of schemas"),
        ({"minimum": "3"}, ("minimum",), "must be a number"),
        ({"minimum": float("nan")}, ("minimum",), "must be a number"),
        ({"minLength": -1}, ("minLength",), "at least 0"),
        ({"maxItems": True}, ("maxItems",), "at least 0"),
        ({"multipleOf": 0}, ("multipleOf",), "greater than 0"),
        ({"pattern": 5}, ("pattern",), "must be a string"),
        ({"$ref": "#/nope"}, ("$ref",), "'#/nope', which the schema does not have"),
        # beyond the grammar
        ({"$ref": "http://example.com/x"}, ("$ref",), "only references into the schema itself"),
        ({"$ref": "other.json#/a"}, ("$ref",), "only references into the schema itself"),
        ({"not": {"required": ["a"]}}, ("not",), "negation of types only"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, (*A, "items", "uniqueItems"), "compare"),
        ({"anyOf": [NULL, {"contains": INTEGER}]}, ("anyOf", 1, "contains"), "items that must occur"),
        ({"if": INTEGER, "then": {"minimum": 3}}, ("if",), "conditions"),
        ({"$dynamicRef": "#a"}, ("$dynamicRef",), "dynamic references"),
        ({"dependentRequired": {"a": ["b"]}}, ("dependentRequired", "a"), "dependent properties"),
        ({"dependencies": {"a": {"required": ["b"]}}}, ("dependencies", "a"), "dependent properties"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, ("dependentSchemas",), "dependent properties"),
        ({"allOf": [{}], "unevaluatedProperties": False}, ("unevaluatedProperties",), "beside other schemas"),
        ({"anyOf": [{}], "unevaluatedItems": False}, ("unevaluatedItems",), "beside other schemas"),
        ({"type": "string", "pattern": "a(?=b)"}, ("pattern",), "lookahead"),
        ({"patternProperties": {"a^b": {}}}, ("patternProperties", "a^b"), "elsewhere"),
        ({"patternProperties": {"^(?=a)b": {}}}, ("patternProperties", "^(?=a)b"), "lookahead"),
        ({"patternProperties": {"^a": {}, "a$": {}}}, ("patternProperties",), "may match the same name"),
        ({"propertyNames": {"anyOf": [{"minLength": 1}]}}, ("propertyNames",), "listed, matched or measured"),
        ({"propertyNames": {"pattern": "a"}, "patternProperties": {"b": {}}}, ("propertyNames",), "beside 'patternP"),
        (
            {"properties": {"a": {}}, "propertyNames": {"pattern": "a"}, "additionalProperties": INTEGER},
            ("propertyNames",),
            "beside both",
        ),
        ({"minProperties": 2}, ("minProperties",), "comes twice"),
        (
            {"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 2},
            ("minProperties",),
            "only where all listed ones are required",
        ),
        ({"oneOf": [INTEGER, {"type": "number"}]}, ("oneOf",), "both schema 0 and schema 1"),
        ({"oneOf": [closed(a=INTEGER), closed(a=NULL), {"required": ["a"]}]}, ("oneOf",), "0 and schema 2"),
        ({"oneOf": [{}, NULL]}, ("oneOf",), "both"),
        ({"oneOf": [CAT, {"required": ["kind"]}]}, ("oneOf",), "both"),
        # numbers and sizes
        ({"const": 2**60}, ("const",), "64-bit"),
        ({"enum": [1, {"a": [2**60]}]}, ("enum", 1), "64-bit"),
        ({"minimum": 1e300}, ("minimum",), "beyond"),
        ({"type": "integer", "multipleOf": 104729}, ("multipleOf",), "too many digits"),
        ({"multipleOf": 1e-12}, ("multipleOf",), "too many digits"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, ("allOf", 1, "multipleOf"), "too different"),
        ({"maxItems": 10**9}, ("maxItems",), "1,000,000,000; up to"),
        ({"maxLength": 10**9}, ("maxLength",), "up to"),
        ({"const": "x" * 200_000}, ("const",), "longer than"),
        ({"patternProperties": {f"^k{i}_": {} for i in range(300)}}, ("patternProperties",), "more than 20"),
        ({"properties": {f"p{i}": {} for i in range(1_500)}}, ("properties",), "optional"),
        ({"description": "x" * 600_000}, (), "longer than"),
        ({"anyOf": [{"minimum": i} for i in range(12_000)]}, ("anyOf", 9_999), "more than 10,000 schemas"),
        ({"pattern": "(a{1000}){1000}"}, ("pattern",), "repeats"),
        # without values
        (False, (), "cannot be fulfilled"),
        ({"not": {}}, (), "cannot be fulfilled"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ("minimum",), "cannot be fulfilled"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ("minItems",), "cannot be fulfilled"),
        ({"allOf": [STRING, INTEGER]}, ("allOf",), "cannot be fulfilled"),
        (closed(a=closed(b=EMPTY)), (*A, "properties", "b", "minLength"), "cannot be fulfilled"),
        ({"required": ["x"], "type": "object", "additionalProperties": False}, ("required",), "cannot be fulfilled"),
        (closed(a={"$ref": "#"}), (), "contain itself"),
        ({"$defs": {"n": closed(next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}, (), "contain itself"),
        (closed(a={"type": "array", "items": {"$ref": "#"}, "minItems": 1}), (), "contain itself"),
        (closed(a={"anyOf": [{"$ref": "#"}, closed(b={"$ref": "#"})]}), (), "contain itself"),
        (closed(a={"allOf": [{"$ref": "#"}]}), (), "contain itself"),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_refused(compiler: GrammarCompiler, schema: Any, path: tuple, said: str):
    with pytest.raises(ConstraintError, match=said) as refused:
        compiler.compile(constraint(JsonSchema(schema)))
    assert refused.value.path == path
    assert "\n" not in str(refused.value)
    assert len(refused.value.parts[0]) < 400
    assert refused.value.code in ("invalid_value", "unsupported_value")


def test_the_place_inside_a_definition_is_the_definitions(compiler: GrammarCompiler):
    schema = {"$defs": {"a/b": {"items": {"uniqueItems": True}}}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}}
    with pytest.raises(ConstraintError) as refused:
        compiler.compile(constraint(JsonSchema(schema)))
    assert refused.value.path == ("$defs", "a/b", "items", "uniqueItems")


def test_a_definition_that_nothing_refers_to_does_not_matter(compiler: GrammarCompiler):
    make = compiler.compile(constraint(JsonSchema({"$defs": {"x": {"if": {}, "then": False}}, **INTEGER})))
    assert takes(make, 3, {})


def test_a_keyword_that_is_not_about_the_type_does_not_matter(compiler: GrammarCompiler):
    schema = {"type": "integer", "uniqueItems": True, "pattern": "(", "properties": {"a": {"contains": {}}}}
    assert takes(compiler.compile(constraint(JsonSchema(schema))), 3, {})


def test_what_only_an_endless_value_could_fulfil_is_not_begun(compiler: GrammarCompiler):
    endless = {"type": "object", "properties": {"self": {"$ref": "#/$defs/e"}}, "required": ["self"]}
    make = compiler.compile(constraint(JsonSchema({"$defs": {"e": endless}, "anyOf": [{"$ref": "#/$defs/e"}, STRING]})))
    assert takes(make, "x", {})
    assert make().mask().view("uint32")[ord("{") // 32] >> ord("{") % 32 & 1 == 0


def test_a_schema_made_to_cost_time_does_not(compiler: GrammarCompiler):
    """Every definition needs the next one twice: walked one by one that is 2 ** 200 of them."""
    definitions = {
        f"d{i}": closed(a={"$ref": f"#/$defs/d{i + 1}"}, b={"$ref": f"#/$defs/d{i + 1}"}) for i in range(200)
    }
    schema = {"$defs": {**definitions, "d200": INTEGER}, "$ref": "#/$defs/d0"}
    compiler.compile(constraint(JsonSchema(schema)))
    with pytest.raises(ConstraintError, match="contain itself"):
        compiler.compile(constraint(JsonSchema({**schema, "$defs": {**definitions, "d200": {"$ref": "#"}}})))


def test_many_alternatives_told_apart_by_one_property(compiler: GrammarCompiler):
    schema = {"oneOf": [closed(kind={"const": f"k{i}"}, value=STRING) for i in range(200)]}
    make = compiler.compile(constraint(JsonSchema(schema)))
    assert takes(make, {"kind": "k77", "value": "x"}, {})
    assert not takes(make, {"kind": "k200", "value": "x"}, {})
    same = [closed(kind=STRING, value={"const": i}, **{f"p{i}": NULL}) for i in range(60)]
    compiler.compile(constraint(JsonSchema({"oneOf": same})))
    with pytest.raises(ConstraintError, match="to tell them apart"):
        compiler.compile(
            constraint(JsonSchema({"oneOf": [{"type": "object", "properties": {f"p{i}": NULL}} for i in range(60)]}))
        )
