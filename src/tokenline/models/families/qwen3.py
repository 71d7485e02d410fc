"""Qwen 3: norms of queries and keys in place of Qwen 2's biases, and heads whose size does not follow from the hidden
size.
"""

from tokenline.models.config import Fields, LayerAttention, ModelConfig
from tokenline.models.families.family import Family
from tokenline.models.families.gguf import gguf_window, read_gguf
from tokenline.models.families.hf import read_hf
from tokenline.models.families.qwen2 import qwen_layers
from tokenline.models.gguf_file import GGUFFile


def _from_hf(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    return read_hf(
        fields,
        "qwen3",
        qwen_layers(fields),
        default_head_dim=128,
        default_kv_heads=32,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
    )


def _from_gguf(fields: Fields, file: GGUFFile) -> ModelConfig:
    window = gguf_window(fields)
    return read_gguf(fields, file, "qwen3", lambda layer, rope: LayerAttention(rope, window), qk_norm=True)


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _from_hf, "qwen3", _from_gguf)
