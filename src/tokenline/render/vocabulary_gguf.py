"""The tokenizer of a GGUF file, from its metadata: `tokenizer.ggml.*` becomes a specification for `tokenizers`.

Two kinds exist in decoders: "gpt2" (BPE; the pre-tokenizer is known by name only, see `pretokenizers`) and "llama"
(SentencePiece, whose merges follow from the scores of its pieces). Ids agree with llama.cpp's; anything that cannot
be made exact is refused by name.
"""

import json
import re
from typing import Any

from tokenline.models.errors import ModelError
from tokenline.models.gguf_file import GGUFFile
from tokenline.render.pretokenizers import PreTokenizer, find_pretokenizer, known_pretokenizers
from tokenline.render.vocabulary import END_OF_TURN, Vocabulary, byte_of_character, bytes_of_token, end_of_turn_ids

# llama_token_type of llama.cpp: what `tokenizer.ggml.token_type` holds for each id
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Our names of sampling values, and what llama.cpp calls them in a GGUF file (llama_model_meta_key_str)
_SAMPLING = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}

_SPACE = "\u2581"  # what SentencePiece writes for a space


def read_gguf_vocabulary(file: GGUFFile) -> Vocabulary:
    """The tokenizer and chat templates of a GGUF file. Raises ModelError where it cannot be made exact."""
    return vocabulary_from_metadata(file.metadata, file.path.name)


def vocabulary_from_metadata(metadata: dict[str, Any], name: str) -> Vocabulary:
    """The same from metadata that was read already; `name` is for error messages."""
    reader = _Reader(metadata, name)
    match reader.text("tokenizer.ggml.model", "none"):
        case "gpt2":
            return reader.bpe(reader.text("tokenizer.ggml.pre", "default"))
        case "gemma4":
            return reader.bpe("gemma4")
        case "llama":
            return reader.sentencepiece()
        case model:
            raise reader.error(f"tokenizer.ggml.model is {model!r}; gpt2, llama and gemma4 are supported")


