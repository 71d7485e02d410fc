"""What stands before an answer, and calls beside it: the grammar lets through what the parsers read, and no more."""

import json
import re
from typing import Any

import pytest

from tests.grammar.drive import allowed_ids, constraint
from tests.parse.fake_tokens import Vocabulary
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.spec import (
    CallsOrAnswer,
    Channels,
    Choice,
    Function,
    Grammar,
    JsonSchema,
    NamedCall,
    Reasoning,
    Regex,
    RequiredCalls,
    StrictTools,
)
from tokenline.parse.delta import ContentDelta, ReasoningDelta, ToolCallDelta
from tokenline.parse.registry import make_parser

END = 256
MARKERS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
    *("<|constrain|>", "<|python_tag|>", "<|x_begin|>", "<|x_end|>", "[THINK]", "[/THINK]"),
]
TEXT = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|return|>"], special={END})
CONTROL = Vocabulary([*TEXT.pieces, *MARKERS], special={END, *range(END + 1, END + 1 + len(MARKERS))})
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
JSON_ANSWER = '{"answer": "4"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WRONG = CALL.replace("Oslo", "Bonn")
THINK = Reasoning(("<think>",), ("</think>",))
OPENED = Reasoning(("<think>",), ("</think>",), opened=True)


@pytest.fixture(scope="module", params=["text", "control"])
def tokens(request: pytest.FixtureRequest) -> Vocabulary:
    """Markers as ordinary text of the vocabulary, or as control tokens."""
    return CONTROL if request.param == "control" else TEXT


@pytest.fixture(scope="module")
def compiler(tokens: Vocabulary) -> GrammarCompiler:
    return GrammarCompiler(tokens, len(tokens.pieces), len(tokens.pieces), {END}, close_objects=True)


def ids_of(text: str, tokens: Vocabulary) -> list[int]:
    if tokens is TEXT:
        return list(text.encode())
    pieces = re.split(f"({'|'.join(map(re.escape, MARKERS))})", text)
    return [i for piece in pieces for i in ([END + 1 + MARKERS.index(piece)] if piece in MARKERS else piece.encode())]


def takes(compiler: GrammarCompiler, tokens: Vocabulary, form: Any, before: Any, text: str) -> bool:
    grammar = compiler.compile(constraint(form, before))()
    for token_id in [*ids_of(text, tokens), END]:
        if token_id not in allowed_ids(grammar, len(tokens.pieces)):
            return False
        grammar.accept(token_id)
    return True


def functions(*, strict: bool) -> tuple[Function, ...]:
    return (Function("get_weather", CITY, strict), Function("stop"))


