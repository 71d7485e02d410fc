"""Matrices of a decoder in the form that it computes with: floats, or int8 with one scale per output row.

Knows how to fill itself from a `Checkpoint` piece by piece, so that loading needs the result and one piece, no more.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from tokenline.models.blocks import Blocks
from tokenline.models.weights import Checkpoint

_CHUNK_ROWS = 2048  # rows converted at a time: 2048 x a few thousand columns stay in the second-level cache
_INT8_KERNEL_ROWS = 4  # up to this many inputs PyTorch's own int8 kernel beats converting the matrix (measured)


class Linear:
    """`y = x W^T + b` with W of float32 or bfloat16 [out, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.weight = weight
        self.bias = bias

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] in the compute dtype -> [T, out] in the same."""
        return F.linear(x, self.weight, self.bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix as float32: what an embedding is."""
        return self.weight[ids].float()

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 [T, in] -> float32 [T, out] without rounding the result to the weight's dtype. For logits: in
        bfloat16 two of them that differ by less than 0.4 % would be equal.
        """
        if self.weight.dtype is torch.float32:
            return F.linear(x, self.weight, self.bias)
        if x.is_cuda:
            y = torch.mm(x.to(self.weight.dtype), self.weight.t(), out_dtype=torch.float32)
        else:
            y = _by_chunks(x, self.weight)
        return y if self.bias is None else y + self.bias.float()

    def fill(self, start: int, values: torch.Tensor) -> None:
        """Set rows `start` and following."""
        self.weight[start : start + len(values)].copy_(values)

    @staticmethod
    def empty(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> "Linear":
        if dtype is torch.int8:
            return Int8Linear(
                torch.empty(rows, columns, dtype=torch.int8, device=device),
                torch.empty(rows, dtype=torch.float32, device=device),
            )
        return Linear(torch.empty(rows, columns, dtype=dtype, device=device))


class Int8Linear(Linear):
    """`y = (x Q^T) s + b` with Q of int8 [out, in] and s float32 [out]. Inputs stay floats."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__(weight, bias)
        self.scale = scale
        self.ones = torch.ones(len(scale), dtype=torch.bfloat16, device=scale.device)

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self.scale.nbytes + self.ones.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and x.dtype is torch.bfloat16 and len(x) <= _INT8_KERNEL_ROWS:
            # its own scales would have to be bfloat16, with an error of up to 0.4 % of the whole row
            y = torch.ops.aten._weight_int8pack_mm(x, self.weight, self.ones)
        else:
            y = _by_chunks(x, self.weight)
        y = y * self.scale
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float() * self.scale[ids, None]

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        y = _by_chunks(x, self.weight) * self.scale
        return y if self.bias is None else y + self.bias.float()

    def fill(self, start: int, values: torch.Tensor) -> None:
        values = values.to(self.weight.device, torch.float32, copy=True)
        largest = torch.linalg.vector_norm(values, float("inf"), dim=1)
        scale = (largest / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        stop = start + len(values)
        self.weight[start:stop].copy_(values.div_(scale[:, None]).round_())  # in place: loading keeps no second copy
        self.scale[start:stop] = scale


def _by_chunks(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x W^T` in x's dtype, converting W a chunk of rows at a time so that no second copy of it goes through memory."""
    if x.device.type != "cpu":
        return F.linear(x, weight.to(x.dtype))
    y = torch.empty(len(x), len(weight), dtype=x.dtype)
    for start in range(0, len(weight), _CHUNK_ROWS):
        chunk = weight[start : start + _CHUNK_ROWS]
        torch.mm(x, chunk.to(x.dtype).t(), out=y[:, start : start + len(chunk)])
    return y


NewLinear = Callable[[int, int, torch.dtype, torch.device], Linear]
"""Makes an empty matrix of (rows, columns, dtype, device): `Linear.empty`, or another backend's."""


def load_linear(
    weights: Checkpoint,
    names: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    *,
    bias: bool = False,
    new_linear: NewLinear = Linear.empty,
) -> Linear:
    """One matrix from the tensors `names` (without their ".weight"), one below the other, and their biases likewise."""
    shapes = [weights.shapes[f"{name}.weight"] for name in names]
    linear = new_linear(sum(shape[0] for shape in shapes), shapes[0][1], dtype, device)
    start = 0
    for name, shape in zip(names, shapes, strict=True):
        for row, blocks in weights.pieces(f"{name}.weight"):
            values = tensor_of(blocks)
            weights.require_finite(f"{name}.weight", bool(values.isfinite().all()))
            linear.fill(start + row, values)
        start += shape[0]
    if bias:
        kept = torch.float32 if dtype is torch.int8 else dtype
        linear.bias = torch.cat([torch.from_numpy(weights.read(f"{name}.bias")).to(kept) for name in names]).to(device)
    return linear


def tensor_of(blocks: Blocks) -> torch.Tensor:
    """Rows of a file as a tensor [rows, columns] on the CPU: bfloat16 and float16 as they are, all else float32."""
    halves = {"BF16": torch.bfloat16, "F16": torch.float16}.get(blocks.kind)
    return torch.from_numpy(blocks.floats()) if halves is None else torch.from_numpy(blocks.data).view(halves)
