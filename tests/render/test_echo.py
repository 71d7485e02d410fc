"""Which ids of an answer that was generated begin a text that has come back."""

import numpy as np
import pytest

from tokenline.render.echo import echoed
from tokenline.render.memory import Answer, IdMemory

TURN = "assistant\n"


def answer(*pieces: str, turn: str = TURN) -> Answer:
    """An answer of one id a piece, behind a turn of one id."""
    parts = [turn, *pieces]
    ends = np.cumsum([len(part) for part in parts])
    offsets = np.stack((np.append(0, ends[:-1]), ends), axis=1).astype(np.int32)
    return Answer("".join(parts), np.arange(len(parts), dtype=np.int32), offsets, len(turn))


WHOLE = answer("Br", "ussels", ",", " of", " cour", "se")
END = "<|end|>"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Brussels, of course" + END, 7),
        ("Brussels, of course\n" + END, 7),  # the template's white space
        ("Brussels, of course  \n\n", 7),
        ("Brussels, of" + END, 5),  # the client has gone
        ("Brussels, of" + END + "user\nAnother", 5),
        ("Brussels, of co" + END, 5),  # cut inside of a token, by a stop string
        ("Bru" + END, 2),
        ("Br" + END, 2),
        ("B" + END, 0),
        (END, 0),
        ("Brussels, of course!" + END, 0),  # edited
        ("Brussels, for sure" + END, 0),
        ("Paris" + END, 0),
    ],
)
def test_a_whole_and_a_cut_answer_keep_their_ids_an_edited_one_does_not(text: str, ids: int):
    behind = TURN + text
    start = behind.find(END)
    controls = [(start, start + len(END))] if start >= 0 else []
    assert echoed(WHOLE, behind, controls) == ids


def test_of_an_answer_with_control_tokens_those_parts_count_that_come_before_a_change():
    thought = answer("<think>", "I", " think", "</think>", "Well", " then")
    for text, ids in (
        ("<think>I think</think>Well then" + END, 7),
        ("<think>I think</think>Bad" + END, 5),
        ("<think>I think</think>" + END, 5),
        ("<think>I\n</think>\n\n" + END, 3),  # stopped while it was thinking: the template closes what it had said
        ("<think>I disagree</think>" + END, 2),
        ("Well then" + END, 0),
    ):
        behind = TURN + text
        tokens = ("<think>", "</think>", END)
        controls = sorted((behind.index(t), behind.index(t) + len(t)) for t in tokens if t in behind)
        assert echoed(thought, behind, controls) == ids, text


def test_a_control_token_that_begins_like_the_answer_goes_on_is_none_of_it():
    one = answer("a", "<b", ">")
    behind = TURN + "a" + END
    assert echoed(one, behind, [(len(TURN) + 1, len(behind))]) == 2


def test_ids_that_share_a_character_are_not_parted():
    offsets = np.array([[0, 10], [10, 11], [11, 12], [11, 12], [12, 13]], np.int32)
    one = Answer(TURN + "aéb", np.arange(5, dtype=np.int32), offsets, 10)
    assert [echoed(one, TURN + "aéb"[:n], []) for n in range(4)] == [0, 2, 4, 5]


def test_answers_are_kept_with_their_border_and_count_as_memory():
    memory = IdMemory()
    ids, offsets = np.arange(3, dtype=np.int32), np.array([[0, 1], [1, 2], [2, 3]], np.int32)
    memory.add(None, "ab|", ids, offsets, [(3, 3)])
    before = memory.num_bytes
    memory.add_answer(None, "ab|xyz", 3, WHOLE)
    memory.add_answer(None, "abc|", 4, WHOLE)  # not known
    memory.add_answer("another", "ab|", 3, WHOLE)
    assert memory.answers(None, "ab|ff", 3) == [WHOLE]
    assert memory.answers("another", "ab|ff", 3) == []
    assert memory.num_bytes == before + WHOLE.num_bytes
    part = Answer(WHOLE.text[:18], WHOLE.ids[:3], WHOLE.offsets[:3], WHOLE.begins_at)
    memory.add_answer(None, "ab|", 3, part)
    memory.add_answer(None, "ab|", 3, WHOLE)  # the part is in it
    assert memory.answers(None, "ab|", 3) == [WHOLE]
    for number in range(100):
        other = Answer(TURN, np.array([number], np.int32), np.array([[0, len(TURN)]], np.int32), 0)
        memory.add_answer(None, "ab|", 3, other)
    assert len(memory.answers(None, "ab|", 3)) == 32
    memory.check_integrity()
    memory.max_bytes = 500
    memory.add(None, "z|", ids[:2], offsets[:2], [(2, 2)])
    memory.check_integrity()
    assert memory.answers(None, "ab|", 3) == []
