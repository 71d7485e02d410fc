"""The text of a rendered chat to ids, with control tokens where the template wrote them and nowhere else.

What is remembered is not encoded again (see `memory`). Stands between `Renderer`, which has the text, and `Tokenizer`,
which knows no templates.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from tokenline.render.control import ControlTokens
from tokenline.render.echo import echoed
from tokenline.render.line import Line
from tokenline.render.memory import Answer, IdMemory
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
        if length and (echo := self._echo(text, length, found, namespace)) is not None:
            known_ids.append(echo[0])
            known_offsets.append(echo[1] + np.int32(length))
            length += int(echo[1][-1, 1])
        rest, rest_offsets = self.tokenizer.encode_with_offsets(text[length:], continued=length > 0)
        ids = np.concatenate([*known_ids, self.tokenizer.as_array(rest)])
        offsets = np.concatenate([*known_offsets, rest_offsets + np.int32(length)])
        self.memory.add(namespace, text, ids, offsets, self._borders(text, ids, offsets, found))
        return ids, offsets

    def _echo(
        self, text: str, border: int, found: Sequence[tuple[int, int]], namespace: Hashable
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids of a remembered answer that stand behind a border of `text`, and their offsets from there: of the answer
        of which most has come back. `found`: the control tokens in the text.
        """
        behind = text[border:]
        controls = [(start - border, end - border) for start, end in found if start >= border]
        best: tuple[np.ndarray, np.ndarray] | None = None
        for answer in self.memory.answers(namespace, text, border):
            count = echoed(answer, behind, controls)
            ids, offsets = answer.ids[:count], answer.offsets[:count]
            if count and (best is None or offsets[-1, 1] > best[1][-1, 1]):
                end = int(offsets[-1, 1])
                inside = [span for span in controls if span[1] <= end]
                if self._controls_of(behind, ids, offsets, inside) is not None and self._goes_on(behind, end, controls):
                    best = ids, offsets
        return best

    def _goes_on(self, text: str, at: int, controls: Sequence[tuple[int, int]]) -> bool:
        """Whether what follows at this place, up to the next control token, can be encoded by itself."""
        piece = text[at : next((start for start, _ in controls if start >= at), len(text))]
        return (
            not piece
            or self.tokenizer.offsets_of(piece, self.tokenizer.encode_with_offsets(piece, continued=True)[0])
            is not None
        )

    def encode_prompt(self, text: str, namespace: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """Ids and offsets of a raw prompt, in which control tokens are read as such."""
        borders = self.tokenizer.word_borders(text, BORDER_DISTANCE)
        length, known_ids, known_offsets = self._prompts.find(namespace, text, borders)
        rest, rest_offsets = self.tokenizer.encode_with_offsets(text[length:], continued=length > 0)
        ids = np.concatenate([*known_ids, self.tokenizer.as_array(rest)])
        offsets = np.concatenate([*known_offsets, rest_offsets + np.int32(length)])
        counts = np.searchsorted(offsets[:, 0], borders).tolist()
        self._prompts.add(namespace, text, ids, offsets, list(zip(borders, counts, strict=True)))
        return ids, offsets

    def _border(self, text: str, start: int, end: int) -> int | None:
        """Where the text can be cut behind the control token at `start` to `end`: what follows is encoded by itself.

        Behind a token that takes white space with it, that is the next other character.
        """
        token = text[start:end]
        if token not in self._ends_segment:
            return None
        if token not in self._swallows_space:
            return end
        stop = end
        while stop < len(text) and text[stop].isspace():
            stop += 1
        return stop if stop < len(text) else None

    def _controls_of(
        self, text: str, ids: np.ndarray, offsets: np.ndarray, found: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """Of each control token in a text, its place among the ids and the end of its characters. None unless the ids
        have a control token exactly where the text has one.
        """
        at = np.flatnonzero(np.isin(ids, self._control_ids))
        if len(at) != len(found):
            return None
        places: list[tuple[int, int]] = []
        for (start, end), i, (begin, stop) in zip(found, at.tolist(), offsets[at].tolist(), strict=True):
            if begin > start or stop < end or self.tokenizer.vocabulary.added[text[start:end]] != ids[i]:
                return None
            places.append((i, stop))
        return places

    def _borders(
        self, text: str, ids: np.ndarray, offsets: np.ndarray, found: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The borders of a text, each as characters and ids up to it."""
        borders: list[tuple[int, int]] = []
        for (start, end), (i, stop) in zip(found, self._controls_of(text, ids, offsets, found) or (), strict=False):
            border = self._border(text, start, end)
            if border is not None and (text[start:end] not in self._swallows_space or border == stop):
                borders.append((border, i + 1))
        return borders

    def remember(self, line: Line, generated: Sequence[int], end_ids: frozenset[int], namespace: Hashable) -> None:
        """Remember an answer, or as much of it as there was, behind its line."""
        answer = list(generated)
        if answer and answer[-1] in end_ids:
            answer.pop()
        borders = self._borders(line.text, line.ids, line.offsets, self.control.find(line.text))
        if not answer or not borders:
            return
        text, answer_offsets = self.tokenizer.decode_with_offsets(answer, continued=True)
        border, count = borders[-1]
        begins_at = len(line.text) - border
        ids = np.concatenate((line.ids[count:], np.array(answer, dtype=np.int32)))
        offsets = np.concatenate((line.offsets[count:] - np.int32(border), answer_offsets + np.int32(begins_at)))
        self.memory.add_answer(namespace, line.text, border, Answer(line.text[border:] + text, ids, offsets, begins_at))

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
        return self.tokenizer.as_array(ids), np.concatenate(offsets)
