import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.parse.tools.schema import ToolSchemas, text_to_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["string", "object", "#/$defs/A", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "enum",
                    "const",
                    "properties",
                    "items",
                    "nullable",
                    "$defs",
                    "p",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def types(schema: Any, **root: Any) -> set[str]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"p": schema}, **root}}}]
    return set(ToolSchemas(tools).types("f", "p"))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, {"object", "null"}),
        ({"oneOf": [{"type": "integer"}, {"anyOf": [{"type": "array"}]}]}, {"integer", "array"}),
        ({"$ref": "#/$defs/Place"}, {"object"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 2.5}, {"number"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": "int"}, {"integer"}),
        ({}, set()),
        (True, set()),
        ({"$ref": "#/$defs/Nowhere"}, set()),
        ({"$ref": "#/$defs/Loop"}, set()),
    ],
)
def test_the_types_a_schema_allows(schema: Any, expected: set[str]) -> None:
    definitions = {"Place": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert types(schema, **{"$defs": definitions}) == expected


@pytest.mark.parametrize(
    ("text", "allowed", "value"),
    [
        ("7", "number", 7),
        ("7.5", "number", 7.5),
        ("1e3", "number", 1000.0),
        (".5", "number", 0.5),
        ("7.0", "integer", 7),
        ("+07", "integer", 7),
        ("7.5", "integer", "7.5"),
        ("nan", "number", "nan"),
        ("1_000", "number", "1_000"),
        ("9" * 5000, "integer", "9" * 5000),  # more digits than Python turns into a number
        ("True", "boolean", True),
        ("yes", "boolean", "yes"),
        ("None", "string null", None),
        ("null", "string", "null"),
        ("00417", "string", "00417"),
        ("00417", "string integer", 417),
        ('{"a": [1]}', "object", {"a": [1]}),
        ("{'a': True}", "object", {"a": True}),
        (r'"{\"a\": 1}"', "object", {"a": 1}),  # encoded twice
        ('{"a": 1}', "array string", '{"a": 1}'),
        ("[1, 2]", "array", [1, 2]),
        ("[1, 2", "array", "[1, 2"),
        (" padded ", "string", " padded "),
        ('{"a": 1}', "", {"a": 1}),
        ("text", "", "text"),
        ('"quoted"', "", "quoted"),
    ],
)
def test_what_a_text_means_under_a_schema(text: str, allowed: str, value: object) -> None:
    got = json.loads(text_to_json(text, frozenset(allowed.split())))
    assert got == value
    assert type(got) is type(value)


@given(tools=JSON, name=st.sampled_from(["f", "p"]), text=st.text(max_size=8))
def test_no_schema_breaks_it_and_the_result_is_always_json(tools: Any, name: str, text: str) -> None:
    wrapped = [{"function": {"name": "f", "parameters": {"properties": {"p": tools}, "$defs": tools}}}]
    for given_tools in (tools if isinstance(tools, list) else [tools], wrapped):
        schemas = ToolSchemas(given_tools)
        json.loads(text_to_json(text, schemas.types(name, "p")))
        schemas.positional(name)
