"""SmolLM3: a Llama in which every fourth layer has no rotary embedding.

GGUF files do not say which layers those are; llama.cpp takes every fourth as well (src/models/smollm3.cpp).
"""

from tokenline.models.config import Fields, LayerAttention, ModelConfig, short
from tokenline.models.families.family import Family
from tokenline.models.families.gguf import read_gguf
from tokenline.models.families.hf import SLIDING, layer_types, num_layers, read_hf, read_rope
from tokenline.models.gguf_file import GGUFFile

_INTERVAL = 4  # layers


def _from_hf(fields: Fields) -> ModelConfig:
    layers, rope = num_layers(fields), read_rope(fields, default_theta=2_000_000.0)
    rotates = _rotating_layers(fields, layers)
    window = (
        fields.count("sliding_window") if fields.flag("use_sliding_window") and fields.get("sliding_window") else None
    )
    if (kinds := layer_types(fields, layers)) is None:
        slides = [not rotates_too for rotates_too in rotates]
    elif SLIDING in kinds and window is None:
        raise fields.error("layer_types has sliding_attention, but use_sliding_window or sliding_window is not set")
    else:
        slides = [kind == SLIDING for kind in kinds]
    bias = fields.flag("attention_bias")
    return read_hf(
        fields,
        "smollm3",
        tuple(
            LayerAttention(rope if rotated else None, window if slid else None)
            for rotated, slid in zip(rotates, slides, strict=True)
        ),
        default_kv_heads=4,
        default_tied=True,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
    )


def _rotating_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has a rotary embedding. `no_rope_layers` holds a 1 where it has one, 0 where not."""
    marks = fields.get("no_rope_layers")
    if marks is None:
        interval = fields.count("no_rope_layer_interval", _INTERVAL)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(marks, list) or len(marks) < layers or not all(mark in (0, 1) for mark in marks[:layers]):
        raise fields.error(f"no_rope_layers must hold a 0 or 1 for each of the {layers} layers, not {short(marks)}")
    return [mark == 1 for mark in marks[:layers]]


def _from_gguf(fields: Fields, file: GGUFFile) -> ModelConfig:
    return read_gguf(
        fields, file, "smollm3", lambda layer, rope: LayerAttention(rope if (layer + 1) % _INTERVAL else None)
    )


SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", _from_hf, "smollm3", _from_gguf, gguf_interleaves_rope=True)
