"""The tokenizer of a folder in Hugging Face layout: tokenizer.json, tokenizer_config.json, generation_config.json and
the chat templates beside them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from tokenline.models.blocks import open_file
from tokenline.models.errors import ModelError, one_line
from tokenline.render.vocabulary import Vocabulary, byte_of_character, bytes_of_token, end_of_turn_ids

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
_PROBE = "a"
MAX_TEXT_BYTES = 256 << 20  # of one file
FREE_IDS = 65_536  # that a vocabulary may leave out, beside as many as it has


def read_hf_vocabulary(folder: Path) -> Vocabulary:
    """Read the tokenizer of a folder. Raises ModelError with the file at fault."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        hint = "; tokenizer.model alone is not supported" if (folder / "tokenizer.model").is_file() else ""
        raise ModelError(f"{folder.name}: no tokenizer.json{hint}")
    config = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    text = _read_text(file)
    with one_line(f"{folder.name}: tokenizer.json"):
        _check_ids(json.loads(text))
        tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    named = {**_read_named(_read_json(folder / "special_tokens_map.json")), **_read_named(config)}
    _add_configured_tokens(tokenizer, config, named)
    prefix_ids, suffix_ids = _affixes(tokenizer, config, named)
    spec = json.loads(tokenizer.to_str())
    spec["post_processor"] = None  # adds BOS, which is in `prefix_ids`, and trims offsets, which must be whole
    added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    special = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    pieces, strips = _pieces(tokenizer, spec, added, folder.name)
    ends = {tokenizer.token_to_id(named["eos_token"])} if "eos_token" in named else set()
    configured = generation.get("eos_token_id")
    configured = configured if isinstance(configured, list) else [] if configured is None else [configured]
    if not all(type(id) is int and id >= 0 for id in configured):
        raise ModelError(f"{folder.name}: generation_config.json: eos_token_id must be one or more token ids")
    ends.update(configured)
    return Vocabulary(
        spec=json.dumps(spec, ensure_ascii=False),
        pieces=pieces,
        missing=frozenset(range(len(pieces))).difference(tokenizer.get_vocab(with_added_tokens=True).values()),
        special=special,
        added=added,
        named=named,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        strips_leading_space=strips,
        chat_templates=_read_templates(folder, config),
        end_ids=frozenset(id for id in ends if isinstance(id, int)) | end_of_turn_ids(special),
        default_sampling={key: value for key, value in generation.items() if key in _SAMPLING and value is not None},
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file.parent.name}: {file.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file.parent.name}: {file.name} does not hold a JSON object")
    return value


def _read_text(file: Path) -> str:
    """A file's text. Raises ModelError."""
    try:
        with open_file(file) as opened:
            data = opened.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise ModelError(f"{file.parent.name}: {file.name} has more than {MAX_TEXT_BYTES >> 20} MiB")
        return data.decode()
    except OSError as error:
        raise ModelError(f"{file.parent.name}: {file.name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{file.parent.name}: {file.name} is not UTF-8 text: {error.reason}") from error


def _check_ids(spec: Any) -> None:
    """Raise ValueError for ids far beyond their number: the library makes room for all up to the largest."""
    model, added = spec.get("model"), spec.get("added_tokens") or []
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict | list) or not vocab:
        raise ValueError("it has no vocabulary")
    ids = [*(vocab.values() if isinstance(vocab, dict) else ()), *(token["id"] for token in added)]
    count = len(vocab) + len(added)
    for id in ids:
        if type(id) is not int or not 0 <= id < 2 * count + FREE_IDS:
            raise ValueError(f"a token has the id {id!r}, of {count} tokens")
    if isinstance(vocab, dict) and len(set(vocab.values())) < len(vocab):
        raise ValueError("two tokens of the vocabulary have one id")


