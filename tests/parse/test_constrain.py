"""What constrained sampling lets through, driven by random ids: whatever is drawn, the answer holds to its grammar."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from tests.parse.fake_tokens import Vocabulary
from tokenline.parse.constrain import Constrainer, ConstraintError
from tokenline.parse.registry import make_parser

PIECES = [bytes([byte]) for byte in range(256)] + ['{"', '":', '", "', "true", "12", "中", "😀", "name", "]}", "  "]
END = len(PIECES)
CONTROL = END + 1
TOKENS = Vocabulary([*PIECES, "<|end|>", "<tool_call>"], special={END, CONTROL})
VOCAB = len(TOKENS.pieces)
PADDED = VOCAB + 70  # models pad their logits


@pytest.fixture(scope="module")
def constrainer() -> Constrainer:
    return Constrainer(TOKENS, VOCAB, PADDED, {END})


def allowed_ids(grammar) -> np.ndarray:
    mask = grammar.mask()
    assert mask.dtype == np.int32
    assert len(mask) == -(-PADDED // 32)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:PADDED])


def answer(make, seed: int, limit: int = 2000, end_early: bool = True) -> str | None:
    """One random answer; None if it did not end within the limit."""
    grammar, drawn, text = make(), random.Random(seed), b""
    for _ in range(limit):
        ids = allowed_ids(grammar)
        assert len(ids) > 0
        assert ids.max() < VOCAB, "padding is never allowed"
        assert CONTROL not in ids, "control tokens are no text"
        if END in ids and (end_early or len(ids) == 1):
            return text.decode("utf-8", "replace")
        # ASCII first, so that random strings end some day
        likely = [token_id for token_id in ids if token_id in (34, 125, 93)]
        token_id = int(drawn.choice(likely if likely and drawn.random() < 0.5 else list(ids)))
        grammar.accept(token_id)
        text += TOKENS.token_bytes(token_id)
    return None


def answers(make, count: int = 20) -> list[str]:
    found = [text for seed in range(count) if (text := answer(make, seed)) is not None]
    assert len(found) >= count // 2
    return found


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


def test_json_schema(constrainer):
    for text in answers(constrainer.json_schema(PERSON)):
        check_person(json.loads(text))


def test_json_object(constrainer):
    for text in answers(constrainer.json_object()):
        assert isinstance(json.loads(text), dict)


def test_regex_and_choice_and_grammar(constrainer):
    for text in answers(constrainer.regex(r"[A-Z]{2}-\d{3,5}")):
        assert re.fullmatch(r"[A-Z]{2}-\d{3,5}", text)
    options = ["yes", "no", 'quo"te\n', "也许", "\\x"]
    assert {answer(constrainer.choice(options), seed, end_early=False) for seed in range(40)} == set(options)
    for text in answers(constrainer.grammar('root ::= "(" root ")" | "x"')):
        assert re.fullmatch(r"\(*x\)*", text)


def test_choices_of_one_request_are_independent(constrainer):
    make = constrainer.choice(["ab", "cd"])
    first, second = make(), make()
    first.accept(ord("a"))
    assert allowed_ids(first).tolist() == [ord("b")]
    assert {ord("a"), ord("c")} <= set(allowed_ids(second).tolist())


TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PERSON}},
    {"type": "function", "function": {"name": "stop", "description": "takes nothing"}},
]


def parsed(text: str, forced: str) -> list[tuple[str | None, str]]:
    parser = make_parser(None, None, tools=TOOLS, forced=forced)
    calls: dict[int, list[str | None]] = {}
    for delta in [*parser.feed(text), *parser.finish(cut=False)]:
        for call in delta.tool_calls:
            found = calls.setdefault(call.index, [None, ""])
            found[0] = call.name or found[0]
            found[1] = (found[1] or "") + call.arguments
    return [(name, arguments or "") for name, arguments in calls.values()]


def test_forced_calls_are_what_their_parser_reads(constrainer):
    for text in answers(constrainer.named_call(TOOLS[0])):
        ((name, arguments),) = parsed(text, "weather")
        assert name == "weather"
        check_person(json.loads(arguments))
    for text in answers(constrainer.required_calls(TOOLS)):
        calls = parsed(text, "")
        assert calls
        for name, arguments in calls:
            if name == "weather":
                check_person(json.loads(arguments))
            else:
                assert (name, json.loads(arguments)) == ("stop", {})
    for text in answers(constrainer.required_calls(TOOLS, parallel=False)):
        assert len(parsed(text, "")) == 1


def test_text_before_the_awaited_marker_is_free(constrainer):
    grammar = constrainer.choice(["yes"], begins_after="</think>")()
    for character in "I wonder <b>1</b> </th":
        assert len(allowed_ids(grammar)) >= VOCAB
        grammar.accept(ord(character))
    for character in "</think>":
        grammar.accept(ord(character))
    assert allowed_ids(grammar).tolist() == [ord("y")]


def test_an_answer_cannot_end_before_what_it_must_hold(constrainer):
    for make in (constrainer.choice, lambda *_, **more: constrainer.required_calls(TOOLS, **more)):
        grammar = make(["yes"], begins_after="</think>")()
        assert END not in allowed_ids(grammar)
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": PERSON}}
    assert END in allowed_ids(constrainer.strict_tools([tool], "hermes", begins_after="</think>")())


def test_strict_tools_bind_calls_and_leave_text_free(constrainer):
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": PERSON}}
    grammar = constrainer.strict_tools([tool], "hermes")()
    for character in "Let me look.\n<tool_call>":
        assert ord(character) in allowed_ids(grammar)
        grammar.accept(ord(character))
    for character in '\n{"name": "':
        assert ord(character) in allowed_ids(grammar)
        grammar.accept(ord(character))
    assert set(allowed_ids(grammar).tolist()) == {ord("f")}, "only the function that exists"
    with pytest.raises(ConstraintError, match="mistral"):
        constrainer.strict_tools([tool], "mistral")


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"enum": []}, "enum"),
        ({"type": "foo"}, "foo"),
        ({"type": 5}, "[Tt]ype"),
        (False, "false"),
        ([], "object"),
        ({"not": {"type": "string"}}, "/not"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "/properties/a/items/uniqueItems"),
        ({"anyOf": [{"type": "null"}, {"multipleOf": 3}]}, "/anyOf/1/multipleOf"),
        ({"allOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, "/allOf"),
        ({"$ref": "#/nope"}, "nope"),
        ({"$ref": "http://example.com/x"}, r"/\$ref"),
        ({"$defs": {"x": {"if": {}}}}, r"/\$defs/x/if"),
        ({"required": ["x"], "properties": {"y": {}}, "additionalProperties": False}, "'x' is required"),
        ({"type": "string", "pattern": "(?<=a)b"}, "[Ll]ookbehind"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(constrainer, schema, named):
    with pytest.raises(ConstraintError, match=named) as refused:
        constrainer.json_schema(schema)
    assert "\n" not in str(refused.value)
    assert ".cc" not in str(refused.value)


def test_a_property_may_be_called_like_a_keyword(constrainer):
    constrainer.json_schema({"type": "object", "properties": {"not": {"type": "string"}, "if": {"type": "null"}}})


@pytest.mark.parametrize("pattern", ["(a", r"(a)\1", r"\p{Han}", "(?=a)b", "(?!a)b", "a^b", "^a$b"])
def test_expressions_that_cannot_be_compiled(constrainer, pattern):
    for make in (constrainer.regex, lambda pattern: constrainer.json_schema({"type": "string", "pattern": pattern})):
        with pytest.raises(ConstraintError, match=r"position|lookahead|start"):
            make(pattern)


def test_the_function_at_fault_is_named(constrainer):
    tool = {"type": "function", "function": {"name": "odd", "parameters": {"multipleOf": 3}}}
    for make in (constrainer.named_call, lambda tool: constrainer.required_calls([*TOOLS, tool])):
        with pytest.raises(ConstraintError, match="'odd': /multipleOf"):
            make(tool)


def test_a_source_that_is_too_large(constrainer):
    with pytest.raises(ConstraintError, match="longer"):
        constrainer.regex("a" * 300_000)


def test_an_id_outside_the_grammar_is_an_error(constrainer):
    grammar = constrainer.choice(["yes"])()
    grammar.mask()
    with pytest.raises(ValueError, match="outside"):
        grammar.accept(ord("n"))
