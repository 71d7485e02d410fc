"""Random tiny checkpoints in Hugging Face layout, with a real byte-level BPE tokenizer and a ChatML template.

They are written by transformers itself, so that loading them is the real thing; only the numbers mean nothing.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

FAMILIES: dict[str, tuple[Any, type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 4.0},
}

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
_FAMILY_SHAPE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 24, "tie_word_embeddings": False},
    "qwen3": {"head_dim": 32},
    "smollm3": {"no_rope_layer_interval": 2},
    "gemma3": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps until tomorrow morning.",
    "You are a helpful assistant. What day is it today? Today is Monday; tomorrow will be Tuesday.",
    "Please write a short story about a lighthouse, a letter that came late, and the sea in winter.",
    "user assistant system tool: What is the weather in Paris? The weather is sunny, 21 degrees.",
    "你是助手。今天星期几？明天呢？今天是星期一，明天是星期二。请用中文回答我的问题，谢谢你！",
    "机器学习是人工智能的一个分支，它让计算机从数据中学习。我们喜欢在海边散步。",
    "Привет, как дела? Сегодня хорошая погода. Wie geht es dir? Heute ist ein schöner Tag für Übungen.",
    "¿Qué día es hoy? C'est la vie, mes amis. 今日は何曜日ですか。ありがとうございます。",
    "Emoji: 😀 😂 🚀 🌍 👩‍💻 🇨🇳 ❤️ and numbers 0 1 2 3 4 5 6 7 8 9 10 100 1000 3.14159.",
    'def add(a: int, b: int) -> int:\n    return a + b\n\nprint(add(1, 2))  # {"name": "add", "arguments": {"a": 1}}',
)


def make_tiny(family: str, folder: Path, *, seed: int = 0, sharded: bool = False, **config_overrides: Any) -> Path:
    """Write a random checkpoint of `family` (one of `FAMILIES`) to `folder` and return it.

    3 layers, hidden size 64, 600 tokens, context 512; `config_overrides` are fields of its transformers config.
    `sharded` writes several files with an index. The same arguments give the same weights.
    """
    config_class, model_class = FAMILIES[family]
    transformers_logging.disable_progress_bar()
    tokenizer = tiny_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    values = {
        **_SHAPE,
        **_FAMILY_SHAPE.get(family, {}),
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        **config_overrides,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**values))
        _spread(model)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="100KB" if sharded else "5GB")
    write_tokenizer(folder)
    return folder


def scale_tensors(folder: Path, factors: dict[str, float]) -> Path:
    """Multiply some tensors of a checkpoint, by parts of their names; returns the folder."""
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        for part, factor in factors.items():
            if part in name:
                tensors[name] = tensors[name] * factor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _spread(model: PreTrainedModel) -> None:
    """Random weights large enough that the best token varies from place to place and wins by a margin."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # Gemma's are less 1
                parameter.copy_(float("Gemma" not in type(model).__name__) + 0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.2 * torch.randn_like(parameter))


@cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer.to_str(pretty=True)


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of every tiny checkpoint: byte-level BPE of 600 tokens, 3 of them special."""
    return Tokenizer.from_str(_tokenizer_json())


def write_tokenizer(folder: Path) -> None:
    """The three files that a Hugging Face folder describes its tokenizer with."""
    (folder / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    added = {
        str(tiny_tokenizer().token_to_id(token)): {"content": token, "special": True, "normalized": False}
        for token in SPECIAL_TOKENS
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHATML,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