def _token_text(value: Any) -> str | None:
    """A token in a configuration: its text, or an object with its text under "content"."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_named(config: dict[str, Any]) -> dict[str, str]:
    found = {name: _token_text(config.get(name)) for name in _NAMED}
    return {name: text for name, text in found.items() if text is not None}


def _add_configured_tokens(tokenizer: tokenizers.Tokenizer, config: dict[str, Any], named: dict[str, str]) -> None:
    """Tokens that only tokenizer_config.json knows, and the specialness of those it calls special, as transformers
    does it.
    """
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    decoder = config.get("added_tokens_decoder")
    entries = decoder.items() if isinstance(decoder, dict) else ()
    for _, entry in sorted(entries, key=lambda item: int(item[0]) if str(item[0]).isdigit() else 0):
        if isinstance(entry, dict) and isinstance(text := entry.get("content"), str) and text not in known:
            flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            known[text] = tokenizers.AddedToken(text, **flags)
            tokenizer.add_tokens([known[text]])
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = extra.values() if isinstance(extra, dict) else extra
    if not isinstance(extra, Iterable):
        raise ModelError("tokenizer_config.json: additional_special_tokens must be an array of tokens")
    for text in [*named.values(), *(_token_text(item) for item in extra)]:
        if text is not None and (text not in known or not known[text].special):
            tokenizer.add_special_tokens([text])


def _affixes(
    tokenizer: tokenizers.Tokenizer, config: dict[str, Any], named: dict[str, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and after a text, found by encoding one with and without."""
    plain = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    whole = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    at = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    prefix, suffix = whole[:at], whole[at + len(plain) :]
    bos = tokenizer.token_to_id(named["bos_token"]) if "bos_token" in named else None
    if config.get("add_bos_token") is True and bos is not None and bos not in prefix:
        prefix = [bos, *prefix]
    if config.get("add_bos_token") is False:
        prefix = [id for id in prefix if id != bos]
    return tuple(prefix), tuple(suffix)


def _pieces(
    tokenizer: tokenizers.Tokenizer, spec: dict[str, Any], added: dict[str, int], name: str
) -> tuple[list[bytes], bool]:
    """The bytes of each id, and whether decoding drops a leading space. Both follow from the decoder."""
    decoders = _flatten(spec.get("decoder"))
    kinds = {decoder["type"] for decoder in decoders}
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    pieces = [b""] * size
    table = {ord(character): byte for character, byte in byte_of_character().items()}
    for text, id in tokenizer.get_vocab(with_added_tokens=True).items():
        if text in added:
            pieces[id] = text.encode()
        elif "ByteLevel" in kinds:
            pieces[id] = bytes_of_token(text, table)
        elif "ByteFallback" in kinds and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)):
            pieces[id] = bytes([int(byte[1], 16)])
        else:
            for decoder in decoders:
                if decoder["type"] == "Replace" and "String" in decoder["pattern"]:
                    text = text.replace(decoder["pattern"]["String"], decoder["content"])
                elif decoder["type"] == "Metaspace":
                    text = text.replace(decoder["replacement"], " ")
            pieces[id] = text.encode()
    unknown = kinds - {"ByteLevel", "ByteFallback", "Replace", "Fuse", "Strip", "Metaspace"}
    if unknown or not kinds:
        raise ModelError(f"{name}: tokenizer.json has a decoder that is not supported: {sorted(unknown) or 'none'}")
    strips = any(
        (decoder["type"] == "Strip" and decoder.get("content") == " " and decoder.get("start", 0) > 0)
        or (decoder["type"] == "Metaspace" and decoder.get("prepend_scheme", "always") != "never")
        for decoder in decoders
    )
    return pieces, strips


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def _read_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name. Files beside the tokenizer win over tokenizer_config.json."""
    templates: dict[str, str] = {}
    configured = config.get("chat_template")
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        for entry in configured:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name", "default"))] = entry["template"]
    elif isinstance(configured, dict):
        templates.update({str(name): text for name, text in configured.items() if isinstance(text, str)})
    if (file := folder / "chat_template.json").is_file() and isinstance(
        text := _read_json(file).get("chat_template"), str
    ):
        templates["default"] = text
    if (file := folder / "chat_template.jinja").is_file():
        templates = {"default": _read_text(file)}
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read_text(file)
    return templates
