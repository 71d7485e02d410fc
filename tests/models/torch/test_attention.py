"""Paged attention against its definition, written as loops; and the pool that it reads."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenline.models.base import Batch, BatchSequence
from tokenline.models.torch.attention import TorchKVPool, attend, plan_attention

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sequence:
    context: int
    length: int


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int, window: int | None) -> torch.Tensor:
    """One sequence: q [n, heads, d] at positions context and on; k, v [context + n, kv heads, d]. Float64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for i in range(len(q)):
        position = context + i
        low = 0 if window is None else max(0, position - window + 1)
        for head in range(q.shape[1]):
            kv_head = head * k.shape[1] // q.shape[1]
            keys, values = k[low : position + 1, kv_head].double(), v[low : position + 1, kv_head].double()
            weights = (keys @ q[i, head].double() / math.sqrt(q.shape[2])).softmax(0)
            out[i, head] = weights @ values
    return out


@given(
    sequences=st.lists(
        st.builds(Sequence, context=st.integers(0, 60), length=st.sampled_from([1, 1, 1, 2, 5, 30])),
        min_size=1,
        max_size=6,
    ),
    window=st.sampled_from([None, 1, 7, 16, 40, 1000]),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_as_defined(
    sequences: list[Sequence], window: int | None, block_size: int, heads: tuple[int, int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_heads, kv_heads = heads
    size, layer = 8, 1
    needed = [-(-(s.context + s.length) // block_size) for s in sequences]
    free = np.random.default_rng(seed).permutation(sum(needed) + 2).astype(np.int32)
    pool = TorchKVPool(2, len(free), kv_heads, block_size, size, torch.float32, CPU)
    pool.keys.fill_(float("nan"))  # what was there before must not matter
    pool.values.fill_(float("nan"))
    parts: list[BatchSequence] = []
    keys, values, queries, new_keys, new_values, positions = [], [], [], [], [], []
    row = taken = 0
    for sequence, blocks in zip(sequences, needed, strict=True):
        table = free[taken : taken + blocks]
        total = sequence.context + sequence.length
        k, v = (torch.randn(total, kv_heads, size, generator=generator) for _ in range(2))
        for position in range(sequence.context):
            block, offset = int(table[position // block_size]), position % block_size
            pool.keys[layer, block, :, offset] = k[position]
            pool.values[layer, block, :, offset] = v[position]
        keys.append(k)
        values.append(v)
        queries.append(torch.randn(sequence.length, num_heads, size, generator=generator))
        new_keys.append(k[sequence.context :])
        new_values.append(v[sequence.context :])
        positions += range(sequence.context, total)
        parts.append(BatchSequence(row, sequence.length, sequence.context, table))
        row, taken = row + sequence.length, taken + blocks
    ids = np.zeros(row, dtype=np.int32)
    batch = Batch(ids, np.array(positions, dtype=np.int32), tuple(parts), ids[:0])
    plan = plan_attention(batch, kv_heads=kv_heads, block_size=block_size, window=window, device=CPU)
    out = attend(torch.cat(queries), torch.cat(new_keys), torch.cat(new_values), pool, layer, plan, size**-0.5)
    for i, part in enumerate(parts):
        expected = by_definition(queries[i], keys[i], values[i], part.context, window)
        found = out[part.start : part.start + part.length].double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert pool.keys[0].isnan().all(), "the other layer was not asked"


def test_long_prefill_goes_in_pieces() -> None:
    """More queries than are attended at a time, after a context that ends inside a block, with and without a window."""
    context, length, size = 37, 1100, 8
    q, k, v = (torch.randn(context + length, 1, size) for _ in range(3))
    for window in (None, 100):
        pool = TorchKVPool(1, 80, 1, 16, size, torch.float32, CPU)
        for start, stop in ((0, context), (context, context + length)):
            part = BatchSequence(0, stop - start, start, np.arange(80, dtype=np.int32)[::-1])
            positions = np.arange(start, stop, dtype=np.int32)
            batch = Batch(positions, positions, (part,), positions[:0])
            plan = plan_attention(batch, kv_heads=1, block_size=16, window=window, device=CPU)
            out = attend(q[start:stop], k[start:stop], v[start:stop], pool, 0, plan, size**-0.5)
        expected = by_definition(q[context:], k, v, context, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copy_block_prefix(dtype: torch.dtype) -> None:
    pool = TorchKVPool(3, 4, 2, 16, 8, dtype, CPU)
    assert pool.keys.shape == (3, 4, 2, 16, 8)
    pool.keys.copy_(torch.randn(pool.keys.shape))
    pool.values.copy_(torch.randn(pool.values.shape))
    keys, values = pool.keys.clone(), pool.values.clone()
    pool.copy_block_prefix(2, 0, 5)
    for found, before in ((pool.keys, keys), (pool.values, values)):
        assert torch.equal(found[:, 0, :, :5], before[:, 2, :, :5])
        assert torch.equal(found[:, 0, :, 5:], before[:, 0, :, 5:])
        assert torch.equal(found[:, 1:], before[:, 1:])
