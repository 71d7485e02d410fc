"""What constrained sampling lets through, driven by random ids: whatever is drawn, the answer holds to its grammar."""

import json
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from tests.grammar.drive import (
    CONTROL,
    END,
    PADDED,
    TOKENS,
    VOCAB,
    allowed_ids,
    byte_compiler,
    constraint,
    encode_bytes,
    lets_through,
    random_answer,
    random_answers,
)
from tests.parse.fake_tokens import Vocabulary
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.limits import MAX_KEPT
from tokenline.grammar.spec import Choice, Grammar, JsonSchema, Regex


@pytest.fixture(scope="module", params=[None, encode_bytes], ids=["nothing forced", "forced"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    return GrammarCompiler(TOKENS, VOCAB, PADDED, {END}, encode=request.param)


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "中文", 3, None]}, "maxItems": 3},
        "friend": {"$ref": "#/$defs/friend"},
    },
    "required": ["name", "age", "friend"],
    "additionalProperties": False,
    "$defs": {"friend": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
}


def check_person(value: Any) -> None:
    assert set(value) <= {"name", "age", "tags", "friend"}
    assert isinstance(value["name"], str)
    assert 0 <= value["age"] <= 150
    assert value["friend"] in (None, True, False)
    assert all(tag in ("a", "中文", 3, None) for tag in value.get("tags", []))
    assert len(value.get("tags", [])) <= 3


def test_json_schema(compiler: GrammarCompiler):
    for text in random_answers(compiler.compile(constraint(JsonSchema(PERSON)))):
        check_person(json.loads(text))


def test_json_object(compiler: GrammarCompiler):
    for text in random_answers(compiler.compile(constraint(JsonSchema({"type": "object"})))):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("pattern", [r"[A-Z]{2}-\d{3,5}", r"^(yes|no|也许)$", r"(?i)ab?c*"])
def test_regex(compiler: GrammarCompiler, pattern: str):
    for text in random_answers(compiler.compile(constraint(Regex(pattern)))):
        assert re.fullmatch(pattern, text)


def test_choice(compiler: GrammarCompiler):
    options = ("yes", "no", 'quo"te\n', "也许", "\\x", "\x7f\x00", "%json {}", "<tool_call>")
    make = compiler.compile(constraint(Choice(options)))
    assert {random_answer(make, seed, end_early=False) for seed in range(80)} == set(options)


@pytest.mark.parametrize(
    "source",
    [
        'root ::= "(" root ")" | "x"',
        'start: "(" start ")" | "x"',
        'root ::= a\na ::= "(" a ")" | [x]',
        "%llguidance {}\nstart: /\\(*x\\)*/",
    ],
)
def test_grammar(compiler: GrammarCompiler, source: str):
    for text in random_answers(compiler.compile(constraint(Grammar(source)))):
        assert re.fullmatch(r"\(*x\)*", text)


def test_choices_of_one_request_are_independent(compiler: GrammarCompiler):
    make = compiler.compile(constraint(Choice(("ab", "cd"))))
    first, second = make(), make()
    first.accept(ord("a"))
    assert allowed_ids(first).tolist() == [ord("b")]
    assert {ord("a"), ord("c")} <= set(allowed_ids(second).tolist())


def test_the_end_is_allowed_where_the_grammar_is_complete_and_nowhere_else(compiler: GrammarCompiler):
    grammar = compiler.compile(constraint(Regex("ab?")))()
    assert END not in allowed_ids(grammar)
    grammar.accept(ord("a"))
    assert allowed_ids(grammar).tolist() == [ord("b"), END]
    grammar.accept(ord("b"))
    assert allowed_ids(grammar).tolist() == [END]
    grammar.accept(END)


def test_several_ends():
    tokens = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>", "<|eot|>"], special={256, 257})
    grammar = GrammarCompiler(tokens, 258, 258, {256, 257}).compile(constraint(Choice(("a",))))()
    assert allowed_ids(grammar, 258).tolist() == [ord("a")]
    grammar.accept(ord("a"))
    assert allowed_ids(grammar, 258).tolist() == [256, 257]
    grammar.accept(257)


def test_no_end_at_all():
    tokens = Vocabulary([bytes([byte]) for byte in range(256)])
    grammar = GrammarCompiler(tokens, 256, 256, set()).compile(constraint(Choice(("a",))))()
    assert allowed_ids(grammar, 256).tolist() == [ord("a")]
    grammar.accept(ord("a"))
    assert allowed_ids(grammar, 256).tolist() == []


def test_control_tokens_and_padding_are_no_text(compiler: GrammarCompiler):
    grammar = compiler.compile(constraint(Regex("(.|\n)*")))()
    ids = allowed_ids(grammar)
    assert CONTROL not in ids
    assert ids.max() < VOCAB


def test_a_grammar_may_ask_for_control_tokens_but_not_for_padding(compiler: GrammarCompiler):
    assert allowed_ids(compiler.compile(constraint(Grammar('start: <tool_call> "x"')))()).tolist() == [CONTROL]
    every = compiler.compile(constraint(Grammar('start: <[*]> "x"')))()
    assert CONTROL in allowed_ids(every)
    assert allowed_ids(every).max() < VOCAB


