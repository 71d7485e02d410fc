"""Logits in main memory, and what is done to a row of them before its next id is drawn. See `base.Logits`."""

from collections.abc import Sequence

import numpy as np

from tokenline.models.base import RowSampling, TokenLogprob
from tokenline.models.cpu.draw import draw, workspace


class NumpyLogits:
    """`values`: float32 [R, vocab], each row without gaps."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        ids = np.argmax(self.values, axis=1)
        return self.values[np.arange(len(ids)), ids], ids

    def forbid(self, ids: np.ndarray) -> None:
        self.values[:, ids] = -np.inf

    def choose(self, rows: Sequence[RowSampling]) -> np.ndarray:
        vocab = self.values.shape[1]
        memory = workspace(vocab) if any(row.temperature > 0 for row in rows) else None
        chosen = np.empty(len(rows), np.int64)
        for at, row in enumerate(rows):
            logits = _edited(self.values[row.row], row)
            if row.mask is not None and not logits.max() > -np.inf:
                chosen[at] = -1
            elif row.temperature > 0 and memory is not None:
                how = float(row.temperature), int(row.top_k), float(row.top_p), float(row.min_p), float(row.uniform)
                chosen[at] = draw(logits, *how, memory)
            else:
                chosen[at] = np.argmax(logits)
        return chosen

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], top: int) -> list[TokenLogprob]:
        return [self._logprobs_of(self.values[row], token_id, top) for row, token_id in zip(rows, ids, strict=True)]

    @staticmethod
    def _logprobs_of(values: np.ndarray, token_id: int, top: int) -> TokenLogprob:
        # The exponentials in single precision, which is several times as fast: their sum is right to 1e-7 of itself.
        largest = values.max()
        with np.errstate(invalid="ignore"):  # of a broken row
            log_total = float(largest) + float(np.log(np.exp(values - largest).sum(dtype=np.float64)))
        best = most_likely(values, min(top, len(values)))
        best = best[values[best] != -np.inf]  # forbidden ones
        likely = values[best].astype(np.float64) - log_total
        logprob = float(values[token_id]) - log_total
        rank = int(np.count_nonzero(values > values[token_id])) + 1
        return TokenLogprob(logprob, tuple(zip(best.tolist(), likely.tolist(), strict=True)), rank)

    def take(self, rows: Sequence[int]) -> "NumpyLogits":
        return NumpyLogits(self.values[np.asarray(rows, np.intp)])

    def to_numpy(self) -> np.ndarray:
        return self.values


def _edited(logits: np.ndarray, row: RowSampling) -> np.ndarray:
    """The row with its penalties, bias, mask and ids to hold back; a copy if there are any."""
    if row.is_unedited:
        return logits
    logits = logits.copy()
    if row.repeated is not None:  # arXiv:1909.05858, as in transformers' RepetitionPenaltyLogitsProcessor
        seen, penalty = logits[row.repeated], np.float32(row.repetition_penalty)
        logits[row.repeated] = np.where(seen > 0, seen / penalty, seen * penalty)
    for ids, values in row.added:
        logits[ids] += values
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[: len(logits)]
        logits[: len(bits)] = np.where(bits.view(bool), logits[: len(bits)], np.float32(-np.inf))
        logits[len(bits) :] = -np.inf
    if row.held_back is not None:
        before = logits[row.held_back]
        logits[row.held_back] = -np.inf
        if not logits.max() > -np.inf:  # nothing but the end is left: a constraint has all it wants
            logits[row.held_back] = before
    return logits


def most_likely(values: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest of values [n], largest first, equal ones in the order of their ids."""
    if k == 1:
        return np.array([values.argmax()])
    if k < len(values):
        smallest = np.partition(values, len(values) - k)[len(values) - k] if k else np.inf
        above = np.flatnonzero(values > smallest)
        ids = np.concatenate([above, np.flatnonzero(values == smallest)[: k - len(above)]])
    else:
        ids = np.arange(len(values))
    return ids[np.lexsort((ids, -values[ids]))]
