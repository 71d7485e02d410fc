"""Reading GGUF metadata: what the families' files have in common. Keys are those of llama.cpp's gguf-py constants.

Some facts are not in the metadata: whether there are biases and a head of its own is seen by the tensors' names.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenline.models.config import MAX_LAYERS, Fields, LayerAttention, ModelConfig, Rope, RopeScaling, short
from tokenline.models.families.hf import checked
from tokenline.models.gguf_file import GGUFFile

# Keys that change what llama.cpp computes (llama-model.cpp, load_hparams; llama-context.cpp), or would if it read them
# for these architectures: what each must say, if it is there
_MUST_BE: dict[str, bool | float] = {
    "attention.causal": True,
    **dict.fromkeys(("attention.scale", "attention.output_scale", "attention.temperature_scale"), 0.0),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attention.shared_kv_layers"), 0.0),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), 0.0),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 0.0),
    **dict.fromkeys(("expert_used_count", "nextn_predict_layers", "use_parallel_residual"), 0),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), 1.0),
    **dict.fromkeys(("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha"), 0.0),
}
_HEAD_SIZES = (  # all heads have one size, and all of it is rotated
    *("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"),
    *("rope.dimension_count", "rope.dimension_count_swa"),
)


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
    for name in _HEAD_SIZES:
        if (size := fields.count(name, head_dim)) != head_dim:
            raise fields.error(f"{name} {size} differs from the head size {head_dim}, which is not supported")
    if (size := fields.count("embedding_length_out", hidden)) != hidden:
        raise fields.error(f"embedding_length_out {size} differs from embedding_length {hidden}: not supported")
    for name, only in _MUST_BE.items():
        if (value := fields.get(name, only)) != only:
            raise fields.error(f"{name} is not supported (the file has {short(value)})")
    names = file.tensors
    if "token_embd.weight" in names:
        vocab = names["token_embd.weight"].shape[0]  # may be padded past the tokenizer's vocabulary
    else:
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        vocab = fields.count("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    layers = fields.count("block_count", most=MAX_LAYERS)
    rope = Rope(fields.number("rope.freq_base", 10_000.0, least=1.0), _scaling(fields, file, head_dim))
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
            qkv_bias="blk.0.attn_q.bias" in names or "blk.0.attn_qkv.bias" in names,
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
    """As llama.cpp reads it: linear if no type is given, the factor by the new key or else the old one, 0 for none."""
    kind = fields.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise fields.error(f"rope.scaling.type {short(kind)} is not supported; none and linear are")
    name = "rope.scaling.factor" if fields.get("rope.scaling.factor") is not None else "rope.scale_linear"
    factor = fields.number(name, least=1e-3, most=1e6) if kind == "linear" and fields.get(name) else 1.0
    if "rope_freqs.weight" not in file.tensors:
        return RopeScaling("linear", factor) if factor != 1.0 else None
    factors = file.read("rope_freqs.weight").reshape(-1)
    if len(factors) != head_dim // 2 or not bool(np.all(np.isfinite(factors) & (factors > 0))):
        raise fields.error(f"rope_freqs.weight must hold {head_dim // 2} positive factors")
    return RopeScaling("factors", factors=tuple(float(f) * factor for f in factors))
