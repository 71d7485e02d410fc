"""What users of LLM servers have reported as broken in tool calls and reasoning, as far as the parsers decide it."""

import json
from typing import Any

from tests.parse.answers import answer, every_cut, run
from tests.parse.fake_tokens import Vocabulary
from tokenline.parse.delta import ContentDelta, Delta, ToolCallDelta
from tokenline.parse.registry import make_parser
from tokenline.parse.stream import EndReason, OutputStream


def hermes(**options: Any):
    return make_parser("hermes", None, **options)


def test_the_last_brace_after_a_number() -> None:
    pieces = ["<tool_call>", '\n{"name": "get_user", "arguments": {"id": 42', "}}\n</tool_call>"]
    got = answer(hermes(), pieces)
    assert got == every_cut(hermes, "".join(pieces))
    assert got.calls == [("get_user", '{"id": 42}')]
    assert got.content is None


def test_nested_braces_and_a_brace_in_a_string() -> None:
    text = '[TOOL_CALLS]plan[ARGS]{"opts": {"inner": {"x": 1}}, "tag": "}"}'
    got = every_cut(lambda: make_parser("mistral", None), text)
    assert got.calls == [("plan", '{"opts": {"inner": {"x": 1}}, "tag": "}"}')]
    assert got.content is None


def test_two_mistral_calls() -> None:
    text = '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'
    got = every_cut(lambda: make_parser("mistral", None), text)
    assert got.calls == [("weather", '{"city": "Oslo"}'), ("weather", '{"city": "Rome"}')]
    assert got.content is None


def test_the_schema_decides_the_types_of_xml_parameters() -> None:
    properties = {
        "limit": {"type": "number"},
        "deep": {"type": "boolean"},
        "code": {"type": "string"},
        "where": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    }
    tools = [{"type": "function", "function": {"name": "scan", "parameters": {"properties": properties}}}]
    text = (
        "<tool_call>\n<function=scan>\n<parameter=limit>\n7\n</parameter>\n<parameter=deep>\nTrue\n</parameter>\n"
        '<parameter=code>\n00417\n</parameter>\n<parameter=where>\n{"port": "Ghent"}\n</parameter>\n</function>\n'
        "</tool_call>"
    )
    got = every_cut(lambda: make_parser("qwen3_coder", None, tools=tools), text)
    assert got.parsed == [("scan", {"limit": 7, "deep": True, "code": "00417", "where": {"port": "Ghent"}})]


def test_a_value_that_does_not_fit_its_type_is_handed_over() -> None:
    function = {"name": "log_day", "parameters": {"type": "object", "properties": {"day": {"type": "integer"}}}}
    text = "<tool_call>\n<function=log_day>\n<parameter=day>\nnext friday\n</parameter>\n</function>\n</tool_call>"
    got = every_cut(lambda: make_parser("qwen3_coder", None, tools=[{"function": function}]), text)
    assert got.parsed == [("log_day", {"day": "next friday"})]


def test_the_finish_reason_remembers_the_call() -> None:
    text = 'On it.\n<tool_call>\n{"name": "look", "arguments": {"p": "."}}\n</tool_call>'
    for pieces in ([text], list(text)):
        tokens = Vocabulary(pieces)
        stream = OutputStream(tokens, parser=hermes())
        deltas: list[Delta] = []
        for token_id in tokens.ids:
            deltas += stream.feed([token_id])
        deltas += stream.finish(cut=False)
        assert stream.end_reason is EndReason.TOOL_CALLS
        message = stream.message(deltas)
        assert message.content == "On it."
        assert [(call.name, call.arguments) for call in message.tool_calls] == [("look", '{"p": "."}')]


def test_arguments_are_a_string_and_the_id_is_not_empty() -> None:
    message, _ = run(hermes(), ['<tool_call>\n{"name": "look", "arguments": {"p": "."}}\n</tool_call>'])
    (call,) = message.tool_calls
    assert isinstance(call.arguments, str)
    assert call.id


def test_a_call_that_was_cut_is_never_delivered_as_finished() -> None:
    text = '<tool_call>\n{"name": "search", "arguments": {"q": "long que'
    got = every_cut(hermes, text, cut=True)
    assert got.calls == []
    assert got.whole == got.begun == [("search", '{"q": "long que')]  # what was sent stays, nothing is added
    tokens = Vocabulary(list(text))
    stream = OutputStream(tokens, parser=hermes())
    deltas = stream.feed(tokens.ids) + stream.finish(cut=True)
    assert stream.end_reason is EndReason.LENGTH
    (call,) = stream.message(deltas).tool_calls
    assert (call.name, call.arguments) == ("search", '{"q": "long que')  # the whole answer has what was streamed


def test_two_hermes_calls() -> None:
    text = (
        '<tool_call>\n{"name": "a", "arguments": {"n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "a", "arguments": {"n": 2}}\n</tool_call>'
    )
    got = every_cut(hermes, text)
    assert got.calls == [("a", '{"n": 1}'), ("a", '{"n": 2}')]
    assert got.content is None


def test_id_and_name_come_once() -> None:
    pieces = ['<tool_call>\n{"name": "weather", "arguments": {"ci', 'ty": "Os', 'lo"}}\n</tool_call>']
    _, deltas = run(hermes(), pieces)
    first, *later = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert (first.index, first.name) == (0, "weather")
    assert first.id
    assert later
    assert all((call.index, call.id, call.name) == (0, None, None) for call in later)
    assert json.loads(first.arguments + "".join(call.arguments for call in later)) == {"city": "Oslo"}


def test_the_prompt_has_opened_the_think_block() -> None:
    for name in ("qwen3", "deepseek_r1"):
        got = every_cut(
            lambda name=name: make_parser(None, name, prompt_end="<|im_start|>assistant\n<think>\n"),
            "Two and two.\n</think>\n\n4",
        )
        assert got[:2] == ("4", "Two and two.")


def test_a_cut_in_the_think_block_is_no_answer() -> None:
    text = "First I list the cases, then"
    got = every_cut(lambda: make_parser(None, "qwen3", prompt_end="<think>\n"), text, cut=True)
    assert got[:2] == (None, text)
    tokens = Vocabulary(list(text))
    stream = OutputStream(tokens, parser=make_parser(None, "qwen3", prompt_end="<think>\n"))
    deltas = stream.feed(tokens.ids) + stream.finish(cut=True)
    assert not any(isinstance(delta, ContentDelta) for delta in deltas)
    assert stream.end_reason is EndReason.LENGTH


def test_a_literal_tag_in_the_answer_is_text() -> None:
    text = "<think>\nThey ask about markup.\n</think>\n\nThe tag <think> opens hidden reasoning."
    got = every_cut(lambda: make_parser(None, "qwen3"), text)
    assert got[:2] == ("The tag <think> opens hidden reasoning.", "They ask about markup.")


def test_the_first_closing_tag_wins_in_both_modes() -> None:
    pieces = ["<think>a</thi", "nk> b </think", "> c"]
    for name in ("qwen3", "deepseek_r1"):
        got = every_cut(lambda name=name: make_parser(None, name), "".join(pieces))
        assert answer(make_parser(None, name), pieces) == got
        assert got[:2] == ("b </think> c", "a")
