"""Places of a request and the sentences that name them."""

import pickle
from typing import Any

import pytest

from tokenline.fields import FieldError, Places, dotted, json_pointer, shown

PATH = ("messages", 0, "content", 1, "type")


def test_notations() -> None:
    assert dotted(PATH) == "messages[0].content[1].type"
    assert json_pointer(PATH) == "/messages/0/content/1/type"
    assert json_pointer(("tools", 0, "a/b", "~c")) == "/tools/0/a~1b/~0c"
    assert dotted(()) == json_pointer(()) == ""


def test_an_error_names_its_fields_as_the_reader_knows_them() -> None:
    error = FieldError(("n",), "cannot be combined with ", ("best_of",), ".", code="unsupported_value")
    assert str(error) == "'n' cannot be combined with 'best_of'."
    assert error.text(json_pointer) == "'/n' cannot be combined with '/best_of'."
    assert FieldError((), "Nothing fits.").text() == "Nothing fits."
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.path, copy.parts, copy.code) == (FieldError, error.path, error.parts, error.code)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-1.5, "-1.5"),
        (float("inf"), "a number that is not finite"),
        ("né", '"né"'),
        ([1, 2], "an array of 2"),
        ((1,), "an array of 1"),
        ({"a": 1}, "an object"),
    ],
)
def test_a_value_is_shown_as_json(value: Any, text: str) -> None:
    assert shown(value) == text


def test_what_is_long_is_cut() -> None:
    assert len(shown("x" * 1000)) <= 63
    assert shown(10**100) == "1" + "0" * 59 + "…"
    assert shown("abcdef", limit=3) == '"abc…"'


def test_places_spell_a_path_as_the_client_did() -> None:
    places = Places({("messages", 4): ("messages", 3, "content", 1), ("max_tokens",): ("words",)})
    assert places(("messages", 4, "content")) == ("messages", 3, "content", 1, "content")
    assert places(("messages", 5, "content")) == ("messages", 5, "content")
    assert places(("max_tokens",)) == ("words",)
    assert places(()) == ()
    fault = FieldError(("max_tokens",), "must be less than ", ("messages", 4), ".")
    assert places.text(fault) == "'words' must be less than 'messages[3].content[1]'."


def test_the_longest_place_that_fits_counts() -> None:
    places = Places({("output",): ("response_format",), ("output", "a"): ("guided_json", "a")})
    assert places(("output", "a", "b")) == ("guided_json", "a", "b")
    assert places(("output", "c")) == ("response_format", "c")
