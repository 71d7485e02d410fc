"""Qwen 1.5 to 2.5: a Llama with biases on q, k and v, and a sliding window in some layers where it is switched on."""

from tokenline.models.config import Fields, LayerAttention, ModelConfig
from tokenline.models.families.family import Family
from tokenline.models.families.gguf import gguf_window, read_gguf
from tokenline.models.families.hf import SLIDING, layer_types, num_layers, read_hf, read_rope
from tokenline.models.gguf_file import GGUFFile


def qwen_layers(fields: Fields) -> tuple[LayerAttention, ...]:
    """The layers of Qwen 2 and 3: by `layer_types`, or with a window from layer `max_window_layers` on."""
    layers, rope = num_layers(fields), read_rope(fields)
    window = _window(fields)
    kinds = layer_types(fields, layers)
    if kinds is not None:
        if SLIDING in kinds and window is None:
            raise fields.error("layer_types has sliding_attention, but use_sliding_window or sliding_window is not set")
        slides = [kind == SLIDING for kind in kinds]
    else:
        first = fields.count("max_window_layers", 28, least=0)
        slides = [layer >= first for layer in range(layers)]
    return tuple(LayerAttention(rope, window if slide else None) for slide in slides)


def _window(fields: Fields) -> int | None:
    if not fields.flag("use_sliding_window") or fields.values.get("sliding_window", 4096) is None:
        return None
    return fields.count("sliding_window", 4096)


def _from_hf(fields: Fields) -> ModelConfig:
    return read_hf(fields, "qwen2", qwen_layers(fields), default_kv_heads=32, qkv_bias=True)


def _from_gguf(fields: Fields, file: GGUFFile) -> ModelConfig:
    window = gguf_window(fields)
    return read_gguf(fields, file, "qwen2", lambda layer, rope: LayerAttention(rope, window))


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _from_hf, "qwen2", _from_gguf)
