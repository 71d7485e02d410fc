"""Chunks -> the model -> next ids; and, where a step fails, which requests are to blame.

Changes nothing but the KV pool, and the number that a sequence has drawn for its next id. To compute a chunk again
writes the same keys and values to the same places, and chooses the same id. So a step that failed is computed again in
parts, and the requests that are not to blame never notice.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tokenline.engine.request import Request
from tokenline.engine.sampler import Sampled, SamplingError, sample
from tokenline.engine.scheduler import Chunk
from tokenline.engine.scoring import score, wanted_logits
from tokenline.models.base import Batch, BatchSequence, KVPool, Model, TokenLogprob

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """A chunk that is computed."""

    chunk: Chunk
    reaches_end: bool  # of its line, with which the chunk ended when it was computed
    sampled: Sampled | SamplingError | None  # the next id of its line, if it samples one
    scores: Sequence[TokenLogprob]  # the next log probabilities of its prompt, if that is scored


@dataclass(slots=True)
class Outcome:
    """What became of a step's chunks."""

    computed: list[Result] = field(default_factory=list)
    failed: list[tuple[Request, Exception]] = field(default_factory=list)  # to blame
    at_once: bool = True  # it was not computed in parts


class Runner:
    """Runs one model on one KV pool."""

    def __init__(self, model: Model, kv: KVPool, forbidden: Sequence[int] = ()):
        """`forbidden`: ids that are never sampled."""
        self._model = model
        self._kv = kv
        self._forbidden = np.array(forbidden, np.int64)

    def _attempt(self, chunks: list[Chunk]) -> list[Result] | Exception:
        """Compute these together; or what the model or the sampler raised."""
        try:
            wanted = wanted_logits(chunks)
            logits = self._model.forward(_batch(chunks, wanted.rows), self._kv)
            scores = {id(sequence): found for sequence, found in score(logits, wanted)}
            ends = [chunk.sequence for chunk in chunks if chunk.samples]
            to_sample = wanted.to_sample(logits)
            if len(self._forbidden):
                to_sample.forbid(self._forbidden)
            sampled = iter(sample(to_sample, ends, self._model.config.vocab_size))
            return [
                Result(
                    chunk,
                    chunk.reaches_end,
                    next(sampled) if chunk.samples else None,
                    scores.get(id(chunk.sequence), ()),
                )
                for chunk in chunks
            ]
        except Exception as error:
            return error

    def compute(self, chunks: list[Chunk]) -> Outcome:
        """Compute these together; if that fails, in halves, down to single ones, whose requests are then to blame."""
        together = self._attempt(chunks)
        if not isinstance(together, Exception):
            return Outcome(together)
        outcome = Outcome(at_once=False)
        failed: dict[int, tuple[Request, Exception]] = {}

        def split(part: list[Chunk], error: Exception) -> None:
            if len(part) == 1:
                request = part[0].sequence.request
                failed[id(request)] = request, error
                return
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                if half := [chunk for chunk in half if id(chunk.sequence.request) not in failed]:
                    attempt = self._attempt(half)
                    if isinstance(attempt, Exception):
                        split(half, attempt)
                    else:
                        outcome.computed += attempt

        split(chunks, together)
        outcome.failed = list(failed.values())
        return outcome

    def can_compute(self, block: int) -> bool:
        """Whether the model computes a line that is nobody's, in a block that is nobody's."""
        zero = np.zeros(1, np.int32)
        try:
            line = BatchSequence(0, 1, 0, np.array([block], np.int32))
            self._model.forward(Batch(zero, zero, (line,), zero), self._kv)
        except Exception:
            log.exception("the model fails on whatever it is given")
            return False
        return True


def _batch(chunks: list[Chunk], logit_rows: np.ndarray) -> Batch:
    ids, positions, sequences, start = [], [], [], 0
    for chunk in chunks:
        sequence, end = chunk.sequence, chunk.sequence.computed + chunk.length
        ids.append(sequence.ids[sequence.computed : end])
        positions.append(np.arange(sequence.computed, end, dtype=np.int32))
        table = np.asarray(sequence.blocks, dtype=np.int32)
        sequences.append(BatchSequence(start, chunk.length, sequence.computed, table))
        start += chunk.length
    return Batch(np.concatenate(ids), np.concatenate(positions), tuple(sequences), logit_rows)
