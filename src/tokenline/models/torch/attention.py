"""The plain attention backend: a paged pool of keys and values in PyTorch tensors, and attention over it.

It runs on any device and is what faster backends must agree with. Knows positions, block tables and windows; nothing of
weights. Where each new token goes and what each may see is worked out once a batch (`plan_attention`) and used by all
layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tokenline.models.base import Batch, BatchSequence

_QUERY_ROWS = 512  # a long prefill attends this many queries at a time, which bounds the mask and skips unseen keys


class TorchKVPool:
    """Keys and values, each [layers, blocks, kv heads, block size, head dim], zero until written."""

    def __init__(
        self,
        layers: int,
        num_blocks: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (layers, num_blocks, kv_heads, block_size, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.layout = f"torch {dtype} [k v, layers {layers}, kv heads {kv_heads}, block, head dim {head_dim}]"

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of block `source` to block `target`, in every layer."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :tokens] = cache[:, source, :, :tokens]

    def export_block(self, block: int) -> np.ndarray:
        """A copy of the block's keys and values, all layers, as bytes in the order that `layout` says."""
        both = torch.stack((self.keys[:, block], self.values[:, block]))
        return both.cpu().reshape(-1).view(torch.uint8).numpy()

    def import_block(self, block: int, data: np.ndarray) -> None:
        """Write what `export_block` of a pool with the same layout and block size gave."""
        keys, values = self.keys[:, block], self.values[:, block]
        if data.dtype != np.uint8 or data.shape != (keys.nbytes + values.nbytes,):
            raise ValueError(f"a block has {keys.nbytes + values.nbytes} bytes, not {data.dtype} {list(data.shape)}")
        both = torch.from_numpy(data).view(keys.dtype).view(2, *keys.shape)
        keys.copy_(both[0])
        values.copy_(both[1])


@dataclass(frozen=True, slots=True)
class _Work:
    """Queries that attend together: those of one sequence, or one query each of several sequences.

    `index` selects [sequences x kv heads x blocks] from a layer's pool seen as
    [blocks x kv heads, block size, head dim].
    Of the keys gathered so, `skip` to `skip + length` are used. `mask` is True where a query may look.
    """

    first_row: int  # rows of the batch; several sequences have one row each
    rows: torch.Tensor | None  # their numbers where they do not lie together; else None
    sequences: int
    queries: int
    index: torch.Tensor
    skip: int
    length: int
    mask: torch.Tensor | None
    causal: bool


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One batch's attention, for all layers with the same window."""

    slots: torch.Tensor  # int64 [T x kv heads]: where new keys go, in a layer seen as [all slots, head dim]
    works: tuple[_Work, ...]


