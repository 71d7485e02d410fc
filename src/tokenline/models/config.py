"""The shape of a decoder: one dataclass for every family, read from config.json or from GGUF metadata."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.x RoPE scaling ("rope_type": "llama3"); "linear" uses `factor` alone."""

    kind: str  # "llama3" | "linear"
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-like decoder: RMSNorm, rotary attention with grouped keys, SwiGLU."""

    family: str  # "llama" | "mistral" | "qwen2" | "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # the context length the model was made for
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False  # Qwen2
    o_bias: bool = False  # Llama with attention_bias
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: RMSNorm over each head of q and k
    sliding_window: int | None = None  # attend to this many latest tokens (the own one included)
    sliding_layers: frozenset[int] | None = None  # layers that use the window; None: all, when there is one
    tied_head: bool = False
