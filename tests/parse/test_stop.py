import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.parse.stop import StopStrings

# Two letters and short strings: nearly every example has overlapping and nested stop strings.
LETTERS = st.sampled_from("ab漢")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text(LETTERS, max_size=5), max_size=8)


def reference(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The rule, said plainly: look at every character whether a stop string ends there, longest first."""
    for end in range(len(text) + 1):
        for candidate in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(candidate):
                return text[: end - len(candidate)], candidate
    return text, None


@given(stop=STOPS, pieces=PIECES)
def test_every_way_of_cutting_gives_the_same_text(stop: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(stop)
    streamed = "".join(matcher.feed(piece) for piece in pieces) + matcher.finish()
    assert (streamed, matcher.matched) == reference("".join(pieces), stop)


@given(stop=STOPS, pieces=PIECES)
def test_no_more_and_no_less_is_held_than_could_become_a_match(stop: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(stop)
    seen = given_out = ""
    for piece in pieces:
        seen += piece
        given_out += matcher.feed(piece)
        if matcher.matched is not None:
            return
        longest = max((k for s in stop for k in range(len(s)) if seen.endswith(s[:k])), default=0)
        assert given_out == seen[: len(seen) - longest]


@pytest.mark.parametrize("pieces", [["fine\nQ", "7: why"], ["fine", "\n", "Q7", ":", " why"], ["fine\nQ7: why"]])
def test_st_02_a_stop_string_across_pieces(pieces: list[str]) -> None:
    matcher = StopStrings(["\nQ7:"])
    assert "".join(matcher.feed(piece) for piece in pieces) + matcher.finish() == "fine"
    assert matcher.matched == "\nQ7:"


def test_a_match_that_begins_inside_another_that_fails() -> None:
    matcher = StopStrings(["aab", "ac"])
    assert [matcher.feed(c) for c in "aac"] == ["", "", "a"]
    assert matcher.matched == "ac"


def test_nothing_comes_after_a_match() -> None:
    matcher = StopStrings(["."])
    assert matcher.feed("one. two") == "one"
    assert (matcher.feed(" three."), matcher.finish()) == ("", "")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_many_long_stop_strings_over_a_long_answer() -> None:
    stop = ["a" * 2_000 + str(number) for number in range(10)]
    matcher = StopStrings(stop)
    given_out = sum(len(matcher.feed("aaaa")) for _ in range(10_000))
    assert given_out == 40_000 - 2_000
    assert matcher.feed("7 and more") == ""
    assert matcher.matched == stop[7]
