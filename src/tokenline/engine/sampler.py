"""Logits -> the next id of each sequence, and its log probability where asked for.

Greedy rows are one argmax for the whole batch. Any other row is treated by itself, on the CPU, so that a sequence
draws the same ids whoever shares its batch. The order of operations is the field's usual one: logit bias, penalties,
constraint, stop ids before min_tokens, temperature, then top_k, top_p and min_p, then one draw.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np

from tokenline.engine.request import SamplingParams, TokenLogprob
from tokenline.engine.sequence import Sequence
from tokenline.models.base import Logits

# Nucleus sampling looks at the most likely ids first; only if they do not reach top_p is the whole row sorted.
NUCLEUS_GUESS = 512


class Sampled(NamedTuple):
    token_id: int
    logprob: TokenLogprob | None


class SamplingError(Exception):
    """No id can be drawn for one sequence: its logits are broken, or its constraint allows none of them."""


def sample(logits: Logits, sequences: Rows[Sequence]) -> list[Sampled | SamplingError]:
    """The next id of each sequence from its row of `logits`, A row's error harms no other row."""
    if not sequences:
        return []
    best_logit, best_id = (values.tolist() for values in logits.best())
    rows = logits.to_numpy()
    results: list[Sampled | SamplingError] = []
    for row, sequence in enumerate(sequences):
        params = sequence.params
        try:
            if not np.isfinite(best_logit[row]):
                raise SamplingError(f"the model's largest logit is {best_logit[row]}")
            if is_plain_greedy(sequence):
                token_id = best_id[row]
            else:
                token_id = choose(adjust(rows[row].copy(), sequence), params, sequence.random)
        except SamplingError as error:
            results.append(error)
            continue
        logprob = None if params.logprobs is None else logprob_of(rows[row], token_id, params)
        results.append(Sampled(token_id, logprob))
    return results


def is_plain_greedy(sequence: Sequence) -> bool:
    """Whether the next id is simply the largest logit."""
    params = sequence.params
    return (
        params.temperature == 0
        and sequence.constraint is None
        and not params.logit_bias
        and params.presence_penalty == params.frequency_penalty == 0
        and params.repetition_penalty == 1
        and sequence.num_generated >= params.min_tokens
    )


def adjust(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """Apply bias, penalties and min_tokens to one row, float32 [vocab], in place."""
    params, vocab = sequence.params, len(logits)
    if params.repetition_penalty != 1:  # arXiv:1909.05858, as in transformers' RepetitionPenaltyLogitsProcessor
        seen = np.unique(sequence.line)
        seen = seen[(seen >= 0) & (seen < vocab)]
        penalty = params.repetition_penalty
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if sequence.counts and (params.presence_penalty or params.frequency_penalty):
        ids = np.fromiter(sequence.counts.keys(), np.int64, len(sequence.counts))
        times = np.fromiter(sequence.counts.values(), np.float32, len(sequence.counts))
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    if sequence.constraint is not None:
        try:
            mask = sequence.constraint.mask()
        except Exception as error:  # whatever a grammar's library raises is this sequence's trouble alone
            raise SamplingError(f"the constraint failed: {error}") from error
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = np.zeros(vocab, bool)
        allowed[: len(bits)] = bits[:vocab]
        logits[~allowed] = -np.inf
        if not np.isfinite(logits.max()):
            raise SamplingError("the constraint allows no token")
    if sequence.num_generated < params.min_tokens:
        stop_ids = [token_id for token_id in params.stop_ids if token_id < vocab]
        before = logits[stop_ids]
        logits[stop_ids] = -np.inf
        if not np.isfinite(logits.max()):  # nothing but the end is left: a constraint has all it wants
            logits[stop_ids] = before
    return logits


def choose(logits: np.ndarray, params: SamplingParams, random: np.random.Generator) -> int:
    """Draw one id from adjusted logits, float32 [vocab]."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    vocab = len(logits)
    # The maximum is taken off before dividing, so that a tiny temperature makes all others -inf and not NaN.
    with np.errstate(over="ignore"):
        scores = (logits.astype(np.float64) - logits.max()) / params.temperature
    if params.top_k and params.top_k < vocab:
        candidates = most_likely(scores, params.top_k)
    elif params.top_p < 1:
        candidates = nucleus_candidates(scores, params.top_p)
    else:
        candidates = np.arange(vocab)
    probabilities = np.exp(scores[candidates])
    if (params.top_k and params.top_k < vocab) or params.top_p == 1:
        probabilities /= probabilities.sum()
    else:
        probabilities /= np.exp(scores).sum()
    if params.top_p < 1:
        # The smallest set whose mass reaches top_p: an id stays while the mass before it is below top_p.
        keep = np.cumsum(probabilities) - probabilities < params.top_p
        keep[0] = True
        candidates, probabilities = candidates[keep], probabilities[keep]
    if params.min_p > 0:
        keep = probabilities >= params.min_p * probabilities.max()
        candidates, probabilities = candidates[keep], probabilities[keep]
    mass = np.cumsum(probabilities)
    return int(candidates[min(int(np.searchsorted(mass, random.random() * mass[-1], side="right")), len(mass) - 1)])


def most_likely(scores: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest scores, largest first; equal scores in order of id."""
    if k < len(scores):
        smallest = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > smallest)
        ids = np.concatenate([above, np.flatnonzero(scores == smallest)[: k - len(above)]])
    else:
        ids = np.arange(len(scores))
    return ids[np.lexsort((ids, -scores[ids]))]


def nucleus_candidates(scores: np.ndarray, top_p: float) -> np.ndarray:
    """Enough of the most likely ids to hold a mass of `top_p`, most likely first."""
    candidates = most_likely(scores, min(NUCLEUS_GUESS, len(scores)))
    if np.exp(scores[candidates]).sum() < top_p * np.exp(scores).sum():
        candidates = most_likely(scores, len(scores))
    return candidates


def logprob_of(logits: np.ndarray, token_id: int, params: SamplingParams) -> TokenLogprob:
    """Log probabilities of a row, float32 [vocab], before any adjustment."""
    values = logits.astype(np.float64) - logits.max()
    values -= np.log(np.exp(values).sum())
    top: tuple[tuple[int, float], ...] = ()
    if params.logprobs:
        best = most_likely(values, min(params.logprobs, len(values)))
        top = tuple(zip(best.tolist(), values[best].tolist(), strict=True))
    return TokenLogprob(float(values[token_id]), top)