def test_an_id_outside_the_grammar_is_an_error(compiler: GrammarCompiler):
    grammar = compiler.compile(constraint(Choice(("yes",))))()
    grammar.mask()
    with pytest.raises(ValueError, match="outside"):
        grammar.accept(ord("n"))
    with pytest.raises(Exception, match=r"."):
        grammar.mask()  # never "the answer may end here"


class TestRefused:
    @pytest.mark.parametrize(
        "pattern", ["(a", "a)", r"(a)\1", "a(?=b)", "a(?!b)", "(?<=a)b", "a^b", "^a$b", r"\bword", "*", "[b-a]"]
    )
    def test_expressions(self, compiler: GrammarCompiler, pattern: str):
        for form in (Regex(pattern), JsonSchema({"type": "string", "pattern": pattern})):
            with pytest.raises(
                ConstraintError, match=r"position|look|anchor|start|group|boundaries|repeat|range"
            ) as refused:
                compiler.compile(constraint(form))
            assert "\n" not in str(refused.value)
            assert refused.value.path == (() if isinstance(form, Regex) else ("pattern",))

    @pytest.mark.parametrize(
        ("source", "named"),
        [
            ("root ::= x", "'x'"),
            ("start: x", "x"),
            ("hello", "neither GBNF nor Lark"),
            ("", "neither GBNF nor Lark"),
            ('start: "a" @other', "other"),
            ("start: %json 5", "JSON schema"),
            ("start: %json", "%json"),
            ('start: %json {"uniqueItems": true}', "uniqueItems"),
            ('start: "a" <|nothing|>', "nothing"),
        ],
    )
    def test_grammars(self, compiler: GrammarCompiler, source: str, named: str):
        with pytest.raises(ConstraintError, match=re.escape(named)) as refused:
            compiler.compile(constraint(Grammar(source)))
        assert "\n" not in str(refused.value)

    def test_choices(self, compiler: GrammarCompiler):
        with pytest.raises(ConstraintError, match="at least one"):
            compiler.compile(constraint(Choice(())))

    @pytest.mark.parametrize(
        "form", [Regex("\ud800"), Choice(("\ud800",)), Grammar('root ::= "\ud800"'), JsonSchema({"const": "\ud800"})]
    )
    def test_half_characters(self, compiler: GrammarCompiler, form: Any):
        with pytest.raises(ConstraintError, match="half of a surrogate pair"):
            compiler.compile(constraint(form))


def test_what_was_compiled_is_kept_and_bounded(compiler: GrammarCompiler):
    for number in range(MAX_KEPT + 20):
        compiler.compile(constraint(Choice((f"option {number}",))))
    assert len(compiler._kept) == MAX_KEPT
    assert sum(compiler._kept._lengths.values()) == sum(map(len, compiler._kept._values[None]))
    last, first = (compiler.compile(constraint(Choice((f"option {n}",))))() for n in (MAX_KEPT + 19, 0))
    assert allowed_ids(last).tolist() == allowed_ids(first).tolist() == [ord("o")]


def test_what_is_kept_is_kept_apart_by_namespace(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    compiled: list[str] = []
    compile_source = compiler._library.compile

    def counted(source: str) -> Any:
        compiled.append(source)
        return compile_source(source)

    monkeypatch.setattr(compiler._library, "compile", counted)
    for namespace in ("a", "a", "b", "b", "a"):
        compiler.compile(constraint(Choice(("theirs",))), namespace)
    assert len(compiled) == 2, "b did not find what a has"
    for number in range(2 * MAX_KEPT):
        compiler.compile(constraint(Choice((f"option {number}",))), "greedy")
    assert len(compiler._kept) == MAX_KEPT
    compiled.clear()
    compiler.compile(constraint(Choice(("theirs",))), "a")
    assert not compiled, "another's many do not drive out one's own few"


def test_several_threads_compile_at_once():
    compiler = byte_compiler()
    failures: list[BaseException] = []
    results: dict[int, bool] = {}

    def work(number: int) -> None:
        try:
            for turn in range(10):
                schema = {
                    "type": "object",
                    "properties": {f"p{number % 3}{turn}": {"type": "integer"}},
                    "additionalProperties": False,
                }
                make = compiler.compile(constraint(JsonSchema(schema)))
                results[number * 100 + turn] = lets_through(make, f'{{"p{number % 3}{turn}": 1}}')
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(results) == 80
    assert all(results.values())


def test_the_library_is_imported_by_the_first_use_only():
    program = "import sys; import tokenline.grammar.compiler; assert 'llguidance' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_masks_are_cut_to_the_models_size():
    """A tokenizer may have more ids than the model has logits."""
    tokens = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>", "more", "than", "fits"], special={256})
    grammar = GrammarCompiler(tokens, 260, 257, {256, 999}).compile(constraint(Regex("[a-z]+")))()
    mask = grammar.mask()
    assert len(mask) == 9
    assert np.unpackbits(mask.view(np.uint8), bitorder="little").sum() == 26
