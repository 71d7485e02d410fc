"""Logits -> the next id of each sequence, and its log probability where asked for.

Turns the parameters of each sequence into what `models.base.Logits` takes, which chooses on the model's device: greedy
rows by one argmax for the whole batch, all others together. A sequence draws the same ids whoever shares its batch.
The order of operations is the field's usual one: penalties, logit bias, constraint, stop ids before min_tokens,
temperature, then top_k, top_p and min_p, then one draw.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np

from tokenline.engine.sequence import Sequence
from tokenline.models.base import Logits, RowSampling, TokenLogprob


class Sampled(NamedTuple):
    token_id: int
    logprob: TokenLogprob | None


class SamplingError(Exception):
    """No id can be drawn for one sequence: its logits are broken, or its constraint allows none of them."""


class ConstraintFailed(SamplingError):
    """The request's constraint says nothing, or allows nothing."""


def sample(logits: Logits, sequences: Rows[Sequence], vocab_size: int) -> list[Sampled | SamplingError]:
    """The next id of each sequence from its row of `logits`. A row's error harms no other row."""
    if not sequences:
        return []
    best_logit, best_id = (values.tolist() for values in logits.best())
    chosen: list[int | SamplingError] = list(best_id)
    others: list[RowSampling] = []
    for row, sequence in enumerate(sequences):
        try:
            if not np.isfinite(best_logit[row]):
                raise SamplingError(f"the model's largest logit is {best_logit[row]}")
            if not is_plain_greedy(sequence):
                others.append(row_sampling(row, sequence, vocab_size))
        except SamplingError as error:
            chosen[row] = error
    if others:
        for how, token_id in zip(others, logits.choose(others).tolist(), strict=True):
            chosen[how.row] = token_id if token_id >= 0 else ConstraintFailed("it allows no token")
    results: list[Sampled | SamplingError] = []
    for row, token_id in enumerate(chosen):
        if isinstance(token_id, SamplingError):
            results.append(token_id)
            continue
        top = sequences[row].params.logprobs
        logprob = None if top is None else logits.logprobs([row], [token_id], top)[0]
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


def row_sampling(row: int, sequence: Sequence, vocab_size: int) -> RowSampling:
    """What is done to one row. Asked again before the next id is appended, it is the same."""
    params = sequence.params
    repeated, added, mask, held_back = None, [], None, None
    if params.repetition_penalty != 1:
        repeated = np.concatenate([sequence.edits.prompt_ids, np.array(sequence.new_ids, np.int64)])
        repeated = repeated[(repeated >= 0) & (repeated < vocab_size)]
    if sequence.counts and (params.presence_penalty or params.frequency_penalty):
        ids = np.fromiter(sequence.counts.keys(), np.int64, len(sequence.counts))
        times = np.fromiter(sequence.counts.values(), np.float32, len(sequence.counts))
        added.append((ids, -(params.presence_penalty + params.frequency_penalty * times)))
    if params.logit_bias:
        added.append(sequence.edits.bias)
    if sequence.constraint is not None:
        try:
            mask = sequence.constraint.mask()
        except Exception as error:  # whatever a grammar's library raises is this sequence's trouble alone
            raise ConstraintFailed(str(error)) from error
    if sequence.num_generated < params.min_tokens:
        held_back = np.array([token_id for token_id in params.stop_ids if token_id < vocab_size], np.int64)
    return RowSampling(
        row,
        params.temperature,
        sequence.uniform() if params.temperature > 0 else 0.0,
        params.top_k,
        params.top_p,
        params.min_p,
        repeated,
        params.repetition_penalty,
        tuple(added),
        mask,
        held_back,
    )
