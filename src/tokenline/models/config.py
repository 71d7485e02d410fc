"""The shape of a decoder: one dataclass for every family, read from config.json or from GGUF metadata.

What this server cannot compute exactly is refused here by name, with the list of what works, before any weight is read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenline.models.errors import ModelError
from tokenline.models.gguf_file import GGUFFile

HF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_MOST_LAYERS = 1000  # a number from a broken file must not become a list of a billion tensor names


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies differ from the plain ones.

    "llama3" (Llama 3.1 and later) uses all but `factors`; "linear" uses `factor` alone; "factors" is what a GGUF file
    stores in `rope_freqs.weight`: each plain frequency is divided by its own factor.
    """

    kind: str  # "llama3" | "linear" | "factors"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    factors: tuple[float, ...] = ()  # head_dim / 2 of them


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

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer; None where it attends to everything before."""
        if self.sliding_layers is None or layer in self.sliding_layers:
            return self.sliding_window
        return None

    def rope_frequencies(self) -> np.ndarray:
        """Float32 [head_dim / 2]: radians per position of each pair of channels, scaling applied."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = (1.0 / np.float32(self.rope_theta) ** exponents).astype(np.float32)
        scaling = self.rope_scaling
        if scaling is None:
            return frequencies
        if scaling.kind == "factors":
            return frequencies / np.asarray(scaling.factors, dtype=np.float32)
        if scaling.kind == "linear":
            return frequencies / np.float32(scaling.factor)
        # Llama 3: long waves are stretched by `factor`, short ones kept, those between blended
        # (transformers, modeling_rope_utils._compute_llama3_parameters).
        wavelengths = 2 * math.pi / frequencies
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = (scaling.original_max_positions / wavelengths - low) / (high - low)
        blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
        return np.where(
            wavelengths > scaling.original_max_positions / low,
            frequencies / scaling.factor,
            np.where(wavelengths < scaling.original_max_positions / high, frequencies, blended),
        ).astype(np.float32)


class _Fields:
    """Typed access to a mapping; what is missing or of the wrong kind is a ModelError that names file and field."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.where}: {reason}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def count(self, name: str, default: int | None = None, *, most: int = 2**31 - 1) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name} must be a positive integer, not {_short(value)}")
        if value > most:
            raise self.error(f"{name} is {_short(value)}; more than {most:,} is not believed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:  # fits float32
            raise self.error(f"{name} must be a positive number, not {_short(value)}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {_short(value)}")
        return value


def _short(value: Any) -> str:
    """A value for an error message, cut where somebody put a book there."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 128 bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"{where}: head_dim {config.head_dim} is odd; rotary embedding needs pairs of channels")
    return config


# config.json ---------------------------------------------------------------------------------------------------------


