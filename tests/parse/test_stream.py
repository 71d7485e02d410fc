import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parse.fake_tokens import Vocabulary, content, cut_at
from tokenline.parse.delta import ContentDelta, Delta, ReasoningDelta, join
from tokenline.parse.stop import StopStrings
from tokenline.parse.stream import EndReason, OutputStream

TEXTS = st.text(st.sampled_from("ab漢😀 \n"), max_size=12)
DATA = st.lists(st.one_of(TEXTS.map(str.encode), st.binary(max_size=3)), max_size=5).map(b"".join)
STOPS = st.lists(st.text(st.sampled_from("ab漢😀\n\ufffd"), min_size=1, max_size=3), max_size=3)


@given(data=DATA, stop=STOPS, borders=st.sets(st.integers(0, 60)), batch=st.integers(1, 5))
def test_streamed_deltas_equal_the_whole_for_all_ways_of_cutting(
    data: bytes, stop: list[str], borders: set[int], batch: int
) -> None:
    tokens = Vocabulary(cut_at(data, borders))
    stream = OutputStream(tokens, stop=stop)
    deltas: list[Delta] = []
    for start in range(0, len(tokens.ids), batch):  # an engine step may bring several ids
        deltas += stream.feed(tokens.ids[start : start + batch])
    deltas += stream.finish(cut=True)

    matcher = StopStrings(stop)
    text = matcher.feed(data.decode("utf-8", "replace")) + matcher.finish()
    assert content(deltas) == text
    assert stream.stopped == (matcher.matched is not None)
    assert stream.end_reason == (EndReason.STOP_STRING if stream.stopped else EndReason.LENGTH)


@pytest.mark.parametrize("pieces", [["fine\nQ", "7: why"], ["fine", "\n", "Q7", ":", " why"]])
def test_st_02_stop_string_across_ids(pieces: list[str]) -> None:
    tokens = Vocabulary(pieces)
    stream = OutputStream(tokens, stop=["\nQ7:"])
    deltas = stream.feed(tokens.ids)
    assert stream.stopped
    assert content(deltas + stream.finish(cut=False)) == "fine"
    assert stream.end_reason is EndReason.STOP_STRING
    assert stream.stop_string == "\nQ7:"


def test_a_stop_string_found_in_what_was_held_back_ends_the_answer() -> None:
    tokens = Vocabulary([b"a", b"\xc2"])
    stream = OutputStream(tokens, stop=["\ufffd"])
    assert content(stream.feed(tokens.ids) + stream.finish(cut=True)) == "a"
    assert stream.end_reason is EndReason.STOP_STRING


def test_ids_after_a_stop_string_neither_come_out_nor_count() -> None:
    tokens = Vocabulary(["a", "STOP", "b", "c"])
    stream = OutputStream(tokens, stop=["STOP"])
    assert content(stream.feed(tokens.ids) + stream.feed([2, 3]) + stream.finish(cut=False)) == "a"
    assert stream.completion_tokens == 2


@pytest.mark.parametrize("special", [{2}, set()])
def test_st_07_every_end_id_ends_the_answer_and_counts(special: set[int]) -> None:
    tokens = Vocabulary(["Hel", "lo", "<|eot_id|>", "assistant", "\n\n"], special=special)
    for batch in (1, 5):
        stream = OutputStream(tokens, end_ids={2, 77})
        deltas: list[Delta] = []
        for start in range(0, 5, batch):
            deltas += stream.feed(tokens.ids[start : start + batch])
        deltas += stream.finish(cut=False)
        assert content(deltas) == "Hello"
        assert (stream.end_reason, stream.completion_tokens, stream.ended) == (EndReason.END_OF_TURN, 3, True)


def test_with_ignore_eos_a_control_token_is_still_no_text() -> None:
    tokens = Vocabulary(["a", "<|im_end|>", "b"], special={1})
    stream = OutputStream(tokens)
    assert content(stream.feed(tokens.ids) + stream.finish(cut=True)) == "ab"


def test_st_04_cut_in_the_middle_of_a_character() -> None:
    tokens = Vocabulary([b"abc", b"\xe4\xbd"])
    stream = OutputStream(tokens)
    assert stream.feed(tokens.ids) == [ContentDelta("abc")]
    assert stream.finish(cut=True) == [ContentDelta("\ufffd")]
    assert stream.end_reason is EndReason.LENGTH


def test_text_held_for_a_stop_string_comes_at_the_end() -> None:
    tokens = Vocabulary(["a ST", "O"])
    stream = OutputStream(tokens, stop=["STOP"])
    assert content(stream.feed([0])) == "a "
    assert stream.feed([1]) == []
    assert content(stream.finish(cut=False)) == "STO"
    assert not stream.stopped


def test_token_offsets_say_where_each_id_was_added() -> None:
    tokens = Vocabulary(["ab", b"\xe6\xbc", b"\xa2", "", "c"])
    stream = OutputStream(tokens)
    stream.feed(tokens.ids)
    assert stream.token_offsets == [0, 2, 2, 3, 3]


def test_join_keeps_the_order_of_parts() -> None:
    deltas = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        ContentDelta("c"),
        ContentDelta("d"),
        ReasoningDelta("e"),
    ]
    assert join(deltas) == [ReasoningDelta("ab"), ContentDelta("cd"), ReasoningDelta("e")]
