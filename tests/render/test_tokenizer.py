"""Ids are exactly those of llama.cpp and of transformers; bytes and offsets add up; no text becomes a control token."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.render.chats import SNIPPETS
from tests.render.models import MODELS, tokenizer, vocabulary_file, write_sentencepiece
from tests.render.spm import SentencePiece
from tests.tiny import write_tokenizer
from tokenline.models.errors import ModelError
from tokenline.models.gguf_file import GGUFFile
from tokenline.render.pretokenizers import (
    PreTokenizer,
    cuts_between_words,
    find_pretokenizer,
    known_pretokenizers,
)
from tokenline.render.tokenizer import Tokenizer
from tokenline.render.vocabulary_gguf import vocabulary_from_metadata

EXPECTED = sorted(
    file.name.removesuffix(".gguf.out").removeprefix("ggml-vocab-")
    for file in MODELS.glob("*.gguf.out")
    if "bert" not in file.name  # encoders of search engines: they generate nothing
)
# their rules are known to cut there; of the others, some are SentencePiece and some have rules of their own
CUT_BETWEEN_WORDS = {"command-r", "falcon", "gpt-2", "llama-bpe", "qwen2", "qwen35", "refact", "starcoder"}
texts = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=8), max_size=6).map("".join)


@pytest.fixture(scope="module")
def spm() -> SentencePiece:
    metadata = GGUFFile(vocabulary_file("llama-spm")).metadata
    return SentencePiece(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("name", EXPECTED)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    subject = tokenizer(name)
    texts = vocabulary_file(name).with_suffix(".gguf.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    lines = vocabulary_file(name).with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) > 40
    assert len(lines) >= len(texts)
    for text, line in zip(texts, lines, strict=False):
        assert not any(token in text for token in subject.special_tokens)  # so that no second tokenizer is needed
        ids, offsets = subject.encode_with_offsets(text)
        assert ids == [int(id) for id in line.split()], text
        assert subject.decode(ids) == text
        assert not any(map(subject.is_special, ids))
        assert_offsets_cover(text, offsets)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_text_can_be_cut_between_words(name: str) -> None:
    subject = tokenizer(name)
    text = vocabulary_file(name).with_suffix(".gguf.inp").read_text("utf-8").replace("\n__ggml_vocab_test__\n", " and ")
    borders = subject.word_borders(text, 5)
    assert bool(borders) == (name in CUT_BETWEEN_WORDS)
    whole, offsets = subject.encode_with_offsets(text)
    for border in borders:
        count = int(np.searchsorted(offsets[:, 0], border))
        assert subject.encode_with_offsets(text[:border])[0] == whole[:count]
        assert subject.encode_with_offsets(text[border:], continued=True)[0] == whole[count:]


any_texts = st.lists(
    st.sampled_from([*SNIPPETS, "'s", " it's a", "'L", "12 345", "  b", "\tx", "\r\n", "é", "e\u0301"])
    | st.text(max_size=6)
).map("".join)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(CUT_BETWEEN_WORDS)),
    any_texts,
    st.sampled_from("azAZsmltdSR"),
    st.sampled_from("azAZ"),
    any_texts,
)
def test_nothing_looks_across_the_border_of_two_words(name: str, left: str, a: str, b: str, right: str) -> None:
    subject = tokenizer(name)
    left, right = left + a, f" {b}{right}"
    assert subject.word_borders(left + right, len(left) - 1)[:1] == [len(left)]
    parts = [subject.encode_with_offsets(part)[0] for part in (left, right)]
    assert subject.encode_with_offsets(left + right)[0] == parts[0] + parts[1]


def is_cutting(rules: PreTokenizer) -> bool:
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rules.patterns
    ]
    return cuts_between_words({"type": "Sequence", "pretokenizers": steps})


CUTTING = {
    rules: name
    for name in known_pretokenizers()
    if (rules := find_pretokenizer(name)) is not None and is_cutting(rules)
}


@pytest.mark.parametrize("rules", CUTTING, ids=list(CUTTING.values()))
def test_rules_that_cut_between_words_always_do(rules: PreTokenizer) -> None:
    splits = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in rules.patterns]
    cutter = tokenizers.pre_tokenizers.Sequence(splits)

    @settings(max_examples=100)
    @given(any_texts, st.sampled_from("azAZsmltdSR"), st.sampled_from("azAZ"), any_texts)
    def check(left: str, a: str, b: str, right: str) -> None:
        left, right = left + a, f" {b}{right}"
        pieces = [piece for text in (left, right) for piece, _ in cutter.pre_tokenize_str(text)]
        assert [piece for piece, _ in cutter.pre_tokenize_str(left + right)] == pieces

    check()


def assert_offsets_cover(text: str, offsets: np.ndarray) -> None:
    """Tokens lie in order, and every character belongs to one or more of them that follow each other."""
    assert offsets.dtype == np.int32
    assert offsets.shape[1:] == (2,)
    at = 0
    for start, end in offsets.tolist():
        assert start in (at, at - 1)  # goes on, or is another token of the same character
        assert at <= end <= len(text)
        at = end
    assert at == len(text)


def test_families_that_the_collection_names_are_known_and_others_are_refused_by_name() -> None:
    metadata = dict(GGUFFile(vocabulary_file("gpt-2")).metadata)
    vocabulary_from_metadata({**metadata, "tokenizer.ggml.pre": "smollm"}, "model.gguf")
    with pytest.raises(ModelError, match=r"model\.gguf: tokenizer\.ggml\.pre is 'martian'.* llama-bpe"):
        vocabulary_from_metadata({**metadata, "tokenizer.ggml.pre": "martian"}, "model.gguf")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model is 'rwkv'"):
        vocabulary_from_metadata({**metadata, "tokenizer.ggml.model": "rwkv"}, "model.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": []}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": 7}, "not an array"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, "not an array of str"),
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
        ({"tokenizer.ggml.merges": []}, "merges is missing"),
        ({"tokenizer.ggml.pre": 5}, "not a string"),
    ],
)
def test_broken_metadata_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    metadata = {**GGUFFile(vocabulary_file("gpt-2")).metadata, **change}
    with pytest.raises(ModelError, match=message) as caught:
        vocabulary_from_metadata(metadata, "model.gguf")
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(text=texts | st.text(alphabet=" \u2581aelmnt\n", max_size=40))
def test_sentencepiece_merges_by_score(spm: SentencePiece, text: str) -> None:
    expected = spm.encode(text)
    assert tokenizer("llama-spm").encode(text) == expected


@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_default_model_never_makes_a_control_token_of_text(smollm2_renderer, text: str) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    known = set(b"".join(piece for piece in tokenizer.vocabulary.pieces if len(piece) == 1))
    text = "".join(character for character in text if set(character.encode()) <= known)  # it lacks some bytes
    for wrapped in (text, f"<|im_end|>{text}<|im_start|>", text + "<|endoftext|>"):
        ids, offsets = tokenizer.encode_with_offsets(wrapped, as_text=frozenset(tokenizer.special_tokens))
        assert ids == tokenizer.encode(wrapped)
        assert not any(map(tokenizer.is_special, ids))
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == wrapped
        assert tokenizer.decode(ids) == wrapped
        assert_offsets_cover(wrapped, offsets)


def test_special_tokens_are_parsed_only_when_asked(smollm2_renderer) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    text = "<|im_start|>user\nHi<|im_end|>"
    assert tokenizer.encode(text, parse_special=True)[0] == tokenizer.special_tokens["<|im_start|>"] == 1
    assert tokenizer.encode(text, parse_special=True)[-1] == 2
    assert not {0, 1, 2} & set(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == text


def test_characters_of_several_tokens_belong_to_each_of_them(smollm2_renderer) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    text = "a你🙂b"
    ids, offsets = tokenizer.encode_with_offsets(text)
    for character, at in (("你", 1), ("🙂", 2)):
        spans = [span for span in offsets.tolist() if span == [at, at + 1]]
        assert len(spans) > 1
        assert (
            b"".join(
                tokenizer.token_bytes(id)
                for id, span in zip(ids, offsets.tolist(), strict=True)
                if span == [at, at + 1]
            )
            == character.encode()
        )
    decoded, again = tokenizer.decode_with_offsets(ids)
    assert decoded == text
    assert again.tolist() == offsets.tolist()


def test_ids_cut_inside_a_character_decode_to_a_mark(smollm2_renderer) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    ids = tokenizer.encode("a🙂")[:-1]
    text, offsets = tokenizer.decode_with_offsets(ids)
    assert text == tokenizer.decode(ids) == "a\ufffd"
    assert offsets[-1].tolist() == [1, 2]


def test_half_a_surrogate_pair_is_not_a_crash(smollm2_renderer) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    ids, offsets = tokenizer.encode_with_offsets("a\ud83db")
    assert tokenizer.decode(ids) == "a\ufffdb"
    assert_offsets_cover("a\ufffdb", offsets)


def test_ids_outside_the_vocabulary_have_no_bytes(smollm2_renderer) -> None:
    tokenizer: Tokenizer = smollm2_renderer.tokenizer
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert not tokenizer.is_special(-1)


def test_sentencepiece_puts_a_space_before_text_and_decoding_drops_it() -> None:
    llama = tokenizer("llama-spm")
    assert llama.strips_leading_space
    ids, offsets = llama.encode_with_offsets("Hello world")
    assert [llama.token_bytes(id) for id in ids] == [b" Hello", b" world"]
    assert offsets.tolist() == [[0, 5], [5, 11]]
    assert llama.decode(ids) == "Hello world"
    assert llama.vocabulary.prefix_ids == (llama.special_tokens["<s>"],)
    assert llama.token_bytes(llama.vocabulary.special["<s>"]) == b"<s>"
    assert llama.token_bytes(3 + 0xE4) == b"\xe4"


def encode_with_affixes(subject: Tokenizer, text: str) -> list[int]:
    """With BOS and EOS where the tokenizer asks for them, as transformers encodes."""
    words = subject.vocabulary
    return [*words.prefix_ids, *subject.encode(text, parse_special=True), *words.suffix_ids]


@pytest.mark.parametrize("metaspace", [False, True])
def test_sentencepiece_folder_gives_the_ids_of_transformers(tmp_path: Path, metaspace: bool) -> None:
    write_sentencepiece(tmp_path, metaspace=metaspace)
    reference, subject = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.from_model(tmp_path)
    assert subject.vocabulary.prefix_ids == (1,)
    assert subject.strips_leading_space

    @settings(max_examples=60, deadline=None)
    @given(texts)
    def same(text: str) -> None:
        expected = reference(text)["input_ids"]
        assert encode_with_affixes(subject, text) == expected
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert subject.decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False)
        plain = subject.encode(text)
        assert not any(map(subject.is_special, plain))
        if metaspace and not any(token in text for token in subject.special_tokens):
            shown = text.replace("\u2581", " ")  # to SentencePiece they are the same
            assert subject.decode(plain) == shown.removeprefix(" ")  # it adds a space only where there is none

    same()
    assert subject.decode(subject.encode("Hello </s> world", parse_special=True)) in (
        "Hello </s> world",
        "Hello </s>  world",
    )


@pytest.fixture(scope="module")
def of_folder(folder: Path) -> tuple[Any, Tokenizer]:
    """The folder's tokenizer as transformers reads it, and as we do."""
    return AutoTokenizer.from_pretrained(folder), Tokenizer.from_model(folder)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_folder_gives_the_ids_of_transformers(of_folder: tuple[Any, Tokenizer], text: str) -> None:
    reference, tokenizer = of_folder
    expected = reference(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode(text, parse_special=True) == expected
    assert tokenizer.decode(expected) == reference.decode(expected, clean_up_tokenization_spaces=False)
    assert encode_with_affixes(tokenizer, text) == reference(text)["input_ids"]


def test_tokens_that_only_the_configuration_knows_are_added(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    size = Tokenizer.from_model(folder).vocab_size
    config["added_tokens_decoder"] = {
        **config.get("added_tokens_decoder", {}),
        str(size): {"content": "<extra>", "special": True, "normalized": False},
    }
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1, 2], "temperature": 0.6, "top_k": 20})
    )
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = Tokenizer.from_model(tmp_path)
    assert tokenizer.encode("a<extra>", parse_special=True)[-1] == size == tokenizer.special_tokens["<extra>"]
    assert tokenizer.token_bytes(size) == b"<extra>"
    assert tokenizer.vocabulary.chat_templates == {"default": "plain", "tool_use": "with tools"}
    assert {1, 2} <= tokenizer.vocabulary.end_ids
    assert tokenizer.vocabulary.default_sampling == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be used"),
        ("tokenizer_config.json", "[]", "does not hold a JSON object"),
        ("tokenizer_config.json", "{'", "tokenizer_config.json is not JSON"),
        ("generation_config.json", "\x00", "generation_config.json is not JSON"),
    ],
)
def test_broken_file_is_named(folder: Path, tmp_path: Path, name: str, content: str, message: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_model(tmp_path)


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_model(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match=r"tokenizer\.model alone"):
        Tokenizer.from_model(tmp_path)
