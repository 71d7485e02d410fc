"""A request that cannot be computed ends alone: whatever fails, and wherever, the others of its batch get the very ids
that they would have got without it, and the cache keeps nothing of the failed step.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np
import pytest

from tests.engine.ledger import VOCAB, LedgerModel, LedgerPool, next_id
from tests.engine.test_core import Answers, make_core
from tokenline.engine.core import EngineCore, StepFailed
from tokenline.engine.request import FinishReason, Request, SamplingParams
from tokenline.engine.sequence import Sequence
from tokenline.models.base import Batch, KVPool, RowSampling, TokenLogprob
from tokenline.models.cpu.logits import NumpyLogits

BAD = 77
Fails = Callable[[Batch], bool]


def spread_around(best: int) -> np.ndarray:
    """Logits that leave a choice; of all but BAD, which only prompts have."""
    logits = 4.0 * np.cos((np.arange(VOCAB) - best) * 0.7).astype(np.float32)
    logits[BAD] = -50
    return logits


class Spread(LedgerModel):
    """A ledger whose ids are drawn. Before it raises, it writes half of the batch."""

    def __init__(self, fails: Fails = lambda batch: False):
        super().__init__()
        self.fails = fails
        self.fails_sampling = False

    def forward(self, batch: Batch, kv: KVPool) -> NumpyLogits:
        assert isinstance(kv, LedgerPool)
        if self.fails(batch):
            for sequence in batch.sequences[: len(batch.sequences) // 2 + 1]:
                for at in range(sequence.context, sequence.context + sequence.length):
                    kv.ids[sequence.block_table[at // kv.block_size], at % kv.block_size] = 96
            raise RuntimeError("half of it is written")
        best = super().forward(batch, kv).to_numpy().argmax(axis=1)
        spread = np.array([spread_around(one) for one in best], np.float32).reshape(-1, VOCAB)
        ends = batch.ids[batch.logit_rows]
        return Choosy(spread, ends) if self.fails_sampling else NumpyLogits(spread)


class Choosy(NumpyLogits):
    """Choosing ids, and saying how likely they are, fails where a line ends with BAD."""

    def __init__(self, values: np.ndarray, ends: np.ndarray):
        super().__init__(values)
        self._ends = ends

    def take(self, rows: SequenceOf[int]) -> "Choosy":
        return Choosy(self.values[list(rows)], self._ends[list(rows)])

    def choose(self, rows: SequenceOf[RowSampling]) -> np.ndarray:
        chosen = super().choose(rows)  # uses what the rows have drawn
        self._check([row.row for row in rows])
        return chosen

    def logprobs(self, rows: SequenceOf[int], ids: SequenceOf[int], top: int) -> list[TokenLogprob]:
        self._check(rows)
        return super().logprobs(rows, ids, top)

    def _check(self, rows: SequenceOf[int]) -> None:
        if BAD in self._ends[list(rows)]:
            raise IndexError("no such row")


def sampled(request_id: str, prompt: list[int], max_tokens: int = 12, n: int = 1, **params) -> Request:
    seed = sum(map(ord, request_id))
    return Request(
        request_id,
        np.asarray(prompt, np.int32),
        SamplingParams(**{"max_tokens": max_tokens, "temperature": 1.0, "seed": seed, **params}),
        n=n,
    )


GOOD = [
    sampled("a", [1, 2, 3], n=3),
    sampled("b", [5] * 20),
    sampled("c", [1, 2, 3, 4, 4], temperature=0.0),
    sampled("d", list(range(40)), top_p=0.9, presence_penalty=0.5),
    sampled("e", [1, 2], logprobs=2, max_tokens=20),
]


def run_all(core: EngineCore, requests: list[Request], bad: SequenceOf[Request] = (), at: int = 3) -> Answers:
    """Run these; the bad ones come in after some steps."""
    answers = Answers()
    for request in requests:
        core.add(request)
    for _ in range(at):
        answers.take(core.step())
        core.check_integrity()
    for request in bad:
        core.add(request)
    return answers.run(core)


def ids_of(answers: Answers) -> dict[tuple[str, int], list[int]]:
    return {key: ids for key, ids in answers.ids.items() if not key[0].startswith("bad")}


UNDISTURBED = ids_of(run_all(make_core(model=Spread(), num_blocks=200), GOOD))


def check(model: Spread, bad: list[Request], answers: Answers, core: EngineCore) -> None:
    assert ids_of(answers) == UNDISTURBED
    for request in bad:
        assert {answers.finish[request.request_id, choice] for choice in range(request.n)} == {FinishReason.ERROR}
    # Whatever the tree holds is right: lines that go on from it are answered as without a cache.
    model.fails, model.fails_sampling = lambda batch: False, False
    for request in [*GOOD, *bad]:
        prompt = [*request.prompt_ids.tolist(), *answers.ids.get((request.request_id, 0), [])]
        again = Request(f"again {request.request_id}", np.asarray(prompt, np.int32), SamplingParams(5, temperature=0))
        core.add(again)
        later = Answers().run(core)
        assert later.ids[again.request_id, 0] == greedy(prompt, 5)


def greedy(prompt: list[int], max_tokens: int) -> list[int]:
    """What `Spread` continues a line with at temperature 0."""
    line = list(prompt)
    for _ in range(max_tokens):
        line.append(int(spread_around(next_id(np.asarray(line))).argmax()))
    return line[len(prompt) :]


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("places", [[0], [2], [30], [0, 1]], ids=str)
def test_an_id_that_the_model_cannot_take(at: int, places: list[int]):
    model = Spread(lambda batch: BAD in batch.ids)
    bad = [sampled(f"bad {place}", [9] * place + [BAD] + [9] * 5, n=1 + place % 2) for place in places]
    core = make_core(model=model, num_blocks=200)
    check(model, bad, run_all(core, GOOD, bad, at), core)


def test_a_prompt_that_failed_leaves_only_what_was_computed_before():
    model = Spread(lambda batch: BAD in batch.ids)
    core = make_core(model=model, num_blocks=200, max_batch_tokens=16, max_num_seqs=8)
    prompt = [9] * 20 + [BAD] + [9] * 5
    run_all(core, [], [sampled("bad", prompt)], 0)
    model.fails = lambda batch: False
    again = run_all(core, [sampled("again", prompt)])
    assert again.use["again"].cached == 16, "the first chunk, and nothing of the second"


def test_a_row_whose_sampling_fails():
    model = Spread()
    model.fails_sampling = True
    core = make_core(model=model, num_blocks=200)
    bad = [sampled("bad", [9, 9, BAD]), sampled("bad logprobs", [8, BAD], temperature=0.0, logprobs=1)]
    check(model, bad, run_all(core, GOOD, bad), core)


def test_a_line_that_fails_while_it_decodes():
    line = [9, 9, 9]
    third = greedy(line, 3)[2]
    before = [*line, *greedy(line, 2)]
    model = Spread()
    model.fails = lambda batch: any(
        s.context == len(before) and batch.ids[s.start] == third and s.length == 1 for s in batch.sequences
    )
    bad = sampled("bad", line, temperature=0.0)
    core = make_core(model=model, num_blocks=200)
    good = [r for r in GOOD if r.request_id in "bd"]
    answers = run_all(core, good, [bad])
    assert ids_of(answers) == {key: ids for key, ids in UNDISTURBED.items() if key[0] in "bd"}
    assert answers.finish["bad", 0] is FinishReason.ERROR
    assert answers.ids["bad", 0] == greedy(line, 3)


class Mask:
    """A constraint that allows everything, until it raises."""

    def __init__(self, fails_at: int, where: str):
        self._left = fails_at
        self._where = where

    def mask(self) -> np.ndarray:
        if self._where == "mask" and self._left == 0:
            raise RuntimeError("no mask")
        return np.full(-(-VOCAB // 32), -1, np.int32)

    def accept(self, token_id: int) -> None:
        self._left -= 1
        if self._where == "accept" and self._left == 0:
            raise RuntimeError("not accepted")


@pytest.mark.parametrize("where", ["mask", "accept"])
def test_a_constraint_that_raises(where: str):
    model = Spread()
    core = make_core(model=model, num_blocks=200)
    bad = sampled("bad", [9, 9])
    answers = Answers()
    for request in GOOD:
        core.add(request)
    core.add(bad, [Mask(2, where)])
    answers.run(core)
    check(model, [bad], answers, core)


def test_a_constraint_of_a_request_that_is_not_to_blame_goes_on_as_if_nothing_had_been():
    """Its state is asked again when the step is computed again, and told of each id once."""

    class Counting(Mask):
        def __init__(self) -> None:
            super().__init__(-1, "never")
            self.accepted: list[int] = []

        def accept(self, token_id: int) -> None:
            self.accepted.append(token_id)

    model = Spread(lambda batch: BAD in batch.ids)
    core = make_core(model=model, num_blocks=200)
    constraint = Counting()
    core.add(sampled("a", [1, 2, 3]), [constraint])
    answers = Answers()
    for _ in range(3):
        answers.take(core.step())
    core.add(sampled("bad", [BAD]))
    answers.run(core)
    assert answers.ids["a", 0] == UNDISTURBED["a", 0]
    assert constraint.accepted == answers.ids["a", 0][:-1]


def test_a_step_that_is_too_much_at_once_blames_nobody():
    model = Spread(lambda batch: len(batch.sequences) > 2)
    core = make_core(model=model, num_blocks=200)
    check(model, [], run_all(core, GOOD), core)


def test_a_failure_that_passes_blames_nobody():
    calls = itertools.count()
    model = Spread(lambda batch: next(calls) in (2, 3, 9) and len(batch.sequences) > 1)
    core = make_core(model=model, num_blocks=200)
    check(model, [], run_all(core, GOOD), core)


def test_a_model_that_computes_nothing_is_to_blame_itself():
    model = Spread(lambda batch: True)
    core = make_core(model=model, num_blocks=200)
    for request in GOOD:
        core.add(request)
    with pytest.raises(StepFailed, match="half of it is written") as failure:
        core.step()
    assert {step.finish_reason for step in failure.value.steps} == {FinishReason.ERROR}
    core.check_integrity()
    assert core.pool.num_free == core.pool.num_blocks


def test_a_number_is_drawn_once_for_each_id():
    sequence = Sequence(sampled("a", [1]), 0, 0.0, 10)
    first = sequence.uniform()
    assert sequence.uniform() == first
    sequence.append(3)
    assert sequence.uniform() != first
