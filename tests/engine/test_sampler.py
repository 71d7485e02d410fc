"""What is drawn, against the definitions of each parameter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenline.engine import sampler
from tokenline.engine.request import Request, SamplingParams
from tokenline.engine.sampler import Sampled, SamplingError, row_sampling
from tokenline.engine.sequence import Sequence
from tokenline.models.cpu.logits import NumpyLogits


def sequence(prompt=(1, 2), generated=(), choice=0, **params) -> Sequence:
    made = Sequence(
        Request("r", np.asarray(prompt, np.int32), SamplingParams(max_tokens=200, **params)), choice, 0.0, 300
    )
    for token_id in generated:
        made.append(token_id)
    return made


def sample(logits: NumpyLogits, sequences: list[Sequence]) -> list[Sampled | SamplingError]:
    results = sampler.sample(logits, sequences, logits.values.shape[1])
    for one in sequences:
        one.drawn = None  # the next call is for another id
    return results


def draw(logits, **params) -> int:
    (result,) = sample(NumpyLogits(np.array([logits], np.float32)), [sequence(**params)])
    assert not isinstance(result, SamplingError)
    return result.token_id


def frequencies(logits, times=4000, **params) -> np.ndarray:
    made, rows = sequence(seed=7, **params), NumpyLogits(np.array([logits], np.float32))
    drawn = [result.token_id for _ in range(times) for result in sample(rows, [made]) if isinstance(result, Sampled)]
    return np.bincount(drawn, minlength=len(logits)) / times


PROBABILITIES = np.array([0.5, 0.3, 0.15, 0.05])
LOGITS = np.log(PROBABILITIES)


def test_temperature_one_draws_the_models_distribution():
    assert frequencies(LOGITS) == pytest.approx(PROBABILITIES, abs=0.03)


def test_temperature_sharpens():
    expected = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    assert frequencies(LOGITS, temperature=0.5) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e30])
def test_no_temperature_overflows(temperature):
    drawn = frequencies([5.0, 900.0, -900.0], times=50, temperature=temperature)
    assert drawn.sum() == 1
    if temperature < 1:
        assert drawn[1] == 1


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"top_p": 0.0}, [0]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.51}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"min_p": 0.29}, [0, 1, 2]),
        ({"min_p": 0.5}, [0, 1]),
        ({"min_p": 1.0}, [0]),
        # top_k first, then the nucleus of what it left: 0.5 / 0.8 = 0.625
        ({"top_k": 2, "top_p": 0.6}, [0]),
        ({"top_k": 2, "top_p": 0.7}, [0, 1]),
    ],
)
def test_cuts_keep_exactly_the_ids_that_they_define(params, kept):
    expected = np.zeros(4)
    expected[kept] = PROBABILITIES[kept] / PROBABILITIES[kept].sum()
    assert frequencies(LOGITS, **params) == pytest.approx(expected, abs=0.03)


@given(st.integers(0, 2**32), st.floats(0.05, 1), st.sampled_from([100, 3000]))
@settings(max_examples=60, deadline=None)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(seed, top_p, vocab):
    logits = np.random.default_rng(seed).normal(0, 2, vocab).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities)
    size = int(np.searchsorted(np.cumsum(probabilities[order]), top_p - 1e-9)) + 1
    assert set(np.flatnonzero(frequencies(logits, times=50, top_p=top_p))) <= set(order[: size + 1].tolist())


def test_a_seed_gives_the_same_ids_alone_and_among_strangers():
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    alone, crowd = sequence(seed=5), [sequence(seed=1), sequence(seed=5), sequence()]
    one = [sample(NumpyLogits(logits[1:2]), [alone])[0] for _ in range(20)]
    other = [sample(NumpyLogits(logits), crowd)[1] for _ in range(20)]
    assert one == other


def test_choices_and_seeds_draw_differently():
    logits = NumpyLogits(np.zeros((1, 1000), np.float32))
    drawn = {sample(logits, [sequence(seed=seed, choice=c)])[0] for seed, c in [(1, 0), (1, 1), (2, 0), (-1, 0)]}
    assert len(drawn) == 4


def test_penalties():
    logits = [2.0, 1.9, -1.0, 0.5]
    greedy = {"temperature": 0.0, "prompt": (3,)}
    assert draw(logits, **greedy) == 0
    assert draw(logits, generated=(0,), presence_penalty=0.2, **greedy) == 1
    assert draw(logits, generated=(0,), presence_penalty=0.05, **greedy) == 0
    assert draw(logits, generated=(0, 0, 0), frequency_penalty=0.05, **greedy) == 1
    assert draw(logits, generated=(0,), frequency_penalty=0.05, **greedy) == 0
    assert draw([2.0, 1.9, -1.0], prompt=(0,), temperature=0.0, repetition_penalty=1.2) == 1
    assert draw([-2.0, -2.1], prompt=(0,), temperature=0.0, repetition_penalty=1.2) == 1


def test_presence_and_frequency_do_not_count_the_prompt():
    assert draw([2.0, 1.9], prompt=(0, 0, 0), temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0) == 0


def test_logit_bias_forces_and_forbids():
    assert draw([5.0, 1.0, 1.0], temperature=0.0, logit_bias={2: 100.0}) == 2
    assert draw([5.0, 4.0, 1.0], temperature=1.0, seed=1, logit_bias={0: -100.0}) != 0


def test_stop_ids_wait_for_min_tokens():
    stop = {"temperature": 0.0, "stop_ids": frozenset([0]), "min_tokens": 2}
    assert draw([5.0, 1.0], **stop) == 1
    assert draw([5.0, 1.0], generated=(1, 1), **stop) == 0


def test_logprobs_are_the_models_own():
    (result,) = sample(
        NumpyLogits(LOGITS[None].astype(np.float32)), [sequence(temperature=0.0, logprobs=2, logit_bias={3: 100.0})]
    )
    assert not isinstance(result, SamplingError)
    assert result.token_id == 3
    assert result.logprob is not None
    assert result.logprob.logprob == pytest.approx(np.log(0.05))
    assert [token for token, _ in result.logprob.top] == [0, 1]
    assert [value for _, value in result.logprob.top] == pytest.approx(np.log([0.5, 0.3]))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_row_is_named_and_the_others_are_drawn(broken):
    rows = NumpyLogits(np.array([[1.0, broken, 0.0], [0.0, 3.0, 1.0]], np.float32))
    bad, good = sample(rows, [sequence(temperature=0.0), sequence(temperature=0.0)])
    assert isinstance(bad, SamplingError)
    assert not isinstance(good, SamplingError)
    assert good.token_id == 1


class OnlyOdd:
    """Allows odd ids, and writes down what came."""

    def __init__(self):
        self.accepted: list[int] = []

    def mask(self) -> np.ndarray:
        return np.full(2, 0xAAAAAAAA, np.uint32).view(np.int32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def test_a_constraint_decides_what_can_be_drawn_and_hears_of_it():
    made = Sequence(
        Request("r", np.asarray([1], np.int32), SamplingParams(max_tokens=9, temperature=0)),
        0,
        0.0,
        20,
        OnlyOdd(),
    )
    (result,) = sample(NumpyLogits(np.array([[5.0, 1.0, 4.0, 2.0]], np.float32)), [made])
    assert isinstance(result, Sampled)
    assert result.token_id == 3
    made.append(3)
    assert isinstance(made.constraint, OnlyOdd)
    assert made.constraint.accepted == [3]


def test_a_constraint_that_leaves_nothing_but_the_end_ends_the_answer_before_min_tokens():
    class OnlyTheEnd:
        def mask(self) -> np.ndarray:
            return np.array([0b100], np.int32)

        def accept(self, token_id: int) -> None: ...

    params = SamplingParams(max_tokens=9, temperature=0, stop_ids=frozenset([2]), min_tokens=5)
    request = Request("r", np.asarray([1], np.int32), params)
    row = NumpyLogits(np.array([[3.0, 2.0, 1.0]], np.float32))
    (result,) = sample(row, [Sequence(request, 0, 0.0, 10, OnlyTheEnd())])
    assert isinstance(result, Sampled)
    assert result.token_id == 2


def test_a_constraint_that_allows_nothing_is_that_rows_error_alone():
    class Nothing(OnlyOdd):
        def mask(self) -> np.ndarray:
            return np.zeros(2, np.int32)

    request = Request("r", np.asarray([1], np.int32), SamplingParams(max_tokens=9))
    rows = NumpyLogits(np.array([[5.0, 1.0], [0.0, 3.0]], np.float32))
    bad, good = sample(rows, [Sequence(request, 0, 0.0, 20, Nothing()), sequence(temperature=0.0)])
    assert isinstance(bad, SamplingError)
    assert isinstance(good, Sampled)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.lists(st.integers(0, 30), max_size=40))
def test_the_repetition_penalty_is_over_each_id_of_the_line_once(prompt: list[int], generated: list[int]):
    made = sequence(prompt=tuple(prompt), generated=tuple(generated), repetition_penalty=1.2)
    repeated = row_sampling(0, made, 40).repeated
    assert repeated is not None
    assert sorted(repeated.tolist()) == sorted({*prompt, *generated})
    assert np.array_equal(made.line, [*prompt, *generated])
