"""What the CPU kernels compute, written down in plain PyTorch: the same roundings, in float32, in no particular order.

Weights are unpacked from the kernels' own panels; activations are rounded to int8 per 32 values before every product;
queries, keys and values are rounded to bfloat16, and so are the weights of the softmax. What is left between this and
the kernels is float32 rounding, which now and then tips a value to the next step of a coarser grid.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from tokenline.models.config import Activation, Rope
from tokenline.models.cpu.attention import SPAN
from tokenline.models.cpu.linear import PANEL, Q8
from tokenline.models.cpu.pack import Packed, pack_tensor
from tokenline.models.weights import EMBEDDING, FINAL_NORM, HEAD, Checkpoint

# How far the two may be apart, for the tiny models of the tests. Seen, by CPU and tokens: 0.001 to 0.0212, and 94 %.
MAX_ERROR = 0.025  # root mean square of the difference, in standard deviations of the logits
MIN_EQUAL = 0.93  # share of positions with the same most likely id


def unpack(packed: Packed) -> torch.Tensor:
    """Float32 [rows, columns] of a packed matrix."""
    panels, groups = packed.panels, -(-packed.columns // 32)
    data = packed.data.reshape(panels, groups, -1)

    def halves(offset: int) -> np.ndarray:  # float32 [rows, groups]
        values = np.ascontiguousarray(data[:, :, offset : offset + 128]).view(np.float16).astype(np.float32)
        return values.transpose(0, 2, 1).reshape(panels * PANEL, groups)

    def integers(raw: np.ndarray, steps: int) -> np.ndarray:  # [panels, groups, bytes] -> [rows, groups, steps x 4]
        return raw.reshape(panels, groups, steps, 4, 16, 4).transpose(0, 3, 4, 1, 2, 5).reshape(-1, groups, steps * 4)

    if packed.kind == Q8:
        q = integers(data[:, :, :2048], 8).astype(np.float32) - 128
        values = q * halves(2048)[:, :, None]
    else:
        both = integers(data[:, :, :1024], 4)
        q = np.concatenate((both & 15, both >> 4), axis=2).astype(np.float32)
        values = q * halves(1024)[:, :, None] + halves(1152)[:, :, None]
    values = np.ldexp(values, -packed.shift)
    return torch.from_numpy(values.reshape(panels * PANEL, -1)[: packed.rows, : packed.columns].copy())


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Activations as the products see them: int8 with a scale per 32 values."""
    width = x.shape[-1]
    groups = torch.nn.functional.pad(x, (0, -width % 32)).unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    q = torch.where(scale > 0, groups / scale, 0).round()
    return (q * scale).flatten(-2)[..., :width]


def attend(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Base-2 scores [h, q, k], values [k, h, d] -> [q, h, d]; weights rounded as relative to the span's largest."""
    missing = -scores.shape[-1] % SPAN
    spans = torch.nn.functional.pad(scores, (0, missing), value=-1e29).unflatten(-1, (-1, SPAN))
    largest = spans.amax(-1, keepdim=True)
    weights = torch.exp2(spans - largest)
    factor = torch.exp2(largest - largest.amax(-2, keepdim=True))
    top = (weights.bfloat16().float() * factor).flatten(-2)
    total = (weights * factor).flatten(-2).sum(-1)
    return torch.einsum("hqk,khd->qhd", top[..., : len(v)], v) / total.T[..., None]


def emulated_logits(checkpoint: Checkpoint, ids: Sequence[int]) -> torch.Tensor:
    """Logits of all positions of one sequence."""
    config = checkpoint.config
    positions = torch.arange(len(ids), dtype=torch.float32)

    def matrix(name: str) -> torch.Tensor:
        return unpack(pack_tensor(checkpoint, name))

    def linear(x: torch.Tensor, name: str, bias: bool) -> torch.Tensor:
        y = rounded(x) @ matrix(name + ".weight").T
        return y + torch.from_numpy(checkpoint.read(name + ".bias")) if bias else y

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = torch.from_numpy(checkpoint.read(name))
        return torch.nn.functional.rms_norm(x, weight.shape, weight, config.rms_norm_eps)

    def rotate(x: torch.Tensor, rope: Rope | None) -> torch.Tensor:
        if rope is None:
            return x
        angles = positions[:, None] * torch.from_numpy(rope.frequencies(config.head_dim))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def activation(x: torch.Tensor) -> torch.Tensor:
        if config.activation is Activation.GELU_TANH:
            return torch.nn.functional.gelu(x, approximate="tanh")
        return torch.nn.functional.silu(x)

    embedding = matrix(EMBEDDING)
    x = embedding[list(ids)] * config.embedding_scale
    for layer, kind in enumerate(config.layers):
        name = f"layers.{layer}."
        h = norm(x, name + "attention_norm.weight")
        q, k, v = (linear(h, name + part, config.qkv_bias).unflatten(-1, (-1, config.head_dim)) for part in "qkv")
        if config.qk_norm:
            q, k = norm(q, name + "q_norm.weight"), norm(k, name + "k_norm.weight")
        q = (rotate(q, kind.rope) * math.log2(math.e) * config.attention_scale).bfloat16().float()
        k, v = rotate(k, kind.rope).bfloat16().float(), v.bfloat16().float()
        group = config.num_heads // config.num_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k)
        age = positions[:, None] - positions[None, :]
        hidden = age < 0
        if kind.window is not None:
            hidden |= age >= kind.window
        attended = attend(scores.masked_fill(hidden, -1e29), v).flatten(1)
        y = linear(attended, name + "o", config.o_bias)
        x = x + (norm(y, name + "attention_post_norm.weight") if config.post_norms else y)
        h = norm(x, name + "mlp_norm.weight")
        gate, up = linear(h, name + "gate", config.mlp_bias), linear(h, name + "up", config.mlp_bias)
        y = linear(activation(gate) * up, name + "down", config.mlp_bias)
        x = x + (norm(y, name + "mlp_post_norm.weight") if config.post_norms else y)
    head = embedding if config.tied_head else matrix(HEAD)
    return rounded(norm(x, FINAL_NORM)) @ head.T
