"""The text of a rendered chat to ids, with control tokens where the template wrote them and nowhere else.

What is remembered is not encoded again (see `memory`). Stands between `Renderer`, which has the text, and `Tokenizer`,
which knows no templates.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from tokenline.render.control import ControlTokens
from tokenline.render.line import Line
from tokenline.render.memory import IdMemory
from tokenline.render.tokenizer import Tokenizer

BORDER_DISTANCE = 512  # characters between two places up to which a raw prompt is remembered


class LineEncoder:
    """Encodes chats of one model. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens, memory: IdMemory | None = None):
        self.tokenizer = tokenizer
        self.control = control
        self.memory = IdMemory() if memory is None else memory
        self._prompts = IdMemory()
        added = tokenizer.vocabulary.added
        self._control_ids = np.array(sorted(added[text] for text in control.texts), dtype=np.int32)
        self._ends_segment = {text for text in control.texts if tokenizer.ends_segment(text)}
        self._swallows_space = {text for text in self._ends_segment if tokenizer.swallows_space(text)}

    def encode(self, text: str, traced: str | None, namespace: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """Ids, int32 [n], and each one's characters, int32 [n, 2].

        `traced`: the same text with provenance; None where the text cannot hold a control token that is not the
        template's.
        """
        found = self.control.find(text)
        if traced is not None:
            written = self.control.find_written(traced)
            if written != found:
                return self._encode_apart(text, written)
        borders = [border for start, end in found if (border := self._border(text, start, end))]
        length, known_ids, known_offsets = self.memory.find(namespace, text, borders)
        rest, rest_offsets = self.tokenizer.encode_with_offsets(text[length:], continued=length > 0)
        ids = np.concatenate([*known_ids, np.array(rest, dtype=np.int32)])
        offsets = np.concatenate([*known_offsets, rest_offsets + np.int32(length)])
        self._store(text, ids, offsets, found, namespace)
        return ids, offsets

    def encode_prompt(self, text: str, namespace: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """Ids and offsets of a raw prompt, in which control tokens are read as such."""
        borders = self.tokenizer.word_borders(text, BORDER_DISTANCE)
        length, known_ids, known_offsets = self._prompts.find(namespace, text, borders)
        rest, rest_offsets = self.tokenizer.encode_with_offsets(text[length:], continued=length > 0)
        ids = np.concatenate([*known_ids, np.array(rest, dtype=np.int32)])
        offsets = np.concatenate([*known_offsets, rest_offsets + np.int32(length)])
        counts = np.searchsorted(offsets[:, 0], borders).tolist()
        self._prompts.add(namespace, text, ids, offsets, list(zip(borders, counts, strict=True)))
        return ids, offsets

    def _border(self, text: str, start: int, end: int, *, complete: bool = False) -> int | None:
        """Where the text can be cut behind the control token at `start` to `end`: what follows is encoded by itself.

        Behind a token that takes white space with it, that is the next other character; `complete`: or the text's end.
        """
        token = text[start:end]
        if token not in self._ends_segment:
            return None
        if token not in self._swallows_space:
            return end
        stop = end
        while stop < len(text) and text[stop].isspace():
            stop += 1
        return stop if stop < len(text) or complete else None

    def _store(
        self,
        text: str,
        ids: np.ndarray,
        offsets: np.ndarray,
        found: Sequence[tuple[int, int]],
        namespace: Hashable,
        *,
        complete: bool = False,
    ) -> None:
        """Remember this line, if its ids have a control token exactly where its text has one."""
        at = np.flatnonzero(np.isin(ids, self._control_ids))
        if len(at) != len(found):
            return
        borders: list[tuple[int, int]] = []
        for (start, end), i, (begin, stop) in zip(found, at.tolist(), offsets[at].tolist(), strict=True):
            if begin > start or stop < end or self.tokenizer.vocabulary.added[text[start:end]] != ids[i]:
                return
            border = self._border(text, start, end, complete=complete)
            if border is not None and (text[start:end] not in self._swallows_space or border == stop):
                borders.append((border, i + 1))
        self.memory.add(namespace, text, ids, offsets, borders)

    def remember(
        self,
        line: Line,
        generated: Sequence[int],
        end_ids: frozenset[int],
        closing: Iterable[int],
        namespace: Hashable,
    ) -> None:
        """Remember an answer behind its line as a later request will have it: closed by one of `closing`."""
        answer = list(generated)
        ends = set(closing)
        if answer and answer[-1] in end_ids:
            ends.add(answer.pop())
        data = b"".join(map(self.tokenizer.token_bytes, answer))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return  # cut inside a character: no client can send that back
        answer_offsets = self.tokenizer.offsets_of(text, np.array(answer, dtype=np.int32))
        if answer_offsets is None or not answer:
            return
        for end in ends:
            token = self.tokenizer.token_bytes(end).decode("utf-8", "replace")
            # a token that takes white space with it takes the line feed that templates write behind it
            for written in [token, token + "\n"] if token in self._swallows_space else [token]:
                whole = line.text + text + written
                start = len(line.text)
                last = [[start + len(text), len(whole)]]
                offsets = np.concatenate((line.offsets, answer_offsets + start, last)).astype(np.int32)
                ids = np.concatenate((line.ids, [*answer, end])).astype(np.int32)
                self._store(whole, ids, offsets, self.control.find(whole), namespace, complete=True)

    def _encode_apart(self, text: str, written: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text that holds control tokens' texts which are not the template's.

        Each stretch between two of the template's is encoded by itself; those that hold such a text with a tokenizer
        that does not know control tokens.
        """
        ids: list[int] = []
        offsets: list[np.ndarray] = []
        at = 0
        for start, end in [*written, (len(text), len(text))]:
            inside = text[at:start]
            if self.control.find(inside):
                some, places = self.tokenizer.encode_with_offsets(inside, as_text=self.control.texts, continued=at > 0)
                ids += some
                offsets.append(places + np.int32(at))
                at = start
            some, places = self.tokenizer.encode_with_offsets(text[at:end], continued=at > 0)
            ids += some
            offsets.append(places + np.int32(at))
            at = end
        return np.array(ids, dtype=np.int32), np.concatenate(offsets)
