"""Schemas from reports: strings with escapes and patterns, records, models that refer to themselves (cases r2-..)."""

from typing import Any

import pytest

from tests.grammar.drive import byte_compiler, constraint, lets_through
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.spec import JsonSchema


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler(close_objects=True)


def check(compiler: GrammarCompiler, schema: Any, right: list[str], wrong: list[str]) -> None:
    """`right` and `wrong`: answers as they are written."""
    make = compiler.compile(constraint(JsonSchema(schema)))
    for text in right:
        assert lets_through(make, text), text
    for text in wrong:
        assert not lets_through(make, text), text


QUOTES, LINES, PATH, PLAIN = r'"say \"hi\""', r'"line1\nline2"', r'"C:\\x"', '"plain"'
CODE_POINTS = [r'"\u0041b"', r'"\n\n"', r'"\"a"', r'"\ud83d\ude00a"', '"😀a"']


@pytest.mark.parametrize(
    ("keywords", "right", "wrong"),
    [
        ({"minLength": 1}, [QUOTES, LINES, PATH, PLAIN], ['""']),
        ({"maxLength": 2000}, [QUOTES, LINES, PATH, PLAIN, '""'], ["1"]),
        ({"minLength": 1, "maxLength": 20}, [QUOTES, LINES, PATH, PLAIN], ['""', f'"{"x" * 21}"']),
        # JSON Schema's patterns are ECMA-262's: a dot is no line break
        ({"pattern": "^.+$"}, [QUOTES, PATH, PLAIN], [LINES, '""']),
        ({"pattern": r"^[\s\S]+$"}, [QUOTES, LINES, PATH, PLAIN], ['""']),
        # lengths count the characters of what is meant, however they are written
        ({"minLength": 2, "maxLength": 2}, CODE_POINTS, [r'"\n"', '"😀"', r'"\ud83d\ude00"', r'"\n\n\n"', r'"\u0041"']),
        ({"pattern": "a", "minLength": 2}, ['"ab"', r'"\na"'], ['"a"', '"bb"']),
        ({"format": "email", "maxLength": 9}, ['"a@b.co"'], ['"aaaaaaaa@b.co"', '"a"']),
    ],
)
def test_escapes_in_strings_with_conditions(compiler: GrammarCompiler, keywords: Any, right: list, wrong: list):
    """r2-01"""
    check(compiler, {"type": "string", **keywords}, right, wrong)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^/", ["/etc/hosts", "/", r"/a\nb"], ["a", "", "a/"]),
        (r"\S", [" a ", "ab"], ["", " "]),
        ("^https?://", ["https://x.y/z?q=1", "http://"], ["ftp://x", " https://"]),
        (r"\.md$", ["a.md", ".md"], ["amd", "a.md "]),
        ("[A-Z]", ["abC", "A", "Abc"], ["abc", ""]),
        ('^"[^"]*"$', [r"\"ab\""], ["ab", r"\"ab"]),
        (r"^\\", [r"\\a"], ["a"]),
        (r"a\tb", [r"a\tb", r"xa\tb!"], ["ab", "a\tb"]),
        (r'[\t\n"\\]', [r"a\t", r"\n", r"\"", r"x\\y"], ["abc"]),
        (r"^\p{L}+$", ["æø中"], ["1", ""]),
        ("a|^b|c$", ["xay", "bx", "xc"], ["xb", "cx"]),
    ],
)
def test_patterns_search(compiler: GrammarCompiler, pattern: str, right: list[str], wrong: list[str]):
    """r2-02"""
    schema = {"type": "object", "properties": {"path": {"type": "string", "pattern": pattern}}, "required": ["path"]}
    check(compiler, schema, [f'{{"path": "{text}"}}' for text in right], [f'{{"path": "{text}"}}' for text in wrong])


def test_patterns_of_names_search(compiler: GrammarCompiler):
    """r2-02"""
    schema = {"type": "object", "patternProperties": {"^x_": {"type": "string"}}, "additionalProperties": False}
    check(compiler, schema, ['{"x_a": "b"}', '{"x_": "b", "x_long_name": ""}', "{}"], ['{"x_a": 1}', '{"ax_": "b"}'])


def test_a_record_of_strings(compiler: GrammarCompiler):
    """r2-07"""
    record = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}}
    schema = {"type": "object", "properties": {"data": record}, "required": ["data"], "additionalProperties": False}
    check(compiler, schema, ['{"data": {"a": "b", "中": ""}}', '{"data": {}}'], ['{"data": {"a": 1}}', "{}"])


def test_a_model_that_refers_to_itself(compiler: GrammarCompiler):
    """r2-11"""
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/D"}, "default": []},
        },
        "required": ["name"],
    }
    right = ['{"name": "a"}', '{"name": "a", "friends": [{"name": "b", "friends": [{"name": "c"}]}]}']
    check(compiler, {"$defs": {"D": node}, "$ref": "#/$defs/D"}, right, ['{"name": 1}', '{"friends": []}'])


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "multipleOf": 5}, ["10", "0", "-5"], ["3"]),
        ({"type": "number", "multipleOf": 0.01}, ["0.25", "1"], ["0.255"]),
        ({"type": "string", "format": "date", "maxLength": 10}, ['"2026-11-30"'], ['"2026"']),
        (
            {"items": [{"type": "string"}, {"type": "integer"}], "type": "array"},
            ['["a", 1]', '["a", 1, null]'],
            ["[1]"],
        ),
        (
            {"type": "array", "items": [{"type": "string"}], "additionalItems": False, "minItems": 1},
            ['["a"]'],
            ["[]", '["a", 1]'],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
            ['{"a": "x", "b": 1}'],
            ['{"a": "x"}', '{"a": "x", "b": 1, "c": 1}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            ['{"a": "x"}', '{"b": "x"}'],
            ["{}", '{"a": 1}'],
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
                ]
            },
            ['{"a": "x", "b": 1}'],
            ['{"a": "x"}', '{"a": "x", "b": "y"}'],
        ),
        ({"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{4,}$"}, ['"Abc1"'], ['"abc1"', '"Ab1"']),
        ({"type": ["string", "null"], "pattern": "^a", "minLength": 2}, ['"ab"', "null"], ['"a"', "1"]),
        ({"enum": ["a\nb", 'q"', "\\"]}, [r'"a\nb"', r'"q\""', r'"\\"'], ['"a"']),
    ],
)
def test_keywords_beside_each_other(compiler: GrammarCompiler, schema: Any, right: list[str], wrong: list[str]):
    check(compiler, schema, right, wrong)
