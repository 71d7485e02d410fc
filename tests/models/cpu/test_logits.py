"""What is chosen from logits in main memory, against the plain definition; and that no row minds its neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.models.sampling import batches, expected
from tokenline.models.base import RowSampling
from tokenline.models.cpu.logits import NumpyLogits, most_likely


@given(batches())
@settings(max_examples=400)
def test_as_defined(batch: tuple[np.ndarray, Sequence[RowSampling]]) -> None:
    logits, rows = batch
    kept = logits.copy()
    assert NumpyLogits(logits).choose(rows).tolist() == [expected(logits[row.row], row) for row in rows]
    assert np.array_equal(logits, kept), "the model's logits are not touched"


@pytest.mark.parametrize("vocab", [49_152, 151_936])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 8.0])
def test_a_large_vocabulary(vocab: int, spread: float) -> None:
    random = np.random.default_rng(vocab)
    logits = random.normal(0, spread, (1, vocab)).astype(np.float32)
    ways: list[dict[str, Any]] = [{}, {"top_p": 0.95}, {"top_k": 700}, {"top_k": 5000, "top_p": 0.9, "min_p": 0.01}]
    for how in ways:
        row = RowSampling(0, temperature=0.9, uniform=float(random.random()), **how)
        assert NumpyLogits(logits).choose([row])[0] == expected(logits[0], row)


def test_rows_of_a_wider_array() -> None:
    """As the kernels leave them: rows padded to a multiple of 64, and more of them than were asked for."""
    wide = np.random.default_rng(0).normal(0, 1, (5, 128)).astype(np.float32)
    view, packed = wide[:3, :100], wide[:3, :100].copy()
    rows = [RowSampling(row, temperature=1, uniform=0.5, top_k=9) for row in range(3)]
    assert NumpyLogits(view).choose(rows).tolist() == NumpyLogits(packed).choose(rows).tolist()
    assert NumpyLogits(view).best()[1].tolist() == packed.argmax(1).tolist()


def test_the_best_of_each_row() -> None:
    logits = np.array([[1, 3, 3], [-np.inf, -5, -np.inf], [0, np.nan, 9], [0, np.inf, 1]], np.float32)
    values, ids = NumpyLogits(logits).best()
    assert ids.tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(values, [3, -5, np.nan, np.inf])
    values, ids = NumpyLogits(logits[:0]).best()
    assert len(values) == len(ids) == 0


def test_logprobs() -> None:
    logits = NumpyLogits(np.log(np.array([[0.2, 0.5, 0.2, 0.1]], np.float32)) + 3)
    ((logprob, top, rank),) = logits.logprobs([0], [3], 3)
    assert rank == 4
    assert logprob == pytest.approx(np.log(0.1))
    assert [token for token, _ in top] == [1, 0, 2]
    assert [value for _, value in top] == pytest.approx(np.log([0.5, 0.2, 0.2]))
    assert logits.logprobs([0], [0], 0)[0].top == ()
    assert logits.logprobs([0], [2], 0)[0].rank == 2, "of equals none is more likely"
    assert len(logits.logprobs([0], [0], 20)[0].top) == 4
    assert logits.logprobs([0], [1], 1)[0].top == logits.logprobs([0], [1], 2)[0].top[:1]
    assert np.isnan(NumpyLogits(np.array([[0, np.nan]], np.float32)).logprobs([0], [0], 1)[0].logprob)


def test_logprobs_are_right_to_a_millionth() -> None:
    logits = np.random.default_rng(0).normal(0, 4, (3, 50_000)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    found = NumpyLogits(logits).logprobs([2, 0], [49_999, 7], 20)
    assert [one.logprob for one in found] == pytest.approx([exact[2, 49_999], exact[0, 7]], abs=1e-6)
    for one, row in zip(found, (2, 0), strict=True):
        ids = [token for token, _ in one.top]
        assert ids == np.argsort(-exact[row], kind="stable")[:20].tolist()
        assert [value for _, value in one.top] == pytest.approx(exact[row, ids], abs=1e-6)
    part = NumpyLogits(logits).take([2, 0])
    assert part.logprobs([0, 1], [49_999, 7], 20) == found


@pytest.mark.parametrize("k", [0, 1, 3, 6, 7])
def test_most_likely(k: int) -> None:
    values = np.array([1.0, 5.0, -np.inf, 5.0, 2.0, 5.0])
    assert most_likely(values, k).tolist() == [1, 3, 5, 4, 0, 2][:k]
