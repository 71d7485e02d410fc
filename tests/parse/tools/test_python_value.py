import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.parse.tools.python_value import python_to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_what_python_writes_comes_back(value: object) -> None:
    assert json.loads(python_to_json(repr(value))) == value


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("(1, 2)", [1, 2]),
        ("-1", -1),
        ("+1.5", 1.5),
        ('{"a": true, "b": null}', {"a": True, "b": None}),
        ("{1: 'a', None: 'b'}", {"1": "a", "null": "b"}),
        ("'a' 'b'", "ab"),
        (r"'\ud800'", "?"),
    ],
)
def test_literals(source: str, value: object) -> None:
    assert json.loads(python_to_json(source)) == value


@pytest.mark.parametrize(
    "source",
    ["", "x", "f(1)", "1 + 1", "b'a'", "1j", "{1, 2}", "{[1]: 2}", "{**{}}", "1e999", "[x for x in y]", "f'{x}'", "a.b",
     "...", "__import__('os').system('true')", "(" * 5000, "[" * 90 + "]" * 90 + "(", "-" * 50_000 + "1", "9" * 5000,
     "\0"],
)  # fmt: skip
def test_anything_else_is_refused_and_never_run(source: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        python_to_json(source)
