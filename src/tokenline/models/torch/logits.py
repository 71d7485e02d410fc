"""Logits on a device of PyTorch's. See `base.Logits`.

On CUDA rows are edited and drawn from where they lie, all together. Main memory is the CPU kernels' own; "mps", which
shares it and lacks 64-bit floats, is given to them too.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tokenline.models.base import RowSampling, TokenLogprob
from tokenline.models.cpu.draw import WEIGHT_BITS
from tokenline.models.cpu.logits import NumpyLogits

SLICE = 32  # rows whose log probabilities are computed at once, in double precision


class TorchLogits:
    """`values`: float32 [R, vocab]."""

    def __init__(self, values: torch.Tensor):
        self.values = values

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        values, ids = torch.max(self.values, dim=-1)
        return values.cpu().numpy(), ids.cpu().numpy()

    @torch.inference_mode()
    def forbid(self, ids: np.ndarray) -> None:
        self.values[:, torch.from_numpy(ids).to(self.values.device)] = -math.inf

    def choose(self, rows: Sequence[RowSampling]) -> np.ndarray:
        if self.values.is_cuda:
            return choose(self.values, rows).cpu().numpy()
        return NumpyLogits(self.to_numpy()).choose(rows)

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], top: int) -> list[TokenLogprob]:
        if not self.values.is_cuda:
            return NumpyLogits(self.to_numpy()).logprobs(rows, ids, top)
        found: list[TokenLogprob] = []
        for start in range(0, len(rows), SLICE):
            end = start + SLICE
            found += logprobs(self.values, rows[start:end], ids[start:end], top)
        return found

    def take(self, rows: Sequence[int]) -> "TorchLogits":
        return TorchLogits(self.values[torch.tensor(list(rows), dtype=torch.long, device=self.values.device)])

    def to_numpy(self) -> np.ndarray:
        return self.values.cpu().numpy()


@torch.inference_mode()
def logprobs(logits: torch.Tensor, rows: Sequence[int], ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """The same as `NumpyLogits.logprobs`, computed on the device of `logits`, all rows at once."""
    values = logits[torch.tensor(list(rows), dtype=torch.long, device=logits.device)]
    of_ids = values.gather(1, torch.tensor(list(ids), dtype=torch.long, device=logits.device)[:, None])
    ranks = (values > of_ids).sum(dim=1) + 1
    log_totals = torch.logsumexp(values.double(), dim=1, keepdim=True)
    best = torch.topk(values, min(top, values.shape[1]), dim=1)
    columns = (of_ids[:, 0].double() - log_totals[:, 0], best.indices, best.values.double() - log_totals, ranks)
    return [
        TokenLogprob(logprob, tuple(zip(best_ids, likely, strict=True)), rank)
        for logprob, best_ids, likely, rank in zip(*(column.tolist() for column in columns), strict=True)
    ]


@torch.inference_mode()
def choose(logits: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """The same ids as `NumpyLogits.choose`, int64 on the device of `logits`, by the same integer weights (see `draw`):
    their sums do not depend on how many rows are added up at once.
    """
    device = logits.device
    values = logits.index_select(0, torch.tensor([row.row for row in rows], device=device))
    _edit(values, rows)
    largest, chosen = values.max(dim=1)
    masked = torch.tensor([row.mask is not None for row in rows], device=device)
    empty = masked & ~(largest > -math.inf)
    largest = torch.where(empty, 0, largest)
    vocab = values.shape[1]
    in_order = [row.temperature > 0 and (0 < row.top_k < vocab or row.top_p < 1) for row in rows]
    by_id = [row.temperature > 0 and not ordered for row, ordered in zip(rows, in_order, strict=True)]
    for which, draw in ((in_order, _draw_in_order), (by_id, _draw_by_id)):
        if some := [at for at, wanted in enumerate(which) if wanted]:
            index = torch.tensor(some, device=device)
            chosen[index] = draw(values[index], largest[index], [rows[at] for at in some])
    return torch.where(empty, -1, chosen)


def _edit(values: torch.Tensor, rows: Sequence[RowSampling]) -> None:
    """Penalties, bias, masks and ids to hold back, in place."""
    device, vocab = values.device, values.shape[1]

    def places(ids_of: Callable[[RowSampling], np.ndarray | None]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows and ids of all the places in `values` that `ids_of` names."""
        parts = [(at, ids) for at, row in enumerate(rows) if (ids := ids_of(row)) is not None and len(ids)]
        if not parts:
            return None
        at = np.repeat([at for at, _ in parts], [len(ids) for _, ids in parts])
        ids = np.concatenate([ids for _, ids in parts])
        return torch.from_numpy(at).to(device), torch.from_numpy(ids).to(device)

    if (where := places(lambda row: row.repeated)) is not None:
        penalties = torch.tensor([row.repetition_penalty for row in rows], dtype=torch.float32, device=device)[where[0]]
        seen = values[where]
        values[where] = torch.where(seen > 0, seen / penalties, seen * penalties)
    for stage in range(max(len(row.added) for row in rows)):
        where = places(lambda row, stage=stage: row.added[stage][0] if stage < len(row.added) else None)
        if where is not None:
            added = np.concatenate([row.added[stage][1] for row in rows if stage < len(row.added)])
            values[where] += torch.from_numpy(added.astype(np.float32)).to(device)
    if masked := [at for at, row in enumerate(rows) if row.mask is not None]:
        words = np.zeros((len(masked), -(-vocab // 32)), np.int32)
        for mask, at in zip(words, masked, strict=True):
            given = rows[at].mask
            assert given is not None
            mask[: len(given)] = given[: len(mask)]
        bits = torch.from_numpy(words).to(device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)
        forbidden = (bits & 1 == 0).flatten(1)[:, :vocab]
        index = torch.tensor(masked, device=device)
        values[index] = values[index].masked_fill(forbidden, -math.inf)
    if (where := places(lambda row: row.held_back)) is not None:
        before = values[where]
        values[where] = -math.inf
        something_left = (values.amax(dim=1) > -math.inf)[where[0]]
        values[where] = torch.where(something_left, -math.inf, before)


def _draw_in_order(values: torch.Tensor, largest: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    vocab = values.shape[1]
    weights, least = _weights(values, largest, rows)
    order = torch.sort(values, dim=1, descending=True, stable=True).indices
    mass = weights.gather(1, order).cumsum(dim=1)
    counts = [row.top_k if 0 < row.top_k < vocab else vocab for row in rows]
    total = mass.gather(1, torch.tensor(counts, device=values.device)[:, None] - 1)
    top_p = _column([row.top_p for row in rows], values.device)
    nucleus = torch.minimum((top_p * total).ceil().long().clamp(min=1), total)
    total = torch.where(top_p < 1, mass.gather(1, torch.searchsorted(mass, nucleus)), total)
    total = torch.minimum(total, _mass_of_at_least(weights, least))
    place = torch.searchsorted(mass, _drawn(total, rows), right=True)
    return order.gather(1, place)[:, 0]


def _draw_by_id(values: torch.Tensor, largest: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    weights, least = _weights(values, largest, rows)
    mass = torch.where(weights >= least, weights, 0).cumsum(dim=1)
    return torch.searchsorted(mass, _drawn(mass[:, -1:], rows), right=True)[:, 0]


def _weights(
    values: torch.Tensor, largest: torch.Tensor, rows: Sequence[RowSampling]
) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [R, vocab], and [R, 1] the smallest weight that min_p leaves."""
    factor = _column([min(1 / math.log(2) / row.temperature, 1e300) for row in rows], values.device)
    scores = (values.double() - largest.double()[:, None]) * factor
    least = _column([math.ceil(row.min_p * 2.0**WEIGHT_BITS) for row in rows], values.device, torch.int64)
    return (scores.exp2_() * 2.0**WEIGHT_BITS).round_().long(), least


def _mass_of_at_least(weights: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    return torch.where(weights >= least, weights, 0).sum(dim=1, keepdim=True)


def _drawn(total: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    uniform = _column([row.uniform for row in rows], total.device)
    return torch.minimum((uniform * total).long(), total - 1)


def _column(values: list[float] | list[int], device: torch.device, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None]
