"""Llama 1 to 3.3, and the many models that are Llamas by their files: SmolLM2, TinyLlama, Yi.

GGUF files of Mistral models say that they are llama, so a sliding window is read from these as well.
"""

from tokenline.models.config import Fields, LayerAttention, ModelConfig
from tokenline.models.families.family import Family
from tokenline.models.families.gguf import gguf_window, read_gguf
from tokenline.models.families.hf import SLIDING, layer_types, num_layers, read_hf, read_rope
from tokenline.models.gguf_file import GGUFFile


def _from_hf(fields: Fields) -> ModelConfig:
    layers = num_layers(fields)
    # Transformers prefills such a Llama without a window and cuts its cache to one: there is nothing to agree with
    if fields.get("sliding_window") or SLIDING in (layer_types(fields, layers) or ()):
        raise fields.error("sliding_window is not supported for LlamaForCausalLM; MistralForCausalLM has one")
    bias = fields.flag("attention_bias")
    return read_hf(
        fields,
        "llama",
        (LayerAttention(read_rope(fields)),) * layers,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
    )


def _from_gguf(fields: Fields, file: GGUFFile) -> ModelConfig:
    window = gguf_window(fields)
    return read_gguf(fields, file, "llama", lambda layer, rope: LayerAttention(rope, window))


LLAMA = Family("llama", "LlamaForCausalLM", _from_hf, "llama", _from_gguf, gguf_interleaves_rope=True)
