"""The white space rule of layer 4, and the bookkeeping of calls."""

import pytest

from tests.parse.fake_tokens import content as content_of
from tokenline.parse.delta import ReasoningDelta, ToolCallDelta, join
from tokenline.parse.message import Message, assemble
from tokenline.parse.sink import Sink


def content(*parts: str) -> str:
    """Content of these parts; "|" is a tool call."""
    sink = Sink()
    for part in parts:
        if part == "|":
            sink.begin_call("f")
            sink.arguments("{}")
            sink.end_call()
        else:
            sink.content(part)
    sink.finish()
    return content_of(sink.take())


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["  a ", "\n"], "  a \n"),  # no block: nothing is touched
        (["\n", "\n"], "\n\n"),
        (["On it.\n", "|"], "On it."),
        (["|", "\n", "|", "\n"], ""),
        (["|", "\n", "Done.", "\n"], "Done.\n"),
        (["On it.\n", "|", "\n", "Done."], "On it.\n\nDone."),
        (["\n", "|"], ""),
        (["On it.", "|", "Done."], "On it.Done."),
        (["a\u3000", "|"], "a\u3000"),  # other white space is text
    ],
)
def test_white_space_beside_a_block_is_no_content(parts: list[str], text: str) -> None:
    assert content(*parts) == text


def test_reasoning_is_stripped_and_its_parts_are_kept_apart() -> None:
    sink = Sink()
    for part in ("\n one ", "two \n"):
        sink.begin_reasoning()
        assert sink.in_reasoning
        sink.reasoning(part)
        sink.end_reasoning()
    sink.finish()
    assert not sink.in_reasoning
    assert join(sink.take()) == [ReasoningDelta("one two")]


def test_a_call_that_was_dropped_keeps_its_index_and_is_no_part_of_the_message() -> None:
    sink = Sink(new_id=iter(["x", "y"]).__next__)
    sink.begin_call("broken")
    sink.arguments('{"a"')
    assert sink.drop_call(cut=False)
    assert not sink.drop_call(cut=False)
    sink.begin_call("whole")
    sink.arguments("{}")
    sink.end_call()
    sink.finish()
    deltas = join(sink.take())
    assert deltas == [
        ToolCallDelta(0, "x", "broken", '{"a"'),
        ToolCallDelta(1, "y", "whole", "{}"),
    ]
    assert sink.complete_calls == [1]
    message = assemble(deltas, sink.message_calls)
    assert [call.name for call in message.tool_calls] == ["whole"]


def test_an_empty_answer_has_empty_content() -> None:
    assert assemble([], ()) == Message("", None)
    assert assemble([ReasoningDelta("a")], ()) == Message(None, "a")
