"""Log probabilities of a prompt's own ids: which logits of a step they need, and what is kept of those.

The logits at one place of a line score the id behind it. Of each row only the log probabilities of that id and of the
most likely ones are kept, so a long prompt of a large vocabulary needs memory for the rows of one step at a time.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from tokenline.engine.scheduler import Chunk
from tokenline.engine.sequence import Sequence
from tokenline.models.base import Logits, TokenLogprob


@dataclass(frozen=True, slots=True)
class WantedLogits:
    """The rows of a batch whose logits are wanted, and what for. Places in `sampled` and `scored` count in `rows`."""

    rows: np.ndarray  # int32 [R], ascending
    sampled: list[int]  # one for each chunk that samples, in their order
    scored: list[tuple[Chunk, range]]

    def to_sample(self, logits: Logits) -> Logits:
        """The rows from which ids are sampled, of the logits of all rows."""
        return logits.take(self.sampled) if self.scored else logits


def wanted_logits(chunks: Rows[Chunk]) -> WantedLogits:
    """What a step of these chunks, laid one after another, needs of the model's logits."""
    rows: list[int] = []
    sampled: list[int] = []
    scored: list[tuple[Chunk, range]] = []
    start = 0
    for chunk in chunks:
        if places := chunk.scores:
            first = start - chunk.sequence.computed
            scored.append((chunk, range(len(rows), len(rows) + len(places))))
            rows += range(first + places.start, first + places.stop)
        start += chunk.length
        if chunk.samples:
            sampled.append(len(rows))
            rows.append(start - 1)
    return WantedLogits(np.array(rows, dtype=np.int32), sampled, scored)


def score(logits: Logits, wanted: WantedLogits) -> list[tuple[Sequence, list[TokenLogprob]]]:
    """The next log probabilities of each prompt that is scored; `is_broken` says whether they are any good."""
    found: list[tuple[Sequence, list[TokenLogprob]]] = []
    for chunk, rows in wanted.scored:
        sequence, places = chunk.sequence, chunk.scores
        ids = sequence.ids[places.start + 1 : places.stop + 1].tolist()
        found.append((sequence, logits.logprobs(rows, ids, sequence.request.prompt_logprobs or 0)))
    return found


def is_broken(scores: Rows[TokenLogprob]) -> bool:
    """Whether some came of logits that are no numbers."""
    return any(math.isnan(score.logprob) for score in scores)
