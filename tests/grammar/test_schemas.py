"""What grammars of JSON schemas let through: never a value that its schema forbids."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grammar.compare import compare, hand_written, official, real
from tests.grammar.drive import LAYOUTS, byte_compiler, constraint, lets_through, stops_at, takes
from tests.grammar.kinds import INTEGER, KINDS, STRING, Kind, closed
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import JsonSchema


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: json.dumps(kind.schema, ensure_ascii=False)[:70])
def test_every_kind_lets_through_what_is_valid_and_nothing_else(compiler: GrammarCompiler, kind: Kind):
    make = compiler.compile(constraint(JsonSchema(kind.schema)))
    for layout in LAYOUTS:
        for value in kind.valid:
            assert takes(make, value, layout), value
        for value in kind.invalid:
            assert not takes(make, value, layout), value


def test_the_official_suite(compiler: GrammarCompiler):
    """Nothing is too loose. What is refused and too tight may become less."""
    try:
        cases = list(official())
    except Exception as error:  # no network, another index
        pytest.skip(f"the package jsonschema's source, which holds the suite, cannot be fetched: {error}")
    found = compare(compiler, cases)
    assert found.schemas > 350
    assert found.too_loose == []
    assert len(found.refused) <= 132
    assert len(found.too_tight) <= 10, found.too_tight  # 1.0 for 1, and vocabularies that switch validation off
    assert found.by_format <= 10


@pytest.mark.slow
def test_the_official_suite_where_nothing_is_strict(compiler: GrammarCompiler):
    """Nothing is refused but what no value fulfils, and what is left out makes nothing tighter."""
    found = compare(compiler, official(), most=6, lenient=True)
    assert len(found.too_tight) <= 10, found.too_tight
    assert [fault for fault in found.refused if "cannot be fulfilled" not in fault] == []


@pytest.mark.parametrize("lenient", [False, True])
def test_objects_that_are_closed_forbid_undeclared_members_only(compiler: GrammarCompiler, lenient: bool):
    pytest.importorskip("jsonschema", reason="the package jsonschema tells which values are valid")
    closing = byte_compiler(close_objects=True)
    for cases in (hand_written(), real(changes=8)):
        found = compare(closing, cases, most=4, lenient=lenient, leaving_open=compiler)
        assert found.too_tight == []
        assert lenient or found.too_loose == []
        assert found.by_closing > 0


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": INTEGER}}, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
        ({"properties": {"a": INTEGER}, "required": ["a", "b"]}, [{"a": 1, "b": "x"}], [{"a": 1, "b": 1, "c": 1}]),
        ({"properties": {"a": INTEGER}, "additionalProperties": True}, [{"a": 1, "b": 1}], [{"a": "x"}]),
        ({"properties": {"a": INTEGER}, "additionalProperties": STRING}, [{"b": "x"}], [{"b": 1}]),
        ({"properties": {"a": INTEGER}, "patternProperties": {"^x_": STRING}}, [{"x_y": "b"}, {"c": 1}], [{"x_y": 1}]),
        ({"properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"b": 1}], [{"c": 1}]),
        ({"properties": {"a": {"properties": {"b": INTEGER}}}}, [{"a": {"b": 1}}], [{"a": {"c": 1}}]),
        ({"type": "object"}, [{"a": 1}], [1]),
        # left out because it cannot be enforced: then others may say something of the members
        ({"properties": {"a": INTEGER}, "if": {}, "then": {"required": ["b"]}}, [{"b": 1}], [{"a": "x"}]),
        ({"properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1}, [{"a": 1}], [{"c": 1}]),
        ({"properties": {"a": INTEGER}, "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": "x"}]),
    ],
)
def test_closed_objects(schema: Any, right: list[Any], wrong: list[Any]):
    make = byte_compiler(close_objects=True).compile(constraint(JsonSchema({"type": "object", **schema}, lenient=True)))
    for value in right:
        assert takes(make, value, {}), value
    for value in wrong:
        assert not takes(make, value, {}), value


def test_schemas_that_people_send(compiler: GrammarCompiler):
    pytest.importorskip("jsonschema", reason="the package jsonschema tells which values are valid")
    found = compare(compiler, real(changes=24), most=4)
    assert found.too_loose == []
    assert found.too_tight == []
    assert len(found.refused) <= 3, found.refused
    assert found.values > 1_000


def test_hand_written_kinds_are_all_taken(compiler: GrammarCompiler):
    assert compare(compiler, hand_written()).refused == []


DEEP: Any = {"a": [{"b": {"c": [[{"d": "中"}], []]}}, {}], "e": {"f": {"g": {"h": {"i": {"j": [1, {"k": {}}]}}}}}}


@pytest.mark.parametrize("schema", [True, {"type": "object"}, {"properties": {"a": {"type": "array"}}}])
@pytest.mark.parametrize(
    "layout",
    [
        {"separators": (",", ":")},
        {},
        *({"indent": indent} for indent in (1, 2, 4, 8, "\t")),
        {"indent": 2, "separators": (", ", " : ")},
    ],
    ids=str,
)
def test_common_layouts_however_deep(compiler: GrammarCompiler, schema: Any, layout: dict[str, Any]):
    make = compiler.compile(constraint(JsonSchema(schema)))
    assert lets_through(make, json.dumps(DEEP, ensure_ascii=False, **layout))
    assert lets_through(make, json.dumps(DEEP, ensure_ascii=False, **layout).replace("\n", "\r\n"))


def test_thirty_levels_of_four_columns(compiler: GrammarCompiler):
    value: Any = []
    for _ in range(29):
        value = [value]
    make = compiler.compile(constraint(JsonSchema({"type": "array"})))
    assert lets_through(make, json.dumps(value, indent=4))


@pytest.mark.parametrize("space", ["\n\n", " " * 20, "\n" + " " * 200, "\t\n\t\n"])
def test_white_space_has_an_end(compiler: GrammarCompiler, space: str):
    make = compiler.compile(constraint(JsonSchema({"type": "array", "items": INTEGER})))
    assert not lets_through(make, f"[1,{space}2]")
    assert not lets_through(make, f"{space}[1]")
    assert not lets_through(make, "[1] ")


class TestEscapes:
    def test_characters_may_be_escaped(self, compiler: GrammarCompiler):
        make = compiler.compile(constraint(JsonSchema({"type": "string", "minLength": 2, "maxLength": 2})))
        for text in ('"\\u4e2d\\n"', '"\\ud83d\\ude00a"', '"\\"\\\\"', '"\\u0061\\u0000"'):
            assert lets_through(make, text)
        for text in ('"\\u4e2d"', '"\\ud83d\\ude00"', '"\\ud83da"', '"\\x61a"', '"a\nb"'):
            assert not lets_through(make, text)

    def test_a_name_in_escapes_is_no_way_around_its_schema(self, compiler: GrammarCompiler):
        for schema in (
            {"type": "object", "properties": {"a": INTEGER}},
            {"type": "object", "required": ["a"], "additionalProperties": INTEGER},
            {"type": "object", "patternProperties": {"^a": INTEGER}},
            {"type": "array", "items": {"properties": {"a": INTEGER}}},
        ):
            make = compiler.compile(constraint(JsonSchema(schema)))
            for text in ('{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}'):
                text = f"[{text}]" if schema["type"] == "array" else text
                assert json.loads(text)
                assert not lets_through(make, text)

    def test_short_escapes_in_names(self, compiler: GrammarCompiler):
        make = compiler.compile(constraint(JsonSchema({"type": "object", "properties": {'a"\n': INTEGER}})))
        assert lets_through(make, '{"a\\"\\n": 1, "b\\t": 2}')
        assert not lets_through(make, '{"a\\"\\n": "x"}')
        assert not lets_through(make, '{"a\\u0022\\n": "x"}')


OPEN = {"type": "object", "properties": {"a": INTEGER, "b": {"properties": {"c": STRING}}}, "required": ["a", "z"]}


@pytest.fixture(scope="module")
def closing() -> GrammarCompiler:
    return byte_compiler(close_objects=True)


class TestClosing:
    """Objects that do not say whether there may be other members: open, or closed while sampling."""

    def test_by_default_json_schema_holds(self, compiler: GrammarCompiler):
        make = compiler.compile(constraint(JsonSchema(OPEN)))
        assert takes(make, {"a": 1, "z": 2, "more": 3}, {})

    def test_closed(self, closing: GrammarCompiler):
        make = closing.compile(constraint(JsonSchema(OPEN)))
        assert takes(make, {"a": 1, "z": 2}, {})
        assert takes(make, {"a": 1, "b": {"c": "x"}, "z": 2}, {})
        assert not takes(make, {"a": 1, "z": 2, "more": 3}, {})
        assert not takes(make, {"a": 1, "b": {"d": "x"}, "z": 2}, {})

    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True}, {"b": 1}),
            ({"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING}, {"b": "x"}),
            ({"type": "object", "properties": {"a": INTEGER}, "patternProperties": {"^x": STRING}}, {"x": "x"}),
            ({"type": "object"}, {"b": 1}),
            ({}, {"b": {"c": 1}}),
            ({"allOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": STRING}}]}, {"a": 1, "b": "x"}),
            ({"properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": "x"}),
            ({"$ref": "#/$defs/p", "properties": {"y": STRING}, "$defs": {"p": OPEN}}, {"a": 1, "z": 1, "y": ""}),
        ],
    )  # fmt: skip
    def test_what_says_so_or_is_put_together_stays_open(self, closing: GrammarCompiler, schema: Any, value: Any):
        assert takes(closing.compile(constraint(JsonSchema(schema))), value, {})

    @pytest.mark.parametrize(
        "schema",
        [
            {"allOf": [{"type": "object", "properties": {"a": INTEGER}}]},
            {"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "properties": {"a": INTEGER}}}},
            {"anyOf": [{"type": "object", "properties": {"a": INTEGER}}, {"type": "null"}]},
        ],
    )
    def test_what_only_points_to_an_object_closes_it(self, closing: GrammarCompiler, schema: Any):
        make = closing.compile(constraint(JsonSchema(schema)))
        assert takes(make, {"a": 1}, {})
        assert not takes(make, {"a": 1, "b": 1}, {})

    @pytest.mark.parametrize(
        ("schema", "right"),
        [
            ({"allOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": STRING}}]}, {"a": 1, "b": "x"}),
            ({"allOf": [{"properties": {"a": INTEGER}}], "required": ["b"]}, {"a": 1, "b": "x"}),
            ({"properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": "x"}),
            ({"properties": {"a": INTEGER}, "oneOf": [closed(a=INTEGER), {"properties": {"b": {"const": 1}}}]}, None),
            ({"$ref": "#/$defs/p", "properties": {"y": STRING}, "$defs": {"p": OPEN}}, {"a": 1, "z": 1, "y": ""}),
            (
                {"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"y": STRING}}], "$defs": {"p": OPEN}},
                {"a": 1, "z": 1, "y": ""},
            ),
        ],
    )
    def test_an_object_that_several_schemas_describe(self, closing: GrammarCompiler, schema: Any, right: Any):
        make = closing.compile(constraint(JsonSchema({"type": "object", **schema}, lenient=right is None)))
        for value in [] if right is None else [right]:
            assert takes(make, value, {})
            assert not takes(make, {**value, "more": 1}, {})

    @pytest.mark.parametrize(
        "schema",
        [
            {"allOf": [{"properties": {"a": INTEGER}}, {"additionalProperties": True}]},
            {"allOf": [{"properties": {"a": INTEGER}}, {"patternProperties": {"^m": INTEGER}}]},
            {"allOf": [{"required": ["a"]}, {"minProperties": 1}]},
            {"properties": {"a": INTEGER}, "anyOf": [{"const": {"a": 1, "more": 1}}, {"required": ["a"]}]},
            {"allOf": [{"properties": {"a": INTEGER}}, {"minProperties": 2}]},
        ],
    )
    def test_one_of_them_says_more(self, closing: GrammarCompiler, schema: Any):
        make = closing.compile(constraint(JsonSchema(schema, lenient=True)))
        assert takes(make, {"a": 1, "more": 1}, {})

    def test_closed_schemas_take_no_other_values_than_open_ones(
        self, compiler: GrammarCompiler, closing: GrammarCompiler
    ):
        for kind in KINDS:
            try:
                make = closing.compile(constraint(JsonSchema(kind.schema)))
            except ConstraintError:
                continue  # closed, nothing may be left
            for value in kind.invalid:
                assert not takes(make, value, {}), (kind.schema, value)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab中/~\"", max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(value=JSON)
def test_a_constant_lets_through_itself(compiler: GrammarCompiler, value: Any):
    make = compiler.compile(constraint(JsonSchema({"const": value})))
    for layout in LAYOUTS:
        assert lets_through(make, json.dumps(value, ensure_ascii=False, **layout))
    other = json.dumps([value, 1])
    assert not lets_through(make, other)


@given(value=JSON)
def test_anything_lets_through_all_json(compiler: GrammarCompiler, value: Any):
    make = compiler.compile(constraint(JsonSchema({})))
    for layout in LAYOUTS:
        assert lets_through(make, json.dumps(value, ensure_ascii=False, **layout))
        assert lets_through(make, json.dumps(value, **layout))


@given(
    low=st.integers(-2000, 2000), width=st.integers(0, 3000), places=st.integers(0, 3), value=st.integers(-5000, 5000)
)
def test_bounds_of_numbers(compiler: GrammarCompiler, low: int, width: int, places: int, value: int):
    scale = 10**places
    schema = {"type": "number", "minimum": low / scale, "maximum": (low + width) / scale}
    make = compiler.compile(constraint(JsonSchema(schema)))
    number = value / scale
    text = str(int(number)) if number == int(number) else str(number)
    assert lets_through(make, text) == (low <= value <= low + width), (schema, text)


def test_a_text_that_goes_wrong_stops_where_it_does(compiler: GrammarCompiler):
    make = compiler.compile(constraint(JsonSchema(closed(a=INTEGER))))
    assert stops_at(make, '{"a": "x"}') == len('{"a": ')
