"""Tokenizers and renderers of real vocabularies and templates, each loaded once; and SentencePiece as a folder."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.sources import llama_cpp_source
from tokenline.render.memory import IdMemory
from tokenline.render.renderer import Renderer
from tokenline.render.tokenizer import Tokenizer

MODELS = llama_cpp_source()


def vocabulary_file(name: str) -> Path:
    return MODELS / f"ggml-vocab-{name}.gguf"


def template_source(name: str) -> str:
    return (MODELS / "templates" / f"{name}.jinja").read_text("utf-8")


@cache
def tokenizer(vocabulary: str) -> Tokenizer:
    return Tokenizer.from_model(vocabulary_file(vocabulary))


def renderer(vocabulary: str, template: str, memory: IdMemory | None = None) -> Renderer:
    """A renderer, without `memory` with one of its own."""
    return Renderer(tokenizer(vocabulary), {"default": template_source(template)}, memory=memory)


def write_sentencepiece(folder: Path, *, metaspace: bool) -> Path:
    """Llama's SentencePiece vocabulary as a folder in Hugging Face layout, in the older or the newer way: a space
    before every stretch of text, or (`metaspace`) only before one that begins the line.
    """
    spec: dict[str, Any] = json.loads(tokenizer("llama-spm").vocabulary.spec)
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    if metaspace:
        spec["normalizer"] = None
        spec["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": False,
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), "utf-8")
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
