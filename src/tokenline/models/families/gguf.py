"""Reading GGUF metadata: what the families' files have in common. Keys are those of llama.cpp's gguf-py constants.

Some facts are not in the metadata: whether there are biases and a head of its own is seen by the tensors' names.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenline.models.config import MAX_LAYERS, Fields, LayerAttention, ModelConfig, Rope, RopeScaling, short
from tokenline.models.families.hf import checked
from tokenline.models.gguf_file import GGUFFile


def read_gguf(
    fields: Fields, file: GGUFFile, family: str, layer: Callable[[int, Rope], LayerAttention], **block: Any
) -> ModelConfig:
    """The configuration of a family; `layer` gives the attention of a layer by its number and the file's RoPE, `block`
    are further fields of `ModelConfig`.
    """
    if experts := fields.get("expert_count"):
        raise fields.error(f"mixture of experts ({short(experts)} experts) is not supported")
    hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (size := fields.count(name, head_dim)) != head_dim:
            raise fields.error(f"{name} {size} differs from the head size {head_dim}, which is not supported")
    fields.refuse("attention.scale", "logit_scale", "embedding_scale", "residual_scale")
    fields.refuse("attn_logit_softcapping", "final_logit_softcapping")
    names = file.tensors
    if "token_embd.weight" in names:
        vocab = names["token_embd.weight"].shape[0]  # may be padded past the tokenizer's vocabulary
    else:
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        vocab = fields.count("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    layers = fields.count("block_count", most=MAX_LAYERS)
    rope = Rope(fields.number("rope.freq_base", 10_000.0), _scaling(fields, file, head_dim))
    return checked(
        fields,
        ModelConfig(
            family=family,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=fields.count("feed_forward_length"),
            layers=tuple(layer(number, rope) for number in range(layers)),
            num_heads=heads,
            num_kv_heads=fields.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_positions=fields.count("context_length"),
            rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            qkv_bias="blk.0.attn_q.bias" in names,
            o_bias="blk.0.attn_output.bias" in names,
            mlp_bias="blk.0.ffn_down.bias" in names,
            tied_head="output.weight" not in names,
            **block,
        ),
    )


def gguf_window(fields: Fields) -> int | None:
    """The sliding window, if there is one."""
    return fields.count("attention.sliding_window") if fields.get("attention.sliding_window") else None


def _scaling(fields: Fields, file: GGUFFile, head_dim: int) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.error(f"rope.scaling.type {short(kind)} is not supported; none and linear are")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0)) if kind == "linear" else 1.0
    if "rope_freqs.weight" not in file.tensors:
        return RopeScaling("linear", factor) if factor != 1.0 else None
    factors = file.read("rope_freqs.weight").reshape(-1)
    if len(factors) != head_dim // 2 or not bool(np.all(np.isfinite(factors) & (factors > 0))):
        raise fields.error(f"rope_freqs.weight must hold {head_dim // 2} positive factors")
    return RopeScaling("factors", factors=tuple(float(f) * factor for f in factors))
