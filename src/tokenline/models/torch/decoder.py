"""One decoder for all families in plain PyTorch: the reference that runs on every device and that fast backends match.

What a block is made of is in `ModelConfig`; no family is known here by name. The residual stream, the norms and the
logits are float32 in every mode; matrices are float32, bfloat16, or int8 with one scale per row.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F

from tokenline.models.arithmetic import arithmetic_name
from tokenline.models.base import Batch, KVPool
from tokenline.models.config import Activation, ModelConfig, Rope
from tokenline.models.errors import ModelError
from tokenline.models.memory import require_memory
from tokenline.models.torch.attention import PLAIN, Attention, TorchKVPool
from tokenline.models.torch.linear import Linear, NewLinear, load_linear
from tokenline.models.torch.logits import TorchLogits
from tokenline.models.torch.memory import free_memory
from tokenline.models.torch.path import instruction_path
from tokenline.models.weights import EMBEDDING, FINAL_NORM, HEAD, Checkpoint


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS = {Activation.SILU: F.silu, Activation.GELU_TANH: _gelu_tanh}
_Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of a batch, [T, 1, head_dim / 2]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    mlp_post_norm: torch.Tensor | None

    @property
    def matrices(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def vectors(self) -> tuple[torch.Tensor, ...]:
        norms = (self.attention_norm, self.q_norm, self.k_norm, self.attention_post_norm, self.mlp_norm)
        return tuple(norm for norm in (*norms, self.mlp_post_norm) if norm is not None)


class TorchDecoder:
    """A `Model` (see `base`). `weight_dtype` is what matrices are kept in, `compute_dtype` what they multiply.

    `attention` and `new_linear` take the place of the plain ones where a device has faster ones.
    """

    def __init__(
        self,
        weights: Checkpoint,
        *,
        device: torch.device,
        weight_dtype: torch.dtype,
        compute_dtype: torch.dtype,
        attention: Attention = PLAIN,
        new_linear: NewLinear = Linear.empty,
    ):
        self.config: ModelConfig = weights.config
        self.device = str(device)
        self._device = device
        self.weight_dtype = weight_dtype
        self.compute_dtype = compute_dtype
        self.kv_dtype = torch.float32 if weight_dtype is torch.float32 else torch.bfloat16
        self._frequencies = {
            rope: torch.from_numpy(rope.frequencies(self.config.head_dim)).to(device) for rope in self.config.ropes
        }
        self._activation = _ACTIVATIONS[self.config.activation]
        self._attention_backend = attention
        self._new_linear = new_linear
        self._embedding = self._load_linear(weights, [EMBEDDING.removesuffix(".weight")])
        self._layers = [self._load_layer(weights, layer) for layer in range(self.config.num_layers)]
        self._final_norm = self._load_vector(weights, FINAL_NORM)
        self._head = self._embedding
        if not self.config.tied_head:
            self._head = self._load_linear(weights, [HEAD.removesuffix(".weight")])
        self.weight_bytes: int = self._count_bytes()
        self.precision: str = str(weight_dtype).removeprefix("torch.")
        parts = (f"{part.__module__}.{part.__qualname__}" for part in (attention.attend, new_linear))
        self.arithmetic: str = arithmetic_name(
            *instruction_path(device), version("numpy"), weight_dtype, compute_dtype, self.kv_dtype, *parts
        )

    def _load_layer(self, weights: Checkpoint, layer: int) -> _Layer:
        config, name = self.config, f"layers.{layer}."

        def linear(*parts: str, bias: bool) -> Linear:
            return self._load_linear(weights, [name + part for part in parts], bias=bias)

        def norm(role: str, there: bool) -> torch.Tensor | None:
            return self._load_vector(weights, f"{name}{role}.weight") if there else None

        return _Layer(
            attention_norm=self._load_vector(weights, name + "attention_norm.weight"),
            qkv=linear("q", "k", "v", bias=config.qkv_bias),
            q_norm=norm("q_norm", config.qk_norm),
            k_norm=norm("k_norm", config.qk_norm),
            out=linear("o", bias=config.o_bias),
            attention_post_norm=norm("attention_post_norm", config.post_norms),
            mlp_norm=self._load_vector(weights, name + "mlp_norm.weight"),
            gate_up=linear("gate", "up", bias=config.mlp_bias),
            down=linear("down", bias=config.mlp_bias),
            mlp_post_norm=norm("mlp_post_norm", config.post_norms),
        )

    def _load_linear(self, weights: Checkpoint, names: list[str], bias: bool = False) -> Linear:
        return load_linear(weights, names, self.weight_dtype, self._device, bias=bias, new_linear=self._new_linear)

    def _load_vector(self, weights: Checkpoint, name: str) -> torch.Tensor:
        return torch.from_numpy(weights.read(name)).to(self._device)

    def _count_bytes(self) -> int:
        linears = [self._embedding, *(matrix for layer in self._layers for matrix in layer.matrices)]
        if self._head is not self._embedding:
            linears.append(self._head)
        vectors = [self._final_norm, *(vector for layer in self._layers for vector in layer.vectors)]
        return sum(linear.num_bytes for linear in linears) + sum(vector.nbytes for vector in vectors)

    def kv_bytes_per_token(self) -> int:
        """Bytes that one token occupies in the pool, all layers, keys and values."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.kv_dtype.itemsize

    def new_kv_pool(self, num_blocks: int, block_size: int) -> TorchKVPool:
        """Allocate a pool. Raises ModelError when the memory is not there."""
        what = f"a KV pool of {num_blocks * block_size} tokens"
        where = "memory" if self._device.type != "cuda" else f"memory on {self.device}"
        require_memory(num_blocks * block_size * self.kv_bytes_per_token(), self.free_memory(), what, where)
        config = self.config
        try:
            return TorchKVPool(
                config.num_layers,
                num_blocks,
                config.num_kv_heads,
                block_size,
                config.head_dim,
                self.kv_dtype,
                self._device,
            )
        except RuntimeError as error:  # the allocator's own refusal, torch.OutOfMemoryError included
            raise ModelError(f"{what} cannot be allocated: {str(error).splitlines()[0]}") from error

    def free_memory(self) -> int:
        return free_memory(self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KVPool) -> TorchLogits:
        """Compute the batch, write its keys and values to the pool, return the logits of `batch.logit_rows`."""
        assert isinstance(kv, TorchKVPool)
        config = self.config
        if int(batch.ids.min()) < 0 or int(batch.ids.max()) >= config.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary of {config.vocab_size}")
        plans = {
            window: self._attention_backend.plan(
                batch, kv_heads=config.num_kv_heads, block_size=kv.block_size, window=window, device=self._device
            )
            for window in {layer.window for layer in config.layers}
        }
        rotations = {rope: self._rotation(rope, batch) for rope in config.ropes}
        hidden = self._embedding.rows(torch.from_numpy(batch.ids).to(self._device))
        if config.embedding_scale != 1.0:
            hidden = hidden * config.embedding_scale
        for number, (layer, kind) in enumerate(zip(self._layers, config.layers, strict=True)):
            x = self._norm(hidden, layer.attention_norm).to(self.compute_dtype)
            rotation = rotations[kind.rope] if kind.rope is not None else None
            x = self._attention(layer, number, x, rotation, kv, plans[kind.window])
            hidden = self._add(hidden, x, layer.attention_post_norm)
            x = self._norm(hidden, layer.mlp_norm).to(self.compute_dtype)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden = self._add(hidden, layer.down(self._activation(gate) * up), layer.mlp_post_norm)
        wanted = hidden[torch.from_numpy(batch.logit_rows).to(self._device)]
        return TorchLogits(self._head.exact(self._norm(wanted, self._final_norm)))

    def _rotation(self, rope: Rope, batch: Batch) -> _Rotation:
        angles = torch.from_numpy(batch.positions).to(self._device).float()[:, None] * self._frequencies[rope]
        return angles.cos()[:, None], angles.sin()[:, None]

    def _attention(
        self,
        layer: _Layer,
        number: int,
        x: torch.Tensor,
        rotation: _Rotation | None,
        kv: TorchKVPool,
        plan: Any,
    ) -> torch.Tensor:
        config, tokens = self.config, len(x)
        qkv = layer.qkv(x).view(tokens, -1, config.head_dim)
        q, k, v = qkv.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q.float(), layer.q_norm), self._norm(k.float(), layer.k_norm)
        if rotation is not None:
            q, k = _rotate(q, *rotation), _rotate(k, *rotation)
        q, k = q.to(self.compute_dtype), k.to(self.compute_dtype)
        attended = self._attention_backend.attend(q, k, v, kv, number, plan, config.attention_scale)
        return layer.out(attended.view(tokens, -1))

    def _add(self, hidden: torch.Tensor, x: torch.Tensor, post_norm: torch.Tensor | None) -> torch.Tensor:
        """The residual stream and what attention or MLP adds to it."""
        return hidden + (x if post_norm is None else self._norm(x.float(), post_norm))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in Hugging Face's layout: channel i turns with channel i + head_dim / 2. Float32 out."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