class _Reader:
    def __init__(self, metadata: dict[str, Any], name: str):
        self.metadata = metadata
        self.name = name
        self.tokens: list[str] = self.array("tokens", str)
        if not self.tokens:
            raise self.error("no tokenizer: tokenizer.ggml.tokens is missing")
        self.types: list[int] = self.array("token_type", int) or [NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self.error(f"{len(self.tokens)} tokens but {len(self.types)} token types")
        for id, text in enumerate(self.tokens):  # old conversions forgot the type of their end-of-turn markers
            if self.types[id] in (NORMAL, USER_DEFINED) and text in END_OF_TURN and text.startswith("<|"):
                self.types[id] = CONTROL

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.name}: {reason}")

    def text(self, key: str, default: str) -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} is not a string")
        return value

    def array(self, key: str, kind: type) -> list[Any]:
        value = self.metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.error(f"tokenizer.ggml.{key} is not an array of {kind.__name__}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.metadata.get(f"tokenizer.ggml.{key}", default))

    def token_id(self, key: str, default: int | None) -> int | None:
        id = self.metadata.get(f"tokenizer.ggml.{key}_token_id", default)
        return id if isinstance(id, int) and 0 <= id < len(self.tokens) else None

    def bpe(self, pre: str) -> Vocabulary:
        rules = find_pretokenizer(pre)
        if rules is None:
            known = ", ".join(known_pretokenizers())
            raise self.error(f"tokenizer.ggml.pre is {pre!r}, which is not supported; these are: {known}")
        merge_texts = self.array("merges", str)
        if not merge_texts:
            raise self.error("tokenizer.ggml.merges is missing")
        vocab = self._mergeable()
        model = {
            "type": "BPE",
            "vocab": vocab,
            "merges": _possible_merges(merge_texts, vocab),
            "ignore_merges": rules.ignore_merges,
            "byte_fallback": rules.raw,
        }
        return self._finish(
            model=model,
            normalizer=_replace(" ", _SPACE) if rules.raw else None,
            pre_tokenizer=_split_all(rules),
            byte_level=not rules.raw,
            add_bos=rules.add_bos,
        )

    def sentencepiece(self) -> Vocabulary:
        scores = self.array("scores", float)
        if len(scores) != len(self.tokens):
            raise self.error(f"{len(self.tokens)} tokens but {len(scores)} scores")
        vocab = self._mergeable()
        if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocab]:
            raise self.error(f"no token for byte 0x{missing[0]:02X}, so not every text could be encoded")
        prefix = self.flag("add_space_prefix", True)
        steps = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        model = {"type": "BPE", "vocab": vocab, "merges": _merges_by_score(vocab, scores), "byte_fallback": True}
        return self._finish(
            model=model,
            normalizer={"type": "Sequence", "normalizers": [*steps, _replace(" ", _SPACE)]},
            pre_tokenizer=None,
            byte_level=False,
            add_bos=True,
            strips_leading_space=prefix,
            bos=1,
            eos=2,
        )

    def _mergeable(self) -> dict[str, int]:
        """Tokens that merging may make. Control tokens are not among them: no text must ever turn into one."""
        allowed = (NORMAL, BYTE, USER_DEFINED)
        return {text: id for id, text in enumerate(self.tokens) if self.types[id] in allowed and text}

    def _finish(
        self,
        *,
        model: dict[str, Any],
        normalizer: dict[str, Any] | None,
        pre_tokenizer: dict[str, Any] | None,
        byte_level: bool,
        add_bos: bool,
        strips_leading_space: bool = False,
        bos: int | None = None,
        eos: int | None = None,
    ) -> Vocabulary:
        special = {text: id for id, text in enumerate(self.tokens) if self.types[id] in (CONTROL, UNKNOWN) and text}
        user = {text: id for id, text in enumerate(self.tokens) if self.types[id] == USER_DEFINED and text}
        strips_right = re.search(r"phi-?3", str(self.metadata.get("general.name", "")).lower()) is not None
        added: list[dict[str, Any]] = [
            {
                "id": id,
                "content": text,
                "special": text in special,
                "normalized": False,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips_right and text not in ("<unk>", "<s>", "<|endoftext|>"),
            }
            for text, id in sorted({**special, **user}.items(), key=lambda item: item[1])
        ]
        # The library gives an added token that the model lacks a new id; so it has them, but no merge makes them.
        model["vocab"] = {**model["vocab"], **special}
        spec = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "model": model,
        }
        named = {}
        for key, name, default in (("bos", "bos", bos), ("eos", "eos", eos), ("unknown", "unk", None)):
            if (id := self.token_id(key, default)) is not None:
                named[f"{name}_token"] = self.tokens[id]
        if (id := self.token_id("padding", None)) is not None:
            named["pad_token"] = self.tokens[id]
        bos, eos = self.token_id("bos", bos), self.token_id("eos", eos)
        ends = {eos, self.token_id("eot", None), self.token_id("eom", None)} - {None}
        return Vocabulary(
            spec=json.dumps(spec, ensure_ascii=False),
            pieces=self._pieces(byte_level),
            missing=frozenset(id for id, kind in enumerate(self.types) if kind == UNUSED),
            special=special,
            added={**special, **user},
            named=named,
            prefix_ids=(bos,) if bos is not None and self.flag("add_bos_token", add_bos) else (),
            suffix_ids=(eos,) if eos is not None and self.flag("add_eos_token", False) else (),
            strips_leading_space=strips_leading_space,
            infill_ids=self._infill_ids(),
            chat_templates=self._chat_templates(),
            default_sampling=self._default_sampling(),
            end_ids=frozenset(id for id in ends if id is not None) | end_of_turn_ids(special),
        )

    def _infill_ids(self) -> dict[str, int]:
        """The tokens that lay out a text with a gap, by llama.cpp's keys of today or its earlier ones."""
        keys = {
            "prefix": ("fim_pre", "prefix"),
            "suffix": ("fim_suf", "suffix"),
            "middle": ("fim_mid", "middle"),
            "pad": ("fim_pad",),
            "repository": ("fim_rep",),
            "file": ("fim_sep",),
        }
        found = {name: [self.token_id(key, None) for key in tried] for name, tried in keys.items()}
        return {name: id for name, ids in found.items() for id in reversed(ids) if id is not None}

    def _pieces(self, byte_level: bool) -> list[bytes]:
        table = {ord(character): byte for character, byte in byte_of_character().items()}
        pieces = []
        for text, kind in zip(self.tokens, self.types, strict=True):
            if kind == BYTE and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)):
                pieces.append(bytes([int(byte[1], 16)]))
            elif kind in (CONTROL, UNKNOWN, USER_DEFINED):
                pieces.append(text.encode())
            elif byte_level:
                pieces.append(bytes_of_token(text, table))
            else:
                pieces.append(text.replace(_SPACE, " ").encode())
        return pieces

    def _chat_templates(self) -> dict[str, str]:
        templates = {}
        for key, value in self.metadata.items():
            if key == "tokenizer.chat_template" and isinstance(value, str):
                templates["default"] = value
            elif key.startswith("tokenizer.chat_template.") and isinstance(value, str):
                templates[key.removeprefix("tokenizer.chat_template.")] = value
        return templates

    def _default_sampling(self) -> dict[str, float | int | bool]:
        """What llama.cpp's converter copies from generation_config.json. 0.95 is kept in 32 bits, as 0.949999988."""
        found = {name: self.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
        return {
            name: round(value, 6)
            for name, value in found.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _split_all(rules: PreTokenizer) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rules.patterns
    ]
    if not rules.raw:
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False})
    return {"type": "Sequence", "pretokenizers": steps}


def _possible_merges(texts: list[str], vocab: dict[str, int]) -> list[str] | list[list[str]]:
    """The merges whose parts and result are all in the vocabulary, written "left right" if that is unambiguous."""
    kept: list[str] = []
    simple = True
    for text in texts:
        left, _, right = text.partition(" ")
        if not left:  # the left part begins with a space
            left, _, right = text[1:].partition(" ")
            left = " " + left
        if left in vocab and right in vocab and left + right in vocab:
            kept.append(text)
            simple = simple and " " not in right and left[0] != " "
    if simple:
        return kept  # which the library reads faster than pairs
    cuts = [text.index(" ", 1) for text in kept]
    return [[text[:cut], text[cut + 1 :]] for text, cut in zip(kept, cuts, strict=True)]


def _merges_by_score(vocab: dict[str, int], scores: list[float]) -> list[list[str]]:
    """SentencePiece merges the neighbours whose union has the best score; as BPE merges, that is each way to cut a
    piece into two pieces, best piece first.
    """
    merges = []
    for piece, id in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append((-scores[id], id, cut, left, right))
    merges.sort()
    return [[left, right] for _, _, _, left, right in merges]
