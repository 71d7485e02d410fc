import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenline.parse.json_text import complete, copy_value, whole_value
from tokenline.parse.source import Source

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ALMOST = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            '"',
            "\\",
            " ",
            "\n",
            "1",
            "-",
            ".",
            "e",
            "null",
            "True",
            '"a"',
            "'",
            "u00e9",
            "x",
        ]
    ),
    max_size=12,
).map("".join)


@given(
    value=VALUES,
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    after=st.sampled_from(["", "}", " ]", "\n<"]),
)
def test_valid_json_is_copied_as_it_stands_and_ends_where_it_ends(
    value: object, indent: int | None, ascii_only: bool, after: str
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    source, copy = Source(), []
    source.push(text + after)
    source.end(cut=False)
    assert complete(copy_value(source, copy.append))
    assert "".join(copy) == text
    assert complete(source.at_end()) == (not after)


@given(text=ALMOST)
@settings(max_examples=500)
@example('{"a":1,}')
@example('[1,"\\q\n\\\'"]')
def test_what_is_copied_whole_is_valid_json(text: str) -> None:
    copied = whole_value(text)
    if copied is not None:
        json.loads(copied)
    else:  # and nothing valid is refused
        with pytest.raises(ValueError):  # noqa: PT011
            json.loads(text, parse_constant=float)


@given(text=ALMOST, place=st.integers(0, 12))
@settings(max_examples=300)
def test_a_value_in_two_pieces_is_the_same(text: str, place: int) -> None:
    results = []
    for pieces in ([text], [text[:place], text[place:]], list(text)):
        source, copy = Source(), []
        reading = copy_value(source, copy.append)
        result = None
        try:
            next(reading)
            for piece in pieces:
                source.push(piece)
                next(reading)
            source.end(cut=False)
            next(reading)
        except StopIteration as done:
            result = done.value
        results.append(("".join(copy), result))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "one\ntwo\ttabs"}', {"a": "one\ntwo\ttabs"}),
        (r'{"path": "C:\Users\me", "re": "\d+\s"}', {"path": r"C:\Users\me", "re": r"\d+\s"}),
        (r'{"a": "it\'s"}', {"a": "it's"}),
        ('{"a": True, "b": [False, None]}', {"a": True, "b": [False, None]}),
        ('{"a": [1, 2, ], }', {"a": [1, 2]}),
        ('{"u": "\\u12"}', {"u": "\\u12"}),
    ],
)
def test_what_can_be_meant_in_one_way_only_is_mended(written: str, meant: object) -> None:
    copied = whole_value(written)
    assert copied is not None
    assert json.loads(copied) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "'a'",
        "{'a: 1}",
        '{"a" 1}',
        '{"a": }',
        "{,}",
        "[,]",
        "[1 2]",
        "[1}",
        "nul",
        "NaN",
        "01",
        "1.",
        "+1",
        '"a',
        "{}}",
        "٣",
    ],
)
def test_anything_else_is_no_json(text: str) -> None:
    assert whole_value(text) is None


def test_any_depth_is_a_matter_of_memory_only() -> None:
    text = "[" * 200_000 + "]" * 200_000
    assert whole_value(text) == text
    assert whole_value(text[:-1]) is None
