"""What a grammar forces, and what happens when the library fails."""

import json
from typing import Any

import numpy as np
import pytest

from tests.grammar.drive import END, PADDED, TOKENS, VOCAB, allowed_ids, byte_compiler, constraint, encode_bytes
from tests.grammar.kinds import INTEGER, closed
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.library import LibraryError, on_large_stack
from tokenline.grammar.matching import GrammarState
from tokenline.grammar.spec import Choice, Function, JsonSchema, Regex, RequiredCalls


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENS, VOCAB, PADDED, {END})


def accept(grammar: GrammarState, text: str) -> None:
    for byte in text.encode():
        grammar.accept(byte)


class TestForced:
    """The seam for appending what must come in one step."""

    def test_each_is_allowed_in_its_turn_and_nothing_else_is(self):
        compiler = byte_compiler()
        make = compiler.compile(constraint(JsonSchema(closed(first=INTEGER, second={"const": "是的"}))))
        grammar = make()
        text = b""
        for byte in json.dumps({"first": 1, "second": "是的"}, ensure_ascii=False).encode():
            forced = grammar.forced()
            if forced:
                assert forced[0] == byte
                follower = make()
                for seen in text:
                    follower.accept(seen)
                for token_id in forced:
                    assert allowed_ids(follower, 257).tolist() == [token_id]
                    follower.accept(token_id)
            grammar.accept(byte)
            text += bytes([byte])
        assert grammar.forced() in ((), (256,))

    def test_of_a_call_most_is(self):
        compiler = byte_compiler()
        grammar = compiler.compile(
            constraint(RequiredCalls((Function("get_weather", closed(city={"type": "string"})),), False))
        )()
        accept(grammar, '[{"')
        assert bytes(grammar.forced()) == b'name"'
        accept(grammar, 'name": "')
        assert bytes(grammar.forced()) == b'get_weather"'

    def test_without_an_encoder_nothing_is_known(self, compiler: GrammarCompiler):
        grammar = compiler.compile(constraint(Choice(("yes",))))()
        assert grammar.forced() == ()
        assert allowed_ids(grammar).tolist() == [ord("y")]

    @pytest.mark.parametrize(
        "encode",
        [
            lambda text: list((" " + text).encode()),  # SentencePiece begins every text with a space
            lambda text: [END],
            lambda text: [VOCAB + 5],
            lambda text: [],
            lambda text: {}[text],
        ],
    )
    def test_an_encoder_that_says_something_else_is_not_believed(self, encode: Any):
        compiler = GrammarCompiler(TOKENS, VOCAB, PADDED, {END}, encode=encode)
        grammar = compiler.compile(constraint(Choice(("yes",))))()
        assert b"yes".startswith(b"".join(map(TOKENS.token_bytes, grammar.forced())))
        assert allowed_ids(grammar).tolist() == [ord("y")]


class Panic(BaseException):
    """As pyo3's PanicException: no Exception."""


Panic.__name__ = "PanicException"


class TestPanics:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any) -> Any:
                raise Panic("called `Option::unwrap()` on a `None` value")

            return fail

    def test_while_compiling(self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
        def fail() -> None:
            raise Panic("index out of bounds")

        with pytest.raises(LibraryError, match="index out of bounds"):
            on_large_stack(fail)

    def test_at_a_mask_or_a_token(self, compiler: GrammarCompiler):
        grammar = compiler.compile(constraint(Regex("[ab]+")))()
        grammar.accept(ord("a"))
        grammar._begun._matcher = self.Failing()
        with pytest.raises(LibraryError):
            grammar.mask()
        with pytest.raises(LibraryError):
            grammar.accept(ord("a"))
        assert grammar.forced() == ()

    def test_other_errors_are_left_as_they_are(self):
        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            on_large_stack(interrupt)


def test_a_mask_is_its_grammars_own(compiler: GrammarCompiler):
    make = compiler.compile(constraint(Regex("ab")))
    first, second = make(), make()
    before = first.mask().copy()
    second.accept(ord("a"))
    second.mask()
    assert np.array_equal(first.mask(), before)


def test_encode_bytes_is_what_the_vocabulary_says():
    assert b"".join(map(TOKENS.token_bytes, encode_bytes("a中"))) == "a中".encode()
