"""Gemma 3, its text models: GeGLU, norms in front of and behind attention and MLP, scaled embeddings, and layers with a
sliding window, whose rotary embedding has a base of its own, between layers that see everything.

Checkpoints hold the weights of norms less 1; llama.cpp's converter adds the 1.
"""

from collections.abc import Callable
from typing import Any

from tokenline.models.config import MAX_LAYERS, Activation, Fields, LayerAttention, ModelConfig, Rope
from tokenline.models.errors import ModelError
from tokenline.models.families.family import HF_NAMES, Family, TensorNames
from tokenline.models.families.gguf import gguf_window, read_gguf
from tokenline.models.families.hf import FULL, SLIDING, layer_types, num_layers, read_hf, refuse_partial, scaled_rope
from tokenline.models.gguf_file import GGUFFile

_PERIOD = 6  # every sixth layer sees everything
_LOCAL_THETA, _GLOBAL_THETA = 10_000.0, 1_000_000.0
_LAYERS_27B = 62

_NAMES = TensorNames(
    HF_NAMES.outer,
    HF_NAMES.prefix,
    {
        **HF_NAMES.layer,
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)


# What transformers takes for fields that config.json lacks (configuration_gemma3.py); Google's files lack some
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def _from_hf(fields: Fields) -> ModelConfig:
    fields.refuse("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
    fields = Fields({**_DEFAULTS, **fields.values}, fields.where)
    layers = num_layers(fields)
    if (kinds := layer_types(fields, layers)) is None:
        kinds = _kinds(layers, fields.count("sliding_window_pattern", _PERIOD))
    window = fields.count("sliding_window") if SLIDING in kinds else None
    local, far = _ropes(fields)
    bias = fields.flag("attention_bias")
    return read_hf(
        fields,
        "gemma3_text",
        tuple(LayerAttention(local, window) if kind == SLIDING else LayerAttention(far) for kind in kinds),
        activation=Activation.GELU_TANH,
        activation_field="hidden_activation",
        default_tied=True,
        qkv_bias=bias,
        o_bias=bias,
        query_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        **_block(fields.count("hidden_size")),
    )


def _kinds(layers: int, period: int) -> list[str]:
    return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]


def _block(hidden_size: int) -> dict[str, Any]:
    return {"qk_norm": True, "post_norms": True, "embedding_scale": hidden_size**0.5}


def _ropes(fields: Fields) -> tuple[Rope, Rope]:
    """Of the layers with a window, and of those without: an object for each in `rope_parameters` (transformers 5), or
    `rope_local_base_freq`, and `rope_theta` with `rope_scaling` (before). `rope_scaling` adds to the object of the
    layers without a window.
    """
    refuse_partial(fields)
    by_kind = fields.object("rope_parameters")
    if "rope_theta" in by_kind.values or "rope_type" in by_kind.values:
        raise fields.error(f"rope_parameters must hold an object for {SLIDING} and one for {FULL}")
    near, far = by_kind.object(SLIDING), by_kind.object(FULL)
    if scaling := fields.object("rope_scaling").values:
        far = Fields({**far.values, **scaling}, f"{fields.where}: rope_scaling")
    local_theta = near.number("rope_theta", fields.number("rope_local_base_freq", _LOCAL_THETA), least=1.0)
    theta = far.number("rope_theta", fields.number("rope_theta", _GLOBAL_THETA), least=1.0)
    name = "original_max_position_embeddings"
    made_for = fields.get("max_position_embeddings")
    return scaled_rope(near, local_theta, near.get(name, made_for)), scaled_rope(far, theta, far.get(name, made_for))


def _from_gguf(fields: Fields, file: GGUFFile) -> ModelConfig:
    window = gguf_window(fields)
    slides = _gguf_pattern(fields, file)
    local = Rope(fields.number("rope.freq_base_swa", _LOCAL_THETA, least=1.0))
    hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    # llama.cpp knows the 27B model by its number of layers; its scale goes by the hidden size
    scaled_by = hidden // heads if fields.get("block_count") == _LAYERS_27B else fields.count("attention.key_length")
    return read_gguf(
        fields,
        file,
        "gemma3_text",
        lambda layer, rope: LayerAttention(local, window) if window and slides(layer) else LayerAttention(rope),
        activation=Activation.GELU_TANH,
        query_scale=scaled_by**-0.5,
        **_block(hidden),
    )


def _gguf_pattern(fields: Fields, file: GGUFFile) -> Callable[[int], bool]:
    """Whether a layer has the window: by a number (all but every so many), or by a list with true for each that has."""
    key = "gemma3.attention.sliding_window_pattern"
    value = file.metadata.get(key)
    layers = fields.count("block_count", most=MAX_LAYERS)
    if isinstance(value, list) and len(value) == layers:
        if all(isinstance(item, bool) for item in value):
            return lambda layer: value[layer]
    elif not isinstance(value, list):
        period = Fields(file.metadata, file.path.name).count(key, _PERIOD)
        return lambda layer: (layer + 1) % period != 0
    raise ModelError(f"{file.path.name}: {key} must be a number, or a list of true and false for each layer")


GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", _from_hf, "gemma3", _from_gguf, hf_names=_NAMES, norm_offset=1.0)
