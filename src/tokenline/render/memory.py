"""Remembers the ids of the beginning of a text, so that the same text always becomes the same ids, at little cost.

A tokenizer cuts a text at every control token and encodes what lies between independently. So behind a control token
is a border: the ids of what comes before do not depend on what comes after. For each border of each line that was
added, this keeps the ids up to it, under a hash of the text up to it. Two things follow:

- A chat's next request is the last one plus a turn: only that turn is encoded.
- An answer can be added with the ids that the model generated, which may differ from those that its text encodes to.
  It is kept at the last border before it. When a client sends the answer back, or the part of it that it got, the line
  keeps those ids, and the prefix cache finds them.

Ids are given only for exactly the text that they were added with, and within the same namespace. When there are too
many entries, the least recently used go, with their answers. Safe to use from several threads.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

_ENTRY_BYTES = 400  # an entry without its ids: key, array object, dictionary slots
_ANSWER_BYTES = 400
_MAX_ANSWERS = 32  # at one border; the latest stay
_Key = tuple[Hashable, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What follows a border: the beginning of an assistant's turn, which the template wrote, and the answer."""

    text: str
    ids: np.ndarray  # int32 [n]
    offsets: np.ndarray  # int32 [n, 2]: characters of `text`
    begins_at: int  # characters of `text` that the template wrote

    @property
    def num_bytes(self) -> int:
        return _ANSWER_BYTES + 2 * len(self.text) + self.ids.nbytes + self.offsets.nbytes


@dataclass(frozen=True, slots=True)
class _Entry:
    """The ids between one border and the one before it."""

    parent: _Key | None  # the entry of the border before it; None for the first of a text
    ids: np.ndarray  # int32 [n]
    offsets: np.ndarray  # int32 [n, 2]: characters of the text
    end: int  # characters of the text up to this border
    answers: list[Answer] = field(default_factory=list)  # the latest last


class IdMemory:
    """Remembered ids of texts up to their borders, at most `max_bytes` of memory (counted, not measured)."""

    def __init__(self, max_bytes: int = 32 * 1024 * 1024):
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Borders and answers."""
        return len(self._entries) + sum(len(entry.answers) for entry in self._entries.values())

    def find(
        self, namespace: Hashable, text: str, borders: Sequence[int]
    ) -> tuple[int, list[np.ndarray], list[np.ndarray]]:
        """The longest beginning of `text` up to one of its borders whose ids are known: its length in characters, its
        ids and their offsets, in pieces; nothing if there is none. `borders` ascend.
        """
        keys = _keys(namespace, text, borders)
        with self._lock:
            for key in reversed(keys):
                chain = self._chain(key)
                if chain:
                    for link in chain:  # from the last to the first, so that no entry outlives its parent
                        self._entries.move_to_end(link)
                    entries = [self._entries[link] for link in reversed(chain)]
                    return entries[-1].end, [entry.ids for entry in entries], [entry.offsets for entry in entries]
        return 0, [], []

    def _chain(self, key: _Key) -> list[_Key]:
        """The entry and its parents up to the first; nothing if one of them is gone."""
        chain: list[_Key] = []
        step: _Key | None = key
        while step is not None:
            entry = self._entries.get(step)
            if entry is None:
                return []
            chain.append(step)
            step = entry.parent
        return chain

    def add(
        self,
        namespace: Hashable,
        text: str,
        ids: np.ndarray,
        offsets: np.ndarray,
        borders: Sequence[tuple[int, int]],
    ) -> None:
        """Remember the ids of `text` at its borders, each given as characters and ids up to it, ascending.

        What is known stays: a text keeps the first ids that were added for it.
        """
        keys = _keys(namespace, text, [characters for characters, _ in borders])
        with self._lock:
            parent: _Key | None = None
            start = 0
            for key, (characters, count) in zip(keys, borders, strict=True):
                known = self._entries.get(key)
                if known is None:
                    # copies, so that an entry does not keep the whole line's arrays
                    entry = _Entry(parent, ids[start:count].copy(), offsets[start:count].copy(), characters)
                    self._entries[key] = entry
                    self.num_bytes += _size(entry)
                elif known.parent != parent or not np.array_equal(known.ids, ids[start:count]):
                    return  # another way to write the same text; what follows would not fit behind it
                parent, start = key, count
            for key in reversed(keys):
                self._entries.move_to_end(key)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        while self.num_bytes > self.max_bytes and self._entries:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= _size(oldest)

    def add_answer(self, namespace: Hashable, text: str, border: int, answer: Answer) -> None:
        """Remember an answer behind a border of `text`, if that is known."""
        (key,) = _keys(namespace, text, [border])
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            # Those go that the new one begins with, and those that are no longer among the latest.
            for known in list(entry.answers):
                is_part = np.array_equal(known.ids, answer.ids[: len(known.ids)])
                if is_part or len(entry.answers) >= _MAX_ANSWERS:
                    entry.answers.remove(known)
                    self.num_bytes -= known.num_bytes
            entry.answers.append(answer)
            self.num_bytes += answer.num_bytes
            self._forget_oldest()

    def answers(self, namespace: Hashable, text: str, border: int) -> list[Answer]:
        """The answers that are known behind a border of `text`, the latest first."""
        (key,) = _keys(namespace, text, [border])
        with self._lock:
            entry = self._entries.get(key)
            return [] if entry is None else entry.answers[::-1]

    def check_integrity(self) -> None:
        """Raise AssertionError if the bytes do not add up or are too many."""
        assert self.num_bytes == sum(map(_size, self._entries.values()))
        assert self.num_bytes <= self.max_bytes


def _size(entry: _Entry) -> int:
    return _ENTRY_BYTES + entry.ids.nbytes + entry.offsets.nbytes + sum(answer.num_bytes for answer in entry.answers)


def _keys(namespace: Hashable, text: str, borders: Sequence[int]) -> list[_Key]:
    """One key for each beginning of the text: a cryptographic hash, so that equal keys mean equal texts."""
    digest = hashlib.blake2b(digest_size=16)
    keys: list[_Key] = []
    start = 0
    for border in borders:
        digest.update(text[start:border].encode("utf-8", "surrogatepass"))
        keys.append((namespace, digest.copy().digest()))
        start = border
    return keys