def plan_attention(
    batch: Batch, *, kv_heads: int, block_size: int, window: int | None, device: torch.device
) -> AttentionPlan:
    """What every layer with this window does with this batch."""
    blocks = np.concatenate(
        [_table_at(s, np.arange(s.context, s.context + s.length), block_size) for s in batch.sequences]
    )
    offsets = batch.positions.astype(np.int64) % block_size
    slots = (blocks[:, None] * kv_heads + np.arange(kv_heads)) * block_size + offsets[:, None]
    planner = _Planner(kv_heads, block_size, window, device)
    works: list[_Work] = []
    decoding: dict[int, list[BatchSequence]] = {}
    for sequence in batch.sequences:
        if sequence.length == 1:
            # padding at most doubles the work: sequences of 2^n .. 2^(n+1) - 1 blocks go together
            decoding.setdefault((sequence.context // block_size + 1).bit_length(), []).append(sequence)
        else:
            works += planner.prefill(sequence)
    works += [planner.decode(group) for group in decoding.values()]
    return AttentionPlan(torch.from_numpy(slots.reshape(-1)).to(device), tuple(works))


def attend(
    q: torch.Tensor,  # [T, heads, head dim]
    k: torch.Tensor,  # [T, kv heads, head dim]
    v: torch.Tensor,
    pool: TorchKVPool,
    layer: int,
    plan: AttentionPlan,
    scale: float,
) -> torch.Tensor:
    """Write k and v to the pool, then let each query look at what its sequence holds: softmax(scale q k) v.

    Returns [T, heads, head dim].
    """
    heads, size = q.shape[1:]
    kv_heads = k.shape[1]
    group = heads // kv_heads
    keys, values = pool.keys[layer], pool.values[layer]
    keys.view(-1, size).index_copy_(0, plan.slots, k.reshape(-1, size).to(keys.dtype))
    values.view(-1, size).index_copy_(0, plan.slots, v.reshape(-1, size).to(values.dtype))
    out = torch.empty_like(q)
    for work in plan.works:
        seen_k, seen_v = (
            cache.view(-1, pool.block_size, size)
            .index_select(0, work.index)
            .view(work.sequences, kv_heads, -1, size)[:, :, work.skip : work.skip + work.length]
            .to(q.dtype)
            for cache in (keys, values)
        )
        n = work.sequences * work.queries
        asking = q[work.first_row : work.first_row + n] if work.rows is None else q[work.rows]
        if work.queries == 1:
            # the heads that share a key head are the queries of one matrix product
            if work.mask is not None:
                # a hidden place may hold another sequence's NaN, and 0 * NaN is NaN
                hidden = ~work.mask.view(work.sequences, 1, -1, 1)
                seen_k, seen_v = seen_k.masked_fill(hidden, 0), seen_v.masked_fill(hidden, 0)
            answer = F.scaled_dot_product_attention(
                asking.view(n, kv_heads, group, size), seen_k, seen_v, attn_mask=work.mask, scale=scale
            ).reshape(n, heads, size)
        else:
            shape = (kv_heads, group, seen_k.shape[2], size)
            answer = (
                F.scaled_dot_product_attention(
                    asking.view(n, kv_heads, group, size).permute(1, 2, 0, 3),
                    seen_k[0][:, None].expand(shape),
                    seen_v[0][:, None].expand(shape),
                    attn_mask=work.mask,
                    is_causal=work.causal,
                    scale=scale,
                )
                .permute(2, 0, 1, 3)
                .reshape(n, heads, size)
            )
        if work.rows is None:
            out[work.first_row : work.first_row + n] = answer
        else:
            out[work.rows] = answer
    return out


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention backend over a `TorchKVPool`; `plan` and `attend` take what the functions of these names here take.

    What a plan is, is the backend's own business: it is made once a batch and window, and given to `attend` in each
    layer with that window.
    """

    plan: Callable[..., Any]
    attend: Callable[..., torch.Tensor]


PLAIN = Attention(plan_attention, attend)


def _table_at(sequence: BatchSequence, positions: np.ndarray, block_size: int) -> np.ndarray:
    return sequence.block_table[positions // block_size].astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Planner:
    kv_heads: int
    block_size: int
    window: int | None
    device: torch.device

    def prefill(self, sequence: BatchSequence) -> list[_Work]:
        if sequence.context == 0 and (self.window is None or sequence.length <= self.window):
            return [self._one(sequence, 0, sequence.length, causal=True)]
        starts = range(0, sequence.length, _QUERY_ROWS)
        return [self._one(sequence, start, min(start + _QUERY_ROWS, sequence.length), causal=False) for start in starts]

    def _one(self, sequence: BatchSequence, start: int, stop: int, *, causal: bool) -> _Work:
        """Queries `start` to `stop` of one sequence's new tokens, over the keys that any of them may see."""
        first, last = sequence.context + start, sequence.context + stop  # positions of the queries
        low = self._lowest(first)
        blocks = np.arange(low // self.block_size, (last - 1) // self.block_size + 1)
        queries, keys = np.arange(first, last)[:, None], np.arange(low, last)[None, :]
        mask = keys <= queries
        if self.window is not None:
            mask &= keys > queries - self.window
        hide = not causal and not mask.all()
        return _Work(
            first_row=sequence.start + start,
            rows=None,
            sequences=1,
            queries=stop - start,
            index=self._index(sequence.block_table[blocks][None]),
            skip=low % self.block_size,
            length=last - low,
            mask=torch.from_numpy(mask)[None, None].to(self.device) if hide else None,
            causal=causal,
        )

    def decode(self, group: list[BatchSequence]) -> _Work:
        """One query each of several sequences. Shorter ones repeat a block of their own, which the mask hides."""
        size = self.block_size
        first_blocks = [self._lowest(s.context) // size for s in group]
        lows = np.array([self._lowest(s.context) - first * size for s, first in zip(group, first_blocks, strict=True)])
        highs = np.array([s.context + 1 - first * size for s, first in zip(group, first_blocks, strict=True)])
        width = -(-int(highs.max()) // size)
        tables = np.stack(
            [
                s.block_table[np.minimum(np.arange(first, first + width), s.context // size)]
                for s, first in zip(group, first_blocks, strict=True)
            ]
        )
        length = int(highs.max())
        skip = int(lows.min())
        places = np.arange(skip, length)
        mask = (places >= lows[:, None]) & (places < highs[:, None])
        rows = np.array([s.start for s in group])
        together = bool(np.all(np.diff(rows) == 1))
        return _Work(
            first_row=int(rows[0]),
            rows=None if together else torch.from_numpy(rows).to(self.device),
            sequences=len(group),
            queries=1,
            index=self._index(tables),
            skip=skip,
            length=length - skip,
            mask=None if mask.all() else torch.from_numpy(mask)[:, None, None].to(self.device),
            causal=False,
        )

    def _lowest(self, position: int) -> int:
        """The first position that a query at `position` may look at."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def _index(self, tables: np.ndarray) -> torch.Tensor:
        """Block numbers [sequences, blocks] -> int64 [sequences x kv heads x blocks], see `_Work`."""
        index = tables.astype(np.int64)[:, None, :] * self.kv_heads + np.arange(self.kv_heads)[None, :, None]
        return torch.from_numpy(index.reshape(-1)).to(self.device)
