"""Tiny GGUF files, made from tiny Hugging Face checkpoints the way llama.cpp's converter makes them.

The tensor names come from the `gguf` library's own table and the permutation from the converter, so a mistake in
tokenline's mapping cannot hide in its mirror image here.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.tiny import CHATML, SPECIAL_TOKENS, make_tiny

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA} | {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}

PERMUTED = (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3)  # LlamaModel and what inherits from it


def make_tiny_gguf(
    family: str, path: Path, *, quant: str = "F32", seed: int = 0, fuse_qkv: bool = False, **config_overrides: Any
) -> Path:
    """Write the checkpoint that `make_tiny` would write as one GGUF file, matrices as `quant` ("F32", "Q4_1", ...).
    `fuse_qkv`: as the converter's --fuse-qkv writes it.

    The Hugging Face folder that it was made from is left beside it, as `path` without its suffix.
    """
    folder = make_tiny(family, path.with_suffix(""), seed=seed, **config_overrides)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    return write_gguf(path, ARCHITECTURES[family], config, tensors, folder, quant, fuse_qkv)


def write_gguf(
    path: Path,
    arch: gguf.MODEL_ARCH,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    tokenizer: Path,
    quant: str,
    fuse_qkv: bool = False,
) -> Path:
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    _add_tokenizer(writer, tokenizer)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if arch == gguf.MODEL_ARCH.GEMMA3:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    stored: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if arch in PERMUTED and ".q_proj." in name:
            values = permute(values, heads)
        if arch in PERMUTED and ".k_proj." in name:
            values = permute(values, kv_heads)
        if arch == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            values = values + 1  # Gemma3Model.modify_tensors
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        stored[stored_name] = values
    if fuse_qkv:
        for name in [name for name in stored if ".attn_q." in name]:
            parts = [stored.pop(name.replace("attn_q.", f"attn_{part}.")) for part in "qkv"]
            stored[name.replace("attn_q.", "attn_qkv.")] = np.concatenate(parts)
    for name, values in stored.items():
        kind = gguf.GGMLQuantizationType[quant if values.ndim > 1 else "F32"]
        blocks = quantize_q4_k(values) if kind.name == "Q4_K" else gguf.quantize(values, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize_q4_k(values: np.ndarray) -> np.ndarray:
    """Float32 [rows, a multiple of 256] -> Q4_K blocks, which the library reads but does not write. By the definition
    in ggml-quants.c, without its search for the best scale.
    """
    groups = values.reshape(len(values), -1, 8, 32)
    lowest = -np.minimum(groups.min(axis=3), 0)
    step = (groups.max(axis=3) + lowest) / 15

    def six_bits(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # float16 unit [.., 1], integers [.., 8]
        unit = (wanted.max(axis=2, keepdims=True) / 63).astype(np.float16)
        whole = np.rint(wanted / np.maximum(unit.astype(np.float32), 1e-30)).clip(0, 63)
        return unit, whole.astype(np.uint8)

    d, s = six_bits(step)
    d_min, m = six_bits(lowest)
    scale, low = d.astype(np.float32) * s, d_min.astype(np.float32) * m
    q = np.rint((groups + low[..., None]) / np.maximum(scale, 1e-30)[..., None]).clip(0, 15).astype(np.uint8)
    packed = np.concatenate(
        (
            s[..., :4] | s[..., 4:] >> 4 << 6,
            m[..., :4] | m[..., 4:] >> 4 << 6,
            s[..., 4:] & 15 | (m[..., 4:] & 15) << 4,
        ),
        axis=2,
    )
    nibbles = (q[:, :, 0::2] | q[:, :, 1::2] << 4).reshape(*q.shape[:2], 128)
    return np.concatenate((d.view(np.uint8), d_min.view(np.uint8), packed, nibbles), axis=2).reshape(len(values), -1)


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    old_context = rope["original_max_position_embeddings"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < old_context / high:
            factors.append(1.0)
        elif wavelength > old_context / low:
            factors.append(factor)
        else:
            smooth = (old_context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = [tokens.index(token) for token in SPECIAL_TOKENS]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(special[0])
    writer.add_eos_token_id(special[2])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
