"""Remembered ids are those of exactly the text they were shown with, and memory is bounded."""

from collections.abc import Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tokenline.render.memory import IdMemory

PIECES = ("a|", "b|", "aa|", "|", "é|")


def line_of(pieces: Sequence[str], kind: int) -> tuple[str, np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """A text whose borders are behind each "|", with ids of one of several kinds: a character and the kind in each."""
    text = "".join(pieces)
    ids = np.array([ord(character) * 10 + kind for character in text], dtype=np.int32)
    places = np.array([[i, i + 1] for i in range(len(text))], dtype=np.int32).reshape(-1, 2)
    borders = [(i + 1, i + 1) for i, character in enumerate(text) if character == "|"]
    return text, ids, places, borders


class Memory(RuleBasedStateMachine):
    """Any order of showing and asking, in a memory far too small."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = IdMemory(max_bytes=6_000)

    @rule(
        pieces=st.lists(st.sampled_from(PIECES), max_size=8),
        kind=st.integers(0, 2),
        namespace=st.sampled_from((None, 1)),
    )
    def add(self, pieces: list[str], kind: int, namespace: int | None) -> None:
        text, ids, places, borders = line_of(pieces, kind)
        self.memory.add(namespace, text, ids, places, borders)

    @rule(pieces=st.lists(st.sampled_from(PIECES), max_size=8), namespace=st.sampled_from((None, 1, 2)))
    def find(self, pieces: list[str], namespace: int | None) -> None:
        text, _, places, borders = line_of(pieces, 0)
        length, ids, offsets = self.memory.find(namespace, text, [characters for characters, _ in borders])
        if namespace == 2:
            assert length == 0
        if length:
            assert text[length - 1] == "|"
            found = np.concatenate(ids)
            assert "".join(chr(id // 10) for id in found) == text[:length]
            assert np.concatenate(offsets).tolist() == places[:length].tolist()
        else:
            assert ids == offsets == []

    @invariant()
    def bounded(self) -> None:
        self.memory.check_integrity()
        assert (self.memory.num_bytes > 0) == (len(self.memory) > 0)


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_the_longest_known_beginning_is_found() -> None:
    memory = IdMemory()
    memory.add(None, *line_of(["a|", "b|", "aa|"], 1))
    text, _, _, borders = line_of(["a|", "b|", "b|"], 0)
    length, ids, _ = memory.find(None, text, [characters for characters, _ in borders])
    assert length == 4
    assert np.concatenate(ids).tolist() == line_of(["a|", "b|"], 1)[1].tolist()
    assert memory.find("another", text, [characters for characters, _ in borders])[0] == 0


def test_the_first_ids_shown_stay() -> None:
    memory = IdMemory()
    for kind in (1, 2):
        memory.add(None, *line_of(["a|", "b|"], kind))
    _, ids, _ = memory.find(None, "a|b|", [2, 4])
    assert np.concatenate(ids).tolist() == line_of(["a|", "b|"], 1)[1].tolist()


def test_what_is_used_outlives_what_is_not() -> None:
    memory = IdMemory(max_bytes=4_000)
    memory.add(None, *line_of(["a|"], 1))
    for n in range(50):
        memory.add(None, *line_of([f"{n}|"], 1))
        assert memory.find(None, "a|", [2])[0] == 2
    assert memory.find(None, "0|", [2])[0] == 0
    assert len(memory) < 15


def test_one_text_larger_than_the_memory_is_not_kept() -> None:
    memory = IdMemory(max_bytes=1_000)
    memory.add(None, *line_of(["a" * 1000 + "|"], 1))
    assert len(memory) == memory.num_bytes == 0
