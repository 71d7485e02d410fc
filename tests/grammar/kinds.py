"""JSON schemas of all kinds with values that fulfil them and values that do not, written by hand.

The official suite has more of each; it is fetched, and this always runs.
"""

from typing import Any, NamedTuple


class Kind(NamedTuple):
    schema: Any
    valid: list[Any]
    invalid: list[Any]


STRING, INTEGER, NUMBER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}


def closed(**properties: Any) -> dict[str, Any]:
    """An object of just these members."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TREE = closed(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/n"}, NULL]})
CAT, DOG = closed(kind={"const": "cat"}), closed(kind={"enum": ["dog", "wolf"]}, name=STRING)
ANYTHING = [None, True, False, 0, -1, 2.5, 1e30, "", '中文 😀 \n\t"\\', [], [[1], {}], {}, {"a": {"b": [None]}}]

KINDS = [
    # types, lists of values
    Kind(True, ANYTHING, []),
    Kind({}, ANYTHING, []),
    Kind({"type": "null"}, [None], [False, 0, "", "null", []]),
    Kind({"type": "boolean"}, [True, False], [None, 0, 1, "true"]),
    Kind(INTEGER, [0, -7, 123456789012345678901234567890], [1.5, "1", None, True]),
    Kind(NUMBER, [0, -7, 1.5, -0.25, 1e30, 2.5e-7], ["1.5", None, True]),
    Kind(STRING, ["", "a", "中文 😀", 'a\n"\\\t\u0001'], [1, None, []]),
    Kind({"type": ["string", "null"]}, ["x", None], [1, True]),
    Kind({"type": "array"}, [[], [1, "a", [None]]], [{}, "[]"]),
    Kind({"type": "object"}, [{}, {"a": [1]}], [[], "{}"]),
    Kind(
        {"const": {"a": [1, "中"], "b": None}}, [{"a": [1, "中"], "b": None}], [{"a": [1, "中"]}, {"a": [1], "b": None}]
    ),
    Kind(
        {"enum": ["a", "也许", 3, None, False, [1], {"x": 1}]},
        ["a", "也许", 3, None, False, [1], {"x": 1}],
        ["b", 4, True, 0, [], {}],
    ),
    Kind({"type": "string", "enum": ["x", 2]}, ["x"], [2]),
    Kind({"type": ["string", "null"], "enum": ["a", None]}, ["a", None], ["b"]),
    Kind({"enum": ["x", "y"], "const": "y"}, ["y"], ["x"]),
    # numbers
    Kind({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 9, 12], [-4, 13, 120]),
    Kind({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, [1, 9], [0, 10, -1]),
    Kind({"type": "number", "minimum": 0.5, "maximum": 1.25}, [0.5, 1, 1.2, 1.25], [0.4, 0, 1.26, 2]),
    Kind({"type": "number", "exclusiveMinimum": 0}, [0.1, 5, 100.25], [0, -1, -0.5]),
    Kind({"exclusiveMinimum": True, "minimum": 2, "type": "integer"}, [3, 10], [2, 1]),
    Kind({"minimum": 2}, [2, 3.5, "text", None, [], {}], [1, 1.9, -3]),
    Kind({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 6, 8, -13]),
    Kind({"type": "number", "multipleOf": 0.25}, [0.25, 1, 1.75], [0.3, 1.1]),
    Kind({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, [0, 12, 24], [4, 6, 8, 18]),
    Kind({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [0, -5, 10**17], [10**19]),
    # strings
    Kind(
        {"type": "string", "minLength": 2, "maxLength": 3},
        ["ab", "中文", "😀\n", '"\\x'],
        ["a", "中", "abcd", "😀", ""],
    ),
    Kind({"type": "string", "pattern": "b+"}, ["b", "abba", "中b"], ["", "a"]),
    Kind({"type": "string", "pattern": "^x_[a-z]+$"}, ["x_a"], ["ax_a", "x_", "x_a "]),
    Kind({"type": "string", "pattern": "^a|b$"}, ["a1", "1b", "a"], ["1a1", "b1"]),
    Kind({"type": "string", "pattern": r"^[^$^]\$?$"}, ["a$", "b"], ["$", "ab"]),
    Kind({"type": "string", "pattern": r"^\d+/\w+$"}, ["12/a_Z"], ["١/a", "12/é", "12"]),
    Kind({"type": "string", "pattern": "^[\\u4e00-\\u9fff]{2,3}$"}, ["中文", "也许是"], ["中", "中文字字", "ab"]),
    Kind({"type": "string", "pattern": "^a\\nb$"}, ["a\nb"], ["anb", "ab"]),
    Kind(
        {"type": "string", "pattern": "^(?=.*\\d)(?=.*[A-Z])[A-Za-z\\d]{3,}$"},
        ["aB1", "1Bccc"],
        ["aaa", "aB", "ab1", "B1"],
    ),
    Kind({"type": "string", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+$"}, ["a.b", "a", "a."], [".a", "a..b", ""]),
    Kind(
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ["ab", "abcd"], ["a", "abcde", "AB"]
    ),
    Kind({"pattern": "^a+$"}, ["aa", 5, None, {"b": 1}], ["b", ""]),
    Kind({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "ba", "xaxbx"], ["a", "b", ""]),
    Kind({"type": "string", "format": "date"}, ["2026-01-31"], []),
    Kind({"type": "string", "format": "date", "pattern": "^2026"}, ["2026-01-31"], ["2025-01-31"]),
    Kind({"type": "string", "format": "password", "minLength": 3}, ["abc"], ["ab"]),
    Kind({"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000", 5], []),
    # arrays
    Kind(
        {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}, [[1], [1, 2, 3]], [[], [1, 2, 3, 4], ["a"]]
    ),
    Kind(
        {"type": "array", "prefixItems": [STRING, INTEGER], "items": False},
        [[], ["a"], ["a", 1]],
        [[1], ["a", "b"], ["a", 1, 1]],
    ),
    Kind({"type": "array", "prefixItems": [STRING], "items": INTEGER}, [["a", 1, 2]], [["a", "b"], [1]]),
    Kind({"type": "array", "items": [STRING, INTEGER], "additionalItems": False}, [["a", 1]], [["a", 1, 2], [1]]),
    Kind({"type": "array", "items": [STRING], "additionalItems": INTEGER}, [["a", 1]], [["a", "b"]]),
    Kind({"items": {"type": "array", "items": NUMBER}}, [[[1, 2.5], []], "text"], [[1], [["a"]]]),
    Kind({"type": "array", "prefixItems": [INTEGER], "unevaluatedItems": False}, [[1]], [[1, 2]]),
    Kind({"type": "array", "uniqueItems": False, "contains": {}, "minContains": 0}, [[1, 1]], [{}]),
    Kind({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 1]]),
    Kind({"type": "array", "minItems": 2.0}, [[1, 2]], [[1]]),
    # objects
    Kind(
        {"type": "object", "properties": {"a": INTEGER}}, [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": None}], [{"a": "x"}]
    ),
    Kind(
        {"properties": {"a": INTEGER}, "required": ["a"]},
        [{"a": 1}, 5, "x", {"b": 2, "a": 1}],
        [{}, {"a": "x"}, {"b": 1}],
    ),
    Kind({"type": "object", "required": ["b"]}, [{"b": 1}, {"a": 2, "b": None}], [{}, {"a": 1}]),
    Kind(closed(a=INTEGER, 名=STRING), [{"a": 1, "名": "中"}], [{"a": 1}, {"a": 1, "名": "x", "b": 1}, {}]),
    Kind({"type": "object", "properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    Kind({"type": "object", "additionalProperties": INTEGER}, [{}, {"x": 1, "y": 2}], [{"x": "a"}]),
    Kind(
        {"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER},
        [{"a": "x", "b": 1}],
        [{"a": 1}, {"b": "x"}],
    ),
    Kind(
        {"type": "object", "patternProperties": {"^x_": INTEGER}},
        [{"x_abc": 1}, {"y": "a"}, {"x_": 2}],
        [{"x_abc": "a"}],
    ),
    Kind(
        {"type": "object", "patternProperties": {"^x_": INTEGER}, "additionalProperties": False},
        [{"x_a": 1}],
        [{"y": 1}],
    ),
    Kind(
        {"type": "object", "patternProperties": {"^x_": INTEGER, "^y_": STRING}},
        [{"x_a": 1, "y_b": "z"}],
        [{"x_a": "1"}, {"y_b": 1}],
    ),
    Kind(
        {"type": "object", "properties": {"ab": {"minimum": 5}}, "patternProperties": {"^a": INTEGER}},
        [{"ab": 7}, {"ac": 1}],
        [{"ab": 1}, {"ab": "x"}, {"ac": "x"}],
    ),
    Kind({"type": "object", "propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    Kind(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": INTEGER},
        [{"ab": 1}],
        [{"AB": 1}, {"ab": "x"}],
    ),
    Kind(
        {"type": "object", "propertyNames": {"enum": ["x", "y/z"]}, "additionalProperties": STRING},
        [{"x": "1"}, {"y/z": ""}],
        [{"z": "1"}, {"x": 1}],
    ),
    Kind(
        {"type": "object", "properties": {"a": INTEGER, "bcd": INTEGER}, "propertyNames": {"maxLength": 1}},
        [{"a": 1}, {"b": "x"}],
        [{"bcd": 1}, {"a": "x"}],
    ),
    Kind({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
    Kind({"propertyNames": {"const": "a"}}, [{"a": 1}, 5], [{"b": 1}]),
    Kind({"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    Kind({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    Kind(
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "minProperties": 1,
            "additionalProperties": False,
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}],
    ),
    Kind({"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False}, [{"a": 1}, {}], [{"b": 1}]),
    Kind(
        {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    Kind(
        {"type": "object", "properties": {"not": STRING, "if": NULL, "$ref": INTEGER}},
        [{"not": "x", "if": None, "$ref": 1}],
        [{"not": 1}, {"$ref": "x"}],
    ),
    Kind(
        {"type": "object", "properties": {'a"\n/~\\': INTEGER}, "additionalProperties": False},
        [{'a"\n/~\\': 1}],
        [{"a": 1}],
    ),
    # members for which there is no name, and values that there are none of, are not begun
    Kind(
        {"propertyNames": {"enum": ["up", "down"]}, "additionalProperties": NUMBER, "required": ["up", "down"]},
        [{"up": 1, "down": 2.5}, 5],
        [{"up": 1}, {"up": 1, "down": "x"}, {"up": 1, "down": 2, "left": 3}],
    ),
    Kind(
        {"properties": {"a": INTEGER}, "patternProperties": {"^a$": {"minimum": 3}}, "additionalProperties": False},
        [{}, {"a": 3}],
        [{"a": 2}, {"a": "x"}, {"b": 1}],
    ),
    Kind(
        {"type": "object", "required": ["a"], "patternProperties": {"^(a|b)$": INTEGER}, "additionalProperties": False},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"b": 1}, {"a": "x"}, {"a": 1, "c": 2}],
    ),
    Kind({"properties": {"a": {"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 3}}}, [{}], [{"a": 3}]),
    Kind({"items": {"minimum": 0.1, "exclusiveMaximum": 0.5, "multipleOf": 0.5}}, [[], ["x"]], [[0.5], [0.25]]),
    Kind({"type": "integer", "minimum": 1, "multipleOf": 2.5, "maximum": 5}, [5], [2, 4]),
    # combinations
    Kind({"anyOf": [INTEGER, {"type": "string", "maxLength": 2}]}, [1, "ab"], ["abc", 1.5, None]),
    Kind(
        {"allOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}}]},
        [{"a": 1}, {"a": 1, "b": "x"}, 5],
        [{}, {"a": 1, "b": 2}],
    ),
    Kind({"allOf": [{"minimum": 2}, {"maximum": 5}], "type": "integer"}, [2, 5], [1, 6]),
    Kind({"allOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, ["ab"], ["a", 1]),
    Kind({"allOf": [{"$ref": "#/$defs/s"}], "$defs": {"s": STRING}, "description": "d"}, ["x"], [1]),
    Kind(
        {"type": "object", "properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 2}],
        [{}, {"a": "x"}],
    ),
    Kind({"type": "string", "anyOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, ["a", "b"], ["c", 1]),
    Kind(
        {"oneOf": [CAT, DOG]},
        [{"kind": "cat"}, {"kind": "dog", "name": "Rex"}],
        [{"kind": "dog"}, {"kind": "cat", "name": "x"}, {}],
    ),
    Kind({"oneOf": [STRING, INTEGER, NULL]}, ["x", 1, None], [1.5, True]),
    Kind(
        {"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}], "$defs": {"c": CAT, "d": DOG}},
        [{"kind": "cat"}, {"kind": "wolf", "name": ""}],
        [{"kind": "cow"}],
    ),
    Kind({"type": "string", "oneOf": [STRING, INTEGER]}, ["x"], [1]),
    Kind(
        {"oneOf": [{"type": "integer", "multipleOf": 5}], "allOf": [{"multipleOf": 2}], "anyOf": [{"multipleOf": 3}]},
        [30, 0],
        [15, 10, 6],
    ),
    Kind({"not": {"type": "string"}}, [1, None, []], ["x"]),
    Kind({"type": ["string", "integer"], "not": {"type": "string"}}, [1], ["x"]),
    Kind({"if": {"type": "string"}}, ["x", 1], []),
    # references
    Kind(
        {"$defs": {"n": TREE}, "$ref": "#/$defs/n"},
        [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}],
        [{"v": 1}, {"v": 1, "next": {}}],
    ),
    Kind({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], [[1], 1]),
    Kind(
        {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "type": "object"},
        [{"kids": [{}, {"kids": []}]}],
        [{"kids": [1]}],
    ),
    Kind({"$defs": {"s": STRING}, "$ref": "#/$defs/s", "maxLength": 3}, ["abc"], ["abcd", 1]),
    Kind({"$defs": {"s": {"$anchor": "here", **INTEGER}}, "$ref": "#here"}, [1], ["x"]),
    Kind({"$id": "http://example.com/root", "$defs": {"s": {"$id": "part", **INTEGER}}, "$ref": "part"}, [1], ["x"]),
    Kind({"properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}}, [{"a": 1, "b": 2}], [{"b": "x"}]),
    Kind(
        {
            "definitions": {"a/b": INTEGER, "c~d%": STRING},
            "properties": {"x": {"$ref": "#/definitions/a~1b"}, "y": {"$ref": "#/definitions/c~0d%25"}},
        },
        [{"x": 1, "y": "z"}],
        [{"x": "a"}, {"y": 1}],
    ),
    Kind(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": INTEGER}, "$ref": "#/$defs/a"},
        [1],
        ["x"],
    ),
    Kind({"$defs": {"x": {"if": True, "then": False}, "y": INTEGER}, "$ref": "#/$defs/y"}, [1], ["x"]),
    # what an answer might run into without end is not offered
    Kind(
        {"anyOf": [NULL, {"type": "object", "properties": {"a": {"$ref": "#/anyOf/1"}}, "required": ["a"]}]},
        [None],
        [{}, {"a": None}],
    ),
    Kind(
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "deprecated": True, "type": "boolean"},
        [True],
        ["true"],
    ),
]