def read(text: str, tokens: Vocabulary, tool_parser: str, reasoning: str, prompt_end: str) -> tuple[str, str, list]:
    """Reasoning, content and calls, as the parser reads a text."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
    controls = set(MARKERS) if tokens is CONTROL else None
    parser = make_parser(tool_parser, reasoning, tools=tools, prompt_end=prompt_end, control_tokens=controls)
    deltas: list[Any] = []
    for piece in re.split(f"({'|'.join(map(re.escape, MARKERS))})", text) if controls else [text]:
        control = piece in MARKERS
        if piece and (not control or piece in parser.control_tokens):
            deltas += parser.feed(piece, control=control)
    deltas += parser.finish(cut=False)
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            call = calls.setdefault(delta.index, ["", ""])
            call[0] = delta.name or call[0]
            call[1] += delta.arguments
    return (
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)),
        [(name, json.loads(arguments)) for name, arguments in calls.values()],
    )


FORMS = [
    (JsonSchema(ANSWER), JSON_ANSWER, '{"answer": 4}'),
    (Regex("[a-z]{2}"), "ab", "abc"),
    (Choice(("yes", "no")), "yes", "maybe"),
    (Grammar('root ::= "x" "y"'), "xy", "x"),
    (Grammar('start: "x" other\nother: /[0-9]+/'), "x12", "x"),
    (NamedCall(Function("f", CITY)), '{"city": "Oslo"}', '{"city": "Bonn"}'),
    (RequiredCalls((Function("f", CITY),)), '[{"name": "f", "parameters": {"city": "Oslo"}}]', "[]"),
]


class TestReasoning:
    """Case r2-13: a model whose prompt does not open the reasoning may open it."""

    @pytest.mark.parametrize(("form", "right", "wrong"), FORMS, ids=lambda value: type(value).__name__)
    def test_the_model_may_think_first(self, compiler: GrammarCompiler, tokens: Vocabulary, form, right, wrong):
        for before in ("", "<think>2+2\n{is} 中 <b>4</b></think>", "\n<think></think>\n\n", "<think>\n\n</think>\n"):
            assert takes(compiler, tokens, form, THINK, before + right), before
            assert not takes(compiler, tokens, form, THINK, before + wrong), before
        for text in ("Hm. " + right, "<think>" + right, right + "<think>x</think>", "<think>x</think>", ""):
            assert not takes(compiler, tokens, form, THINK, text), text

    @pytest.mark.parametrize(("form", "right", "wrong"), FORMS, ids=lambda value: type(value).__name__)
    def test_a_prompt_that_has_opened_it(self, compiler: GrammarCompiler, tokens: Vocabulary, form, right, wrong):
        for before in ("2+2 is 4</think>", "</think>\n\n", "<think>again</think>", "\n<think>\nagain</th </think> "):
            assert takes(compiler, tokens, form, OPENED, before + right), before
            assert not takes(compiler, tokens, form, OPENED, before + wrong), before
        for text in (right, "2+2 " + right, "", "2+2"):
            assert not takes(compiler, tokens, form, OPENED, text), text

    def test_several_spellings(self, compiler: GrammarCompiler, tokens: Vocabulary):
        """Granite's, of which the first that comes counts."""
        before = Reasoning(("<think>", "Here is my thought process:"), ("</think>", "Here is my response:"))
        for text in (
            "<think>a</think>",
            "Here is my thought process: a Here is my response: ",
            "<think>a Here is my response:",
        ):
            assert takes(compiler, tokens, Choice(("yes",)), before, text + "yes"), text
        assert not takes(compiler, tokens, Choice(("yes",)), before, "Here is my thought process: a yes")

    def test_a_marker_that_is_repeated_or_cut(self, compiler: GrammarCompiler, tokens: Vocabulary):
        before = Reasoning(("<think>",), ("aab",), opened=True)
        assert takes(compiler, tokens, Choice(("yes",)), before, "aaabyes")
        assert not takes(compiler, tokens, Choice(("yes",)), before, "aabaabyes")

    @pytest.mark.parametrize(
        ("piece", "then"), [("</think>\n\n", "y"), ("</think>", "y"), ("</think>ye", "s"), ("x</think> ", "y")]
    )
    def test_a_token_that_reaches_into_the_answer(self, piece: str, then: str):
        tokens = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>", piece, "</think>no"], special={256})
        grammar = GrammarCompiler(tokens, 259, 259, {256}).compile(constraint(Choice(("yes",)), OPENED))()
        assert 258 not in allowed_ids(grammar, 259)
        grammar.accept(257)
        assert ord(then) in allowed_ids(grammar, 259)
        assert 258 not in allowed_ids(grammar, 259)

    def test_strict_tools(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = StrictTools(functions(strict=True), "hermes")
        for before, text in (
            (THINK, "<think>Hm.</think>\n"),
            (THINK, ""),
            (OPENED, "Hm.</think>\n"),
            (OPENED, "Hm.\n"),
        ):
            for good in ("", "It rains.", CALL, f"I see.\n{CALL}\n{CALL}"):
                assert takes(compiler, tokens, form, before, text + good), (text, good)
            # A call's marker ends the reasoning.
            assert not takes(compiler, tokens, form, before, text + WRONG)


class TestCallsOrAnswer:
    """Cases r2-04 and r2-05: tools beside a response_format."""

    @pytest.mark.parametrize("strict", [False, True])
    def test_a_call_or_an_answer(self, compiler: GrammarCompiler, tokens: Vocabulary, strict: bool):
        form = CallsOrAnswer(functions(strict=strict), "hermes", JsonSchema(ANSWER))
        for before, text in ((None, ""), (THINK, ""), (THINK, "<think>Hm.</think>\n"), (OPENED, "Hm.</think>\n\n")):
            for good in (JSON_ANSWER, CALL, f"\n{CALL}\n{CALL}\n"):
                assert takes(compiler, tokens, form, before, text + good), text + good
            for bad in ("", "It rains.", '{"answer": 4}', JSON_ANSWER + CALL, CALL + JSON_ANSWER, CALL + "x"):
                assert not takes(compiler, tokens, form, before, text + bad), text + bad
            assert takes(compiler, tokens, form, before, text + WRONG) is not strict
            assert not takes(compiler, tokens, form, before, text + CALL.replace("get_", "got_"))

    @pytest.mark.parametrize("before", [None, THINK])
    def test_both_are_possible_at_the_first_token(self, compiler: GrammarCompiler, tokens: Vocabulary, before: Any):
        form = CallsOrAnswer(functions(strict=False), "hermes", JsonSchema(ANSWER))
        first = allowed_ids(compiler.compile(constraint(form, before))(), len(tokens.pieces))
        assert {ord("{"), ids_of("<tool_call>", tokens)[0]} <= set(first)
        assert END not in first

    def test_one_call_where_only_one_is_asked_for(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = CallsOrAnswer(functions(strict=False), "hermes", JsonSchema(ANSWER), parallel=False)
        assert takes(compiler, tokens, form, None, CALL)
        assert not takes(compiler, tokens, form, None, CALL + CALL)

    def test_the_other_answers(self, compiler: GrammarCompiler, tokens: Vocabulary):
        for answer, text in ((Regex("[a-z]+"), "abc"), (Choice(("a", "b")), "b"), (Grammar('root ::= "x"'), "x")):
            form = CallsOrAnswer(functions(strict=True), "hermes", answer)
            assert takes(compiler, tokens, form, None, text)
            assert takes(compiler, tokens, form, THINK, f"<think>x</think>{CALL}")
            assert not takes(compiler, tokens, form, None, text + "!")

    def test_calls_without_a_marker(self, compiler: GrammarCompiler, tokens: Vocabulary):
        """Llama 3 writes a call as JSON, like the answer."""
        form = CallsOrAnswer(functions(strict=True), "llama3_json", JsonSchema(ANSWER))
        call = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
        for text in (JSON_ANSWER, call, f"<|python_tag|>{call}; {call}"):
            assert takes(compiler, tokens, form, None, text), text
        for text in (call.replace("Oslo", "Bonn"), '{"name": "x"}', "x"):
            assert not takes(compiler, tokens, form, None, text), text
        form = CallsOrAnswer(functions(strict=True), "pythonic", JsonSchema(ANSWER))
        for text in (JSON_ANSWER, '[get_weather(city="Oslo")]', '[stop(), get_weather(city="Rome")]'):
            assert takes(compiler, tokens, form, None, text), text
        assert not takes(compiler, tokens, form, None, '[get_weather(city="Bonn")]')

    def test_a_format_of_which_only_the_markers_are_known(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = CallsOrAnswer(functions(strict=False), "new", JsonSchema(ANSWER), markers=("<|x_begin|>", "<|x_end|>"))
        for text in (JSON_ANSWER, "<|x_begin|>get_weather Oslo<|x_end|>\n<|x_begin|>stop"):
            assert takes(compiler, tokens, form, THINK, text), text
            assert takes(compiler, tokens, form, OPENED, "Hm.</think>" + text), text
        assert not takes(compiler, tokens, form, None, "get_weather Oslo")

    @pytest.mark.parametrize(("prompt_end", "before"), [("", THINK), ("<think>", OPENED)])
    def test_the_parser_reads_what_is_let_through(self, compiler, tokens: Vocabulary, prompt_end: str, before: Any):
        form = CallsOrAnswer(functions(strict=True), "hermes", JsonSchema(ANSWER))
        thought = "Hm.</think>" if before.opened else "<think>Hm.</think>"
        for text, content, calls in (
            (f"{thought}\n{JSON_ANSWER}", JSON_ANSWER, []),
            (f"{thought}\n{CALL}\n{CALL}", "", [("get_weather", {"city": "Oslo"})] * 2),
        ):
            assert takes(compiler, tokens, form, before, text)
            reasoning, said, called = read(text, tokens, "hermes", "qwen3", f"<|im_start|>assistant\n{prompt_end}")
            assert (reasoning, said.strip(), called) == ("Hm.", content, calls)


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
MESSAGE = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}'


class TestChannels:
    def test_an_answer(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = JsonSchema(ANSWER)
        for text in ("", THOUGHT, THOUGHT + THOUGHT.replace("analysis", "commentary")):
            assert takes(compiler, tokens, form, Channels(), text + FINAL + JSON_ANSWER)
            assert takes(
                compiler, tokens, form, Channels(), f"{text}<|channel|>final <|constrain|>json<|message|>{JSON_ANSWER}"
            )
            for bad in ("", MESSAGE, FINAL + "Hm.", JSON_ANSWER):
                assert not takes(compiler, tokens, form, Channels(), text + bad), text + bad
        assert takes(
            compiler, tokens, form, Channels(in_message=True), f"m.<|end|><|start|>assistant{FINAL}{JSON_ANSWER}"
        )

    def test_a_call_or_an_answer(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = CallsOrAnswer(functions(strict=True), "openai", JsonSchema(ANSWER))
        other = MESSAGE.replace(
            "<|channel|>commentary to=functions.get_weather", " to=functions.get_weather<|channel|>commentary"
        )
        for text in ("", THOUGHT):
            for good in (FINAL + JSON_ANSWER, MESSAGE, other, MESSAGE.replace(" <|constrain|>json", "")):
                assert takes(compiler, tokens, form, Channels(), text + good), text + good
                if "get_weather" in good:
                    _, _, calls = read(text + good, tokens, "openai", "openai_gptoss", "<|start|>assistant")
                    assert calls == [("get_weather", {"city": "Oslo"})]
            for bad in (MESSAGE.replace("Oslo", "Bonn"), MESSAGE.replace("get_", "got_"), FINAL + "Hm."):
                assert not takes(compiler, tokens, form, Channels(), text + bad), text + bad

    def test_strict_tools(self, compiler: GrammarCompiler, tokens: Vocabulary):
        form = StrictTools(functions(strict=True), "openai")
        for text in (FINAL + "It rains.", THOUGHT + MESSAGE, MESSAGE, FINAL, "<|channel|>analysis<|message|>Hm."):
            assert takes(compiler, tokens, form, Channels(), text), text
        assert not takes(compiler, tokens, form, Channels(), THOUGHT + MESSAGE.replace("Oslo", "Bonn"))

    @pytest.mark.parametrize(
        "form", [NamedCall(Function("get_weather", CITY), 3), RequiredCalls((Function("get_weather", CITY),))]
    )
    def test_forced_calls_are_messages(self, compiler: GrammarCompiler, tokens: Vocabulary, form: Any):
        assert takes(compiler, tokens, form, Channels(), THOUGHT + MESSAGE)
        for bad in (FINAL + JSON_ANSWER, FINAL, "", THOUGHT + MESSAGE.replace("Oslo", "Bonn")):
            assert not takes(compiler, tokens, form, Channels(), bad), bad
