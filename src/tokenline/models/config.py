"""The shape of a decoder: one dataclass for every family, and the reader of typed fields that families fill it with.

Knows nothing of any one family (see `families`) and nothing of files beyond the names and types of their fields.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tokenline.models.errors import ModelError

MAX_LAYERS = 1000  # a number from a broken file must not become a list of a billion tensor names
MAX_HEAD_DIM = 1 << 16


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
class Rope:
    """A rotary embedding (RoPE): its base and how its frequencies are scaled."""

    theta: float
    scaling: RopeScaling | None = None

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Float32 [head_dim / 2]: radians per position of each pair of channels, scaling applied."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        frequencies = (1.0 / np.float32(self.theta) ** exponents).astype(np.float32)
        scaling = self.scaling
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


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What the attention of one layer does with positions."""

    rope: Rope | None  # None: queries and keys are not rotated
    window: int | None = None  # attend to this many latest tokens, the own one included; None: to all before


class Activation(StrEnum):
    """What the MLP applies to its gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"  # x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))


class Feature(StrEnum):
    """What a decoder may ask of a backend beyond RMSNorm, causal attention over grouped keys and a gated MLP.

    A backend lists those that it can compute (`base.Backend`). The values are words for error messages.
    """

    SILU = "SiLU"
    GELU_TANH = "GELU (tanh approximation)"
    ROPE = "rotary embedding"
    NO_ROPE = "layers without rotary embedding"
    SEVERAL_ROPES = "several rotary embeddings"
    SLIDING_WINDOW = "sliding-window attention"
    BIASES = "biases"
    QK_NORM = "norms of queries and keys"
    POST_NORMS = "norms behind attention and MLP"
    EMBEDDING_SCALE = "scaled embeddings"
    QUERY_SCALE = "a query scale of its own"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of blocks: RMSNorm, attention with grouped keys, residual; RMSNorm, gated MLP, residual."""

    family: str  # a name in `families.registry`
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerAttention, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # the context length the model was made for
    rms_norm_eps: float
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k, before the rotation
    post_norms: bool = False  # RMSNorm over what attention and MLP give, before it is added to the residual
    embedding_scale: float = 1.0  # embeddings are multiplied by this
    query_scale: float | None = None  # queries are multiplied by this; None: by head_dim ** -0.5
    tied_head: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention_scale(self) -> float:
        """What the scores of attention are multiplied by."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary embeddings of all layers, each once, in the order of their first layers."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def features(self) -> frozenset[Feature]:
        """What this decoder asks of a backend."""
        asked = {
            Feature.SILU: self.activation is Activation.SILU,
            Feature.GELU_TANH: self.activation is Activation.GELU_TANH,
            Feature.ROPE: len(self.ropes) > 0,
            Feature.NO_ROPE: any(layer.rope is None for layer in self.layers),
            Feature.SEVERAL_ROPES: len(self.ropes) > 1,
            Feature.SLIDING_WINDOW: any(layer.window is not None for layer in self.layers),
            Feature.BIASES: self.qkv_bias or self.o_bias or self.mlp_bias,
            Feature.QK_NORM: self.qk_norm,
            Feature.POST_NORMS: self.post_norms,
            Feature.EMBEDDING_SCALE: self.embedding_scale != 1.0,
            Feature.QUERY_SCALE: self.query_scale is not None,
        }
        return frozenset(feature for feature, is_asked in asked.items() if is_asked)


class Fields:
    """Typed access to a mapping; what is missing or of the wrong kind is a ModelError that names file and field.

    A field that is null counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.where}: {reason}")

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1) -> int:
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = {0: "a non-negative integer", 1: "a positive integer"}[least]
            raise self.error(f"{name} must be {kind}, not {short(value)}")
        if value > most:
            raise self.error(f"{name} must be at most {most:,}, not {short(value)}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0, most: float = 1e38) -> float:
        """A number above 0 that fits float32."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:  # fits float32
            raise self.error(f"{name} must be a positive number, not {short(value)}")
        if not least <= value <= most:
            bound = f"at least {least:g}" if value < least else f"at most {most:g}"
            raise self.error(f"{name} must be {bound}, not {short(value)}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._required(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {short(value)}")
        return value

    def object(self, name: str) -> "Fields":
        """The fields of an object in a field; none if it is absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{name} must be an object, not {short(value)}")
        return Fields(value, f"{self.where}: {name}")

    def refuse(self, *names: str) -> None:
        """Raise for a field that asks for something which no backend computes; null, false and 0 ask for nothing."""
        for name in names:
            if self.values.get(name):
                raise self.error(f"{name} is not supported")


def short(value: Any) -> str:
    """A value for an error message, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 128 bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
