"""One decoder for all families in plain PyTorch: the reference that runs on every device and that fast backends match.

RMSNorm, rotary attention with grouped keys, SwiGLU; what differs between Llama, Mistral, Qwen2 and Qwen3 is in
`ModelConfig`. The residual stream, the norms and the logits are float32 in every mode; matrices are float32, bfloat16,
or int8 with one scale per row.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tokenline.models.base import Batch, KVPool
from tokenline.models.config import ModelConfig
from tokenline.models.errors import ModelError
from tokenline.models.memory import require_memory
from tokenline.models.torch.attention import AttentionPlan, TorchKVPool, attend, plan_attention
from tokenline.models.torch.linear import Linear, load_linear
from tokenline.models.torch.logits import TorchLogits
from tokenline.models.torch.memory import free_memory
from tokenline.models.weights import EMBEDDING, HEAD, Checkpoint


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchDecoder:
    """A `Model` (see `base`). `weight_dtype` is what matrices are kept in, `compute_dtype` what they multiply."""

    def __init__(
        self, weights: Checkpoint, *, device: torch.device, weight_dtype: torch.dtype, compute_dtype: torch.dtype
    ):
        self.config: ModelConfig = weights.config
        self.device = str(device)
        self._device = device
        self.weight_dtype = weight_dtype
        self.compute_dtype = compute_dtype
        self.kv_dtype = torch.float32 if weight_dtype is torch.float32 else torch.bfloat16
        self._frequencies = torch.from_numpy(self.config.rope_frequencies()).to(device)
        self._embedding = load_linear(weights, [EMBEDDING.removesuffix(".weight")], weight_dtype, device)
        self._layers = [self._load_layer(weights, layer) for layer in range(self.config.num_layers)]
        self._final_norm = self._load_vector(weights, "model.norm.weight")
        self._head = self._embedding
        if not self.config.tied_head:
            self._head = load_linear(weights, [HEAD.removesuffix(".weight")], weight_dtype, device)
        self.weight_bytes: int = self._count_bytes()
        self.precision: str = str(weight_dtype).removeprefix("torch.")

    def _load_layer(self, weights: Checkpoint, layer: int) -> _Layer:
        config, name = self.config, f"model.layers.{layer}."

        def linear(*parts: str, bias: bool) -> Linear:
            return load_linear(weights, [name + part for part in parts], self.weight_dtype, self._device, bias=bias)

        attention = [f"self_attn.{part}_proj" for part in "qkv"]
        return _Layer(
            attention_norm=self._load_vector(weights, name + "input_layernorm.weight"),
            qkv=linear(*attention, bias=config.qkv_bias),
            q_norm=self._load_vector(weights, name + "self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=self._load_vector(weights, name + "self_attn.k_norm.weight") if config.qk_norm else None,
            out=linear("self_attn.o_proj", bias=config.o_bias),
            mlp_norm=self._load_vector(weights, name + "post_attention_layernorm.weight"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj", bias=config.mlp_bias),
            down=linear("mlp.down_proj", bias=config.mlp_bias),
        )

    def _load_vector(self, weights: Checkpoint, name: str) -> torch.Tensor:
        return torch.from_numpy(weights.read(name)).to(self._device)

    def _count_bytes(self) -> int:
        linears = [
            self._embedding,
            *(m for layer in self._layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down)),
        ]
        if self._head is not self._embedding:
            linears.append(self._head)
        vectors = [self._final_norm]
        for layer in self._layers:
            norms = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
            vectors += [norm for norm in norms if norm is not None]
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
            window: plan_attention(
                batch, kv_heads=config.num_kv_heads, block_size=kv.block_size, window=window, device=self._device
            )
            for window in {config.window(layer) for layer in range(config.num_layers)}
        }
        angles = torch.from_numpy(batch.positions).to(self._device).float()[:, None] * self._frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]  # [T, 1, head_dim / 2]
        hidden = self._embedding.rows(torch.from_numpy(batch.ids).to(self._device))
        for number, layer in enumerate(self._layers):
            x = self._norm(hidden, layer.attention_norm).to(self.compute_dtype)
            hidden = hidden + self._attention(layer, number, x, cos, sin, kv, plans[config.window(number)])
            x = self._norm(hidden, layer.mlp_norm).to(self.compute_dtype)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        wanted = hidden[torch.from_numpy(batch.logit_rows).to(self._device)]
        return TorchLogits(self._head.exact(self._norm(wanted, self._final_norm)))

    def _attention(
        self,
        layer: _Layer,
        number: int,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv: TorchKVPool,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        config, tokens = self.config, len(x)
        qkv = layer.qkv(x).view(tokens, -1, config.head_dim)
        q, k, v = qkv.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q.float(), layer.q_norm), self._norm(k.float(), layer.k_norm)
        q, k = _rotate(q, cos, sin).to(self.compute_dtype), _rotate(k, cos, sin).to(self.compute_dtype)
        return layer.out(attend(q, k, v, kv, number, plan).view(tokens, -1))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in Hugging Face's layout: channel i turns with channel i + head_dim / 2. Float32 out."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
