"""Mistral 7B and its kin: a Llama whose layers attend to a sliding window. Their GGUF files say that they are llama.

A file with `layer_types` is a Ministral: only the layers that it names have the window. Transformers reads it so too
(configuration_auto.py, AutoConfig.from_pretrained).
"""

from tokenline.models.config import Fields, LayerAttention, ModelConfig
from tokenline.models.families.family import Family
from tokenline.models.families.hf import SLIDING, layer_types, num_layers, read_hf, read_rope


def _from_hf(fields: Fields) -> ModelConfig:
    layers, rope = num_layers(fields), read_rope(fields)
    window = fields.count("sliding_window", 4096)  # absent, transformers assumes the 4096 of v0.1
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        window = None  # v0.2 and later
    kinds = layer_types(fields, layers) or [SLIDING] * layers
    if fields.get("layer_types") and SLIDING in kinds and window is None:
        raise fields.error("layer_types has sliding_attention, but sliding_window is null")
    return read_hf(
        fields,
        "mistral",
        tuple(LayerAttention(rope, window if kind == SLIDING else None) for kind in kinds),
        default_kv_heads=8,
    )


MISTRAL = Family("mistral", "MistralForCausalLM", _from_hf, None, None)