def config_from_hf(values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Read a Hugging Face config.json, as transformers 4 or 5 spells it. Absent fields mean what they do there."""
    fields = _Fields(values, where)
    family = _hf_family(fields)
    act = values.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise fields.error(f"hidden_act {act!r} is not supported; silu is")
    if values.get("quantization_config"):
        quantisation = values["quantization_config"]
        method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else quantisation
        raise fields.error(
            f"quantization_config ({method}) is not supported; "
            "use the unquantised checkpoint (tokenline quantises while loading) or a GGUF file"
        )
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layers = fields.count("num_hidden_layers", most=_MOST_LAYERS)
    default_head = 128 if family == "qwen3" else hidden // heads
    if values.get("head_dim") is None and family != "qwen3" and hidden % heads:
        raise fields.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    theta, scaling = _hf_rope(fields)
    bias = family in ("llama", "qwen3") and fields.flag("attention_bias")
    window, sliding_layers = _hf_window(fields, family, layers)
    return _checked(
        ModelConfig(
            family=family,
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.count("num_key_value_heads", heads if family == "llama" else None),
            head_dim=fields.count("head_dim", default_head),
            max_positions=fields.count("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=bias or family == "qwen2",
            o_bias=bias,
            mlp_bias=family == "llama" and fields.flag("mlp_bias"),
            qk_norm=family == "qwen3",
            sliding_window=window,
            sliding_layers=sliding_layers,
            tied_head=fields.flag("tie_word_embeddings"),
        ),
        where,
    )


def _hf_family(fields: _Fields) -> str:
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else fields.values.get("model_type")
    by_type = {family: family for family in HF_ARCHITECTURES.values()}
    family = (HF_ARCHITECTURES | by_type).get(name) if isinstance(name, str) else None
    if family is None:
        raise fields.error(
            f"architecture {name or 'not given'} is not supported; supported: {', '.join(HF_ARCHITECTURES)}"
        )
    return family


def _hf_rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    values = fields.values
    name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    raw = values.get(name) or {}
    if not isinstance(raw, Mapping) or any(isinstance(value, Mapping) for value in raw.values()):
        raise fields.error(f"{name} must be one flat object; one for each layer type is not supported")
    rope = _Fields(raw, f"{fields.where}: {name}")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    for place in (fields, rope):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.error("partial_rotary_factor other than 1 is not supported")
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor"))
    if kind != "llama3":
        raise rope.error(f"rope_type {kind!r} is not supported; default, linear and llama3 are")
    scaling = RopeScaling(
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_positions=rope.count("original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.error("high_freq_factor must be larger than low_freq_factor")
    return theta, scaling


def _hf_window(fields: _Fields, family: str, layers: int) -> tuple[int | None, frozenset[int] | None]:
    values = fields.values
    if family == "llama":
        return None, None
    if family == "mistral":
        # null switches it off (Mistral 7B v0.2 and later); absent, transformers assumes the 4096 of v0.1
        if "sliding_window" in values and values["sliding_window"] is None:
            return None, None
        return fields.count("sliding_window", 4096), None
    window = fields.count("sliding_window", 4096) if fields.flag("use_sliding_window") else None
    kinds = values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise fields.error(f"layer_types must list one type for each of the {layers} layers")
        if unknown := set(map(str, kinds)) - {"full_attention", "sliding_attention"}:
            raise fields.error(f"layer type {sorted(unknown)[0]!r} is not supported")
        sliding = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        first = values.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.error(f"max_window_layers must be a non-negative integer, not {first!r}")
        sliding = frozenset(range(first, layers))
    return (window, sliding) if window is not None and sliding else (None, None)


# GGUF ----------------------------------------------------------------------------------------------------------------


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the metadata (keys of llama.cpp's gguf-py constants) and, where they decide, the names of the tensors."""
    values, where = file.metadata, file.path.name
    arch = values.get("general.architecture")
    if arch not in GGUF_ARCHITECTURES:
        raise ModelError(
            f"{where}: architecture {arch or 'not given'} is not supported; "
            f"supported: {', '.join(GGUF_ARCHITECTURES)} (Mistral files are llama)"
        )
    # Per-layer lists are fine as long as every layer says the same
    prefix = f"{arch}."
    flat = {key.removeprefix(prefix): _same(value) for key, value in values.items() if key.startswith(prefix)}
    fields = _Fields(flat, f"{where}: {arch}")
    if (parts := _Fields(values, where).count("split.count", 1)) > 1:
        raise ModelError(f"{where}: one of {parts} parts; merge them with llama-gguf-split --merge")
    if flat.get("expert_count"):
        raise fields.error(f"mixture of experts ({flat['expert_count']} experts) is not supported")
    hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (size := fields.count(name, head_dim)) != head_dim:
            raise fields.error(f"{name} {size} differs from the head size {head_dim}, which is not supported")
    for name in ("attention.scale", "logit_scale", "embedding_scale", "residual_scale"):
        if flat.get(name):
            raise fields.error(f"{name} is not supported")
    names = file.tensors
    if "token_embd.weight" in names:
        vocab = names["token_embd.weight"].shape[0]  # may be padded past the tokenizer's vocabulary
    else:
        tokens = values.get("tokenizer.ggml.tokens")
        vocab = fields.count("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    return _checked(
        ModelConfig(
            family=arch,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=fields.count("feed_forward_length"),
            num_layers=fields.count("block_count", most=_MOST_LAYERS),
            num_heads=heads,
            num_kv_heads=fields.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_positions=fields.count("context_length"),
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number("rope.freq_base", 10_000.0),
            rope_scaling=_gguf_scaling(file, fields, head_dim),
            qkv_bias="blk.0.attn_q.bias" in names,
            o_bias="blk.0.attn_output.bias" in names,
            mlp_bias="blk.0.ffn_down.bias" in names,
            qk_norm=arch == "qwen3",
            sliding_window=fields.count("attention.sliding_window") if flat.get("attention.sliding_window") else None,
            tied_head="output.weight" not in names,
        ),
        where,
    )


def _same(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and all(item == value[0] for item in value) else value


def _gguf_scaling(file: GGUFFile, fields: _Fields, head_dim: int) -> RopeScaling | None:
    kind = fields.values.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.error(f"rope.scaling.type {kind!r} is not supported; none and linear are")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0)) if kind == "linear" else 1.0
    if "rope_freqs.weight" not in file.tensors:
        return RopeScaling("linear", factor) if factor != 1.0 else None
    factors = file.read("rope_freqs.weight").reshape(-1)
    if len(factors) != head_dim // 2 or not bool(np.all(np.isfinite(factors) & (factors > 0))):
        raise fields.error(f"rope_freqs.weight must hold {head_dim // 2} positive factors")
    return RopeScaling("factors", factors=tuple(float(f) * factor for f in factors))
