"""A GGUF file as the folder of safetensors and JSON that vLLM and transformers want: the same weights, dequantised."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tokenline.models.families.registry import config_from_hf, family_of
from tokenline.models.weights import open_checkpoint
from tokenline.render.tokenizer import Tokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def write_hf_folder(model: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Decoders with plain rotary embeddings and byte-level BPE without BOS: SmolLM2, Qwen 2 and 3."""
    weights, words = open_checkpoint(model), Tokenizer.from_model(model).vocabulary
    shape = weights.config
    rope = shape.ropes[0]
    if (
        shape.ropes[1:]
        or rope.scaling is not None
        or words.prefix_ids
        or words.suffix_ids
        or words.strips_leading_space
    ):
        raise ValueError(f"{model.name}: its rotary embedding or its tokenizer is not one that is written for vLLM")
    family = family_of(shape)
    config = {
        "architectures": [family.architecture],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": shape.tied_head,
        "eos_token_id": sorted(words.end_ids),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if config_from_hf(config) != shape:
        raise ValueError(f"{model.name}: config.json cannot say all of {shape}")
    tokenizer = {**json.loads(words.spec), "decoder": BYTE_LEVEL, "post_processor": None}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": words.chat_templates["default"]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", {**names, **words.named})):
        (folder / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    tensors = {family.hf_names.name(name): torch.from_numpy(weights.read(name)).to(dtype) for name in weights.shapes}
    save_file(tensors, folder / "unfinished", {"format": "pt"})
    (folder / "unfinished").rename(folder / "model.safetensors")
