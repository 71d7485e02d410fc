"""Rows that are drawn all together on a device are the ids that the CPU kernels draw one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.models.sampling import batches, expected
from tokenline.models.base import RowSampling
from tokenline.models.cpu.logits import NumpyLogits
from tokenline.models.torch.logits import TorchLogits, choose, logprobs

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return request.param


@given(batch=batches())
@settings(max_examples=300)
def test_as_defined(device: str, batch: tuple[np.ndarray, Sequence[RowSampling]]) -> None:
    logits, rows = batch
    given = torch.from_numpy(logits).to(device)
    kept = given.clone()
    assert choose(given, rows).tolist() == [expected(logits[row.row], row) for row in rows]
    assert torch.equal(given, kept), "the model's logits are not touched"


def test_alone_and_among_63_others(device: str) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (64, 20_000)).astype(np.float32)
    how: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 40}, {"top_p": 0.99, "min_p": 0.01}]
    rows = [RowSampling(row, 0.8, (row + 0.5) / 64, **how[row % 4]) for row in range(64)]
    given = torch.from_numpy(logits).to(device)
    together = choose(given, rows).tolist()
    assert together == [int(choose(given, [row])[0]) for row in rows]
    assert together == NumpyLogits(logits).choose(rows).tolist()


def test_the_same_as_in_main_memory(device: str) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (3, 500)).astype(np.float32)
    ours, theirs = TorchLogits(torch.from_numpy(logits).to(device)), NumpyLogits(logits)
    for mine, other in zip(ours.best(), theirs.best(), strict=True):
        np.testing.assert_array_equal(mine, other)
    rows = [RowSampling(2, 1.0, 0.3), RowSampling(0, 1.0, 0.9, top_k=7)]
    np.testing.assert_array_equal(ours.choose(rows), theirs.choose(rows))
    on_the_device = logprobs(torch.from_numpy(logits).to(device), [1, 0], [9, 3], 5)
    for mine, other in zip(
        [*ours.logprobs([1, 0], [9, 3], 5), *on_the_device], theirs.logprobs([1, 0] * 2, [9, 3] * 2, 5), strict=True
    ):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-6)
        assert mine.rank == other.rank
        assert [token for token, _ in mine.top] == [token for token, _ in other.top]
    np.testing.assert_array_equal(ours.take([2, 0]).to_numpy(), theirs.take([2, 0]).to_numpy())
    np.testing.assert_array_equal(ours.to_numpy(), logits)
