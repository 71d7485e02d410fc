"""Vocabularies as models have them: padded, with endless tokens, empty ones, two of a kind; and real ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.grammar.compare import compare, hand_written
from tests.grammar.drive import allowed_ids, constraint, is_allowed, stops_at
from tests.grammar.real_schemas import REAL
from tests.parse.fake_tokens import Vocabulary
from tests.sources import llama_cpp_source
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import Choice, Function, Grammar, JsonSchema, NamedCall, Regex, RequiredCalls
from tokenline.render.tokenizer import Tokenizer

BYTES = [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize("length", [500, 501, 1_023, 1_024, 2_000, 100_000])
def test_a_very_long_token(length: int):
    """The library panics at them. Above 500 bytes they are not used."""
    tokens = Vocabulary([*BYTES, "<|end|>", b" " * length], special={256})
    grammar = GrammarCompiler(tokens, 258, 258, {256}).compile(constraint(Regex(" *")))()
    assert allowed_ids(grammar, 258).tolist() == [32, 256, *([257] if length <= 500 else [])]


def test_empty_and_equal_tokens():
    tokens = Vocabulary([*BYTES, "<|end|>", b"", "a", "a", b"", "<|end|>"], special={256, 261})
    grammar = GrammarCompiler(tokens, 262, 300, {256}).compile(constraint(Choice(("a",))))()
    assert allowed_ids(grammar, 300).tolist() == [ord("a"), 258, 259]
    grammar.accept(259)
    assert allowed_ids(grammar, 300).tolist() == [256]


def test_tokens_that_end_inside_a_character():
    piece = "中".encode()
    tokens = Vocabulary([*BYTES, "<|end|>", piece[:2], b'"' + piece[:1], piece[2:] + b'"'], special={256})
    make = GrammarCompiler(tokens, 260, 260, {256}).compile(constraint(JsonSchema({"enum": ["中", "丰"]})))
    for ids in ([34, 257, piece[2], 34], [258, piece[1], 259], [34, *piece, 34]):
        grammar = make()
        for token_id in [*ids, 256]:
            assert is_allowed(grammar, token_id)
            grammar.accept(token_id)
    grammar = make()
    grammar.accept(34)
    assert not is_allowed(grammar, ord("a"))


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_model(smollm2)


@pytest.fixture(scope="module")
def end(tokenizer: Tokenizer) -> int:
    return tokenizer.special_tokens["<|im_end|>"]


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer, end: int) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.vocab_size, {end}, encode=tokenizer.encode)


class TestSmolLM2:
    def test_kinds_in_the_models_own_tokens(self, compiler: GrammarCompiler, tokenizer: Tokenizer, end: int):
        found = compare(compiler, hand_written(), encode=tokenizer.encode, end=end, most=6)
        assert found.refused == found.too_loose == found.too_tight == []

    def test_forced_ids_are_the_tokenizers(self, compiler: GrammarCompiler, tokenizer: Tokenizer, end: int):
        """Where the grammar leaves no choice it names the ids that the whole text is encoded to, each allowed."""
        forced_ids = 0
        for name, schema, value in REAL:
            try:
                make = compiler.compile(constraint(RequiredCalls((Function("f", schema),), parallel=False)))
            except ConstraintError:
                continue
            if not isinstance(value, dict):
                continue
            ids = tokenizer.encode(json.dumps([{"name": "f", "parameters": value}], ensure_ascii=False))
            grammar = make()
            waiting: list[int] = []
            for token_id in ids:
                if not waiting:
                    waiting = list(grammar.forced())
                    forced_ids += len(waiting)
                assert is_allowed(grammar, token_id), (name, tokenizer.decode([token_id]))
                if waiting:
                    assert waiting.pop(0) == token_id, name
                    assert allowed_ids(grammar, tokenizer.vocab_size).tolist() == [token_id]
                grammar.accept(token_id)
            assert is_allowed(grammar, end)
        assert forced_ids > 200

    def test_an_answer_of_every_form(self, compiler: GrammarCompiler, tokenizer: Tokenizer, end: int):
        function = Function("f", {"type": "object", "properties": {"名": {"type": "string"}}})
        for form, text in (
            (Regex(r"\w+ \d{4}!?"), "蜘蛛 2026"),
            (Choice(("да", "не 😀")), "не 😀"),
            (Grammar('root ::= "(" root ")" | "x"'), "((x))"),
            (NamedCall(function), '{"名": "蜘蛛 \\"x\\""}'),
        ):
            assert stops_at(compiler.compile(constraint(form)), text, encode=tokenizer.encode, end=end) is None


@pytest.mark.parametrize("name", ["qwen2", "llama-spm", "gpt-2", "deepseek-llm"])
def test_real_tokenizers(name: str):
    """Byte-level, SentencePiece: the same texts, whatever they are cut into."""
    tokenizer = Tokenizer.from_model(llama_cpp_source() / f"ggml-vocab-{name}.gguf")
    end = next(iter(tokenizer.special_tokens.values()))

    def encode(text: str) -> list[int]:
        return tokenizer.encode_with_offsets(text, continued=True)[0]

    size = tokenizer.vocab_size
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(size))}
    compiler = GrammarCompiler(tokenizer, size, size + 100, {end}, encode=encode)
    schema: Any = {"type": "object", "properties": {"name": {"enum": ["昆虫", "spider"]}, "n": {"type": "integer"}}}
    make = compiler.compile(constraint(JsonSchema(schema)))
    for value, valid in (({"name": "昆虫", "n": 8}, True), ({"name": "bird"}, False), ({"n": "x"}, False)):
        for indent in (None, 2):
            text = json.dumps(value, ensure_ascii=False, indent=indent)
            ids = encode(text)
            if b"".join(map(tokenizer.token_bytes, ids)) != text.encode():  # SentencePiece begins with a space
                ids = [by_bytes[bytes([byte])] for byte in text.encode()]
            assert (stops_at(make, "", encode=lambda _, ids=ids: ids, end=end) is None) == valid
