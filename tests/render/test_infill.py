"""Prompts with a gap are laid out as each model's own card says, and what a user sends stays text."""

import numpy as np
import pytest

from tests.render.models import tokenizer, vocabulary_file
from tokenline.models.gguf_file import GGUFFile
from tokenline.render.line import Line, Origin
from tokenline.render.renderer import Renderer
from tokenline.render.tokenizer import Tokenizer
from tokenline.render.vocabulary_gguf import CONTROL, vocabulary_from_metadata

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))  # 三\n"


def filled(subject: Tokenizer, prefix: str = PREFIX, suffix: str = SUFFIX) -> Line:
    infiller = Renderer(subject).infiller
    assert infiller is not None
    return infiller.line(prefix, suffix, ("prompt", 1), ("suffix",))


def with_tokens(vocabulary: str, *names: str, **metadata: object) -> Tokenizer:
    """A real vocabulary whose last tokens are these control tokens instead."""
    given = dict(GGUFFile(vocabulary_file(vocabulary)).metadata)
    tokens, types = list(given["tokenizer.ggml.tokens"]), list(given["tokenizer.ggml.token_type"])  # type: ignore[arg-type]
    tokens[-len(names) :], types[-len(names) :] = names, [CONTROL] * len(names)
    given |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, **metadata}
    return Tokenizer(vocabulary_from_metadata(given, vocabulary))


@pytest.mark.parametrize(
    ("vocabulary", "layout"),
    [
        ("qwen2", ["<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"]),
        ("starcoder", ["<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>"]),
        ("deepseek-coder", ["<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>"]),
        ("seed-coder", ["<[fim-suffix]>", SUFFIX, "<[fim-prefix]>", PREFIX, "<[fim-middle]>"]),
        ("mistral", ["[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX]),
    ],
)
def test_each_model_has_its_own_layout(vocabulary: str, layout: list[str]) -> None:
    made = {
        "qwen2": lambda: with_tokens("qwen2", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
        "seed-coder": lambda: with_tokens("llama-bpe", "<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
        "mistral": lambda: with_tokens("llama-bpe", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    }
    subject = made[vocabulary]() if vocabulary in made else tokenizer(vocabulary)
    added = subject.vocabulary.added
    line = filled(subject)
    expected = list(subject.vocabulary.prefix_ids)
    for part in layout:
        expected += [added[part]] if part in added else subject.encode(part)
    assert line.ids.tolist() == expected
    assert line.text == "".join(layout)
    first = len(subject.vocabulary.prefix_ids)
    assert subject.decode(line.ids[first:]) == line.text
    assert line.offsets[first:, 0].tolist() == sorted(line.offsets[first:, 0].tolist())
    assert line.offsets[-1, 1] == len(line.text)
    texts = [(line.text[span.start : span.end], span.origin, span.pointer) for span in line.spans]
    given = {PREFIX: (Origin.REQUEST, "/prompt/1"), SUFFIX: (Origin.REQUEST, "/suffix")}
    assert texts == [(part, *given.get(part, (Origin.TEMPLATE, None))) for part in layout]


def test_what_marks_the_gap_is_text_in_what_the_user_sends() -> None:
    subject = tokenizer("starcoder")
    added = subject.vocabulary.added
    line = filled(subject, "a <fim_suffix> b <|endoftext|>", "<fim_middle><fim_pad>")
    special = [token_id for token_id in line.ids.tolist() if token_id in added.values()]
    assert special == [added["<fim_prefix>"], added["<fim_suffix>"], added["<fim_middle>"]]
    assert subject.decode(line.ids) == line.text


def test_code_llamas_suffix_has_no_space_of_its_own() -> None:
    """Meta's code: the prefix is encoded as a text, the suffix as one that goes on."""
    subject = with_tokens("llama-spm", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    line, added = filled(subject, "x = ", "(1)"), subject.vocabulary.added
    bos = list(subject.vocabulary.prefix_ids)
    cut = line.ids.tolist().index(added["▁<SUF>"])
    assert line.ids.tolist()[: len(bos) + 1] == [*bos, added["▁<PRE>"]]
    assert line.ids.tolist()[len(bos) + 1 : cut] == subject.encode("x = ")
    assert line.ids[-1] == added["▁<MID>"]
    assert b"".join(map(subject.token_bytes, line.ids[cut + 1 : -1])) == b"(1)"
    start, end = line.offsets[cut + 1]
    assert line.text[start:end] == "("
    infiller = Renderer(subject).infiller
    assert infiller is not None
    assert infiller.tokens.end_ids == {added[name] for name in ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")}


@pytest.mark.parametrize("keys", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_a_gguf_file_names_the_tokens_itself(keys: tuple[str, str, str]) -> None:
    size = tokenizer("llama-bpe").vocab_size
    ids = {f"tokenizer.ggml.{key}_token_id": size - 4 + number for number, key in enumerate(keys)}
    subject = with_tokens(
        "llama-bpe", "<p>", "<s>", "<m>", "<q>", **ids, **{"tokenizer.ggml.fim_pad_token_id": size - 1}
    )
    assert filled(subject, "a", "b").text == "<p>a<s>b<m>"
    infiller = Renderer(subject).infiller
    assert infiller is not None
    assert infiller.tokens.end_ids >= set(range(size - 4, size))


def test_one_side_may_be_empty() -> None:
    subject = tokenizer("starcoder")
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    pre, suf, mid = (subject.vocabulary.added[name] for name in names)
    for prefix, suffix, ids in (
        ("", "x", [pre, suf, *subject.encode("x"), mid]),
        ("x", "", [pre, *subject.encode("x"), suf, mid]),
    ):
        np.testing.assert_array_equal(filled(subject, prefix, suffix).ids, ids)


@pytest.mark.parametrize("vocabulary", ["llama-bpe", "phi-3", "gpt-2"])
def test_other_models_cannot(vocabulary: str) -> None:
    assert Renderer(tokenizer(vocabulary)).infiller is None
