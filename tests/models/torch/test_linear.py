"""Matrices in int8 and bfloat16: near the float product by a bound that can be derived, whichever path computes it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenline.models.torch.linear import Int8Linear, Linear

CPU = torch.device("cpu")


def int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Linear:
    linear = Linear.empty(weight.shape[0], weight.shape[1], torch.int8, CPU)
    assert isinstance(linear, Int8Linear)
    linear.fill(0, weight)
    linear.bias = bias
    return linear


@given(
    rows=st.integers(1, 9),
    outputs=st.sampled_from([1, 3, 32, 96, 2050]),
    inputs=st.sampled_from([16, 64, 96]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_int8_is_within_half_a_step_of_each_weight(rows: int, outputs: int, inputs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)
    x = torch.randn(rows, inputs, generator=generator).bfloat16().float()
    bias = torch.randn(outputs, generator=generator)
    linear = int8(weight, bias)
    exact = x @ weight.t() + bias
    step = weight.abs().amax(1) / 127
    bound = 0.5 * x.abs().sum(1, keepdim=True) * step + 1e-4
    assert ((linear.exact(x) - exact).abs() <= bound).all()
    assert ((linear(x) - exact).abs() <= bound).all()
    rounding = exact.abs() / 128 + bound / 64 + bias.abs() / 128 + 0.01
    assert ((linear(x.bfloat16()).float() - exact).abs() <= bound + rounding).all()


def test_int8_of_a_row_of_zeros() -> None:
    weight = torch.zeros(2, 32)
    weight[1] = 1
    linear = int8(weight)
    assert linear.exact(torch.ones(1, 32)).tolist() == [[0, pytest.approx(32)]]
    assert linear.rows(torch.tensor([0, 1])).tolist() == weight.tolist()


def test_filling_leaves_its_input_alone() -> None:
    weight = torch.randn(4, 32)
    kept = weight.clone()
    int8(weight)
    assert torch.equal(weight, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_does_not_round_the_result(dtype: torch.dtype) -> None:
    weight = torch.randn(5000, 64).to(dtype)
    x = torch.randn(3, 64)
    linear = Linear(weight)
    expected = x.double() @ weight.double().t()
    assert linear.exact(x).dtype is torch.float32
    torch.testing.assert_close(linear.exact(x).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_filled_in_pieces(dtype: torch.dtype) -> None:
    weight = torch.randn(10, 32)
    whole, pieces = Linear.empty(10, 32, dtype, CPU), Linear.empty(10, 32, dtype, CPU)
    whole.fill(0, weight)
    pieces.fill(7, weight[7:])
    pieces.fill(0, weight[:7])
    ids = torch.arange(10)
    assert torch.equal(whole.rows(ids), pieces.rows(ids))
    assert whole.num_bytes == whole.weight.nbytes + (10 * 6 if dtype is torch.int8 else 0)
