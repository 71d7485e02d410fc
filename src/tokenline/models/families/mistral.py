"""Mistral 7B and its kin: a Llama whose layers attend to a sliding window. Their GGUF files say that they are llama."""

from tokenline.models.config import Fields, LayerAttention, ModelConfig
from tokenline.models.families.family import Family
from tokenline.models.families.hf import num_layers, read_hf, read_rope


def _from_hf(fields: Fields) -> ModelConfig:
    window = fields.count("sliding_window", 4096)  # absent, transformers assumes the 4096 of v0.1
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        window = None  # v0.2 and later
    return read_hf(fields, "mistral", (LayerAttention(read_rope(fields), window),) * num_layers(fields))


MISTRAL = Family("mistral", "MistralForCausalLM", _from_hf, None, None)
