"""Each parser reads the same from token ids, where markers are control tokens or have some in them, as from text."""

import re

import pytest

from tests.parse.fake_tokens import Vocabulary
from tests.parse.test_registry import FAMILIES, Call, tools_for
from tokenline.parse.message import Message
from tokenline.parse.registry import make_parser, tool_parsers
from tokenline.parse.stream import OutputStream

CALLS: list[Call] = [("f", {"a": "x y"}), ("g", {"b": [1, 2]})]
TOKEN = re.compile(
    r"<\|[^|<>]*\|>|<\|[a-z_]+>|<[a-z_]+\|>|<｜[^｜]*｜>|\[[A-Z_]+\]|</?[a-z_:]+>|\]<\]minimax\[>\[|[^<\[\]]+|."
)


def message(name: str, pieces: list[str], control: set[str], reasoning: str | None = None) -> Message:
    """The answer of a vocabulary with these control tokens, one id at a time."""
    special = {index for index, piece in enumerate(pieces) if piece in control}
    tokens = Vocabulary(pieces, special=special)
    parser = make_parser(name, reasoning, tools=tools_for(CALLS), control_tokens=control)
    stream = OutputStream(tokens, parser=parser)
    deltas = [delta for token_id in tokens.ids for delta in stream.feed([token_id])]
    return stream.message(deltas + stream.finish(cut=False))


@pytest.mark.parametrize("name", tool_parsers())
def test_markers_of_control_tokens_are_found(name: str) -> None:
    pieces = TOKEN.findall("Well.\n" + FAMILIES[name].write(CALLS))
    markers = make_parser(name, None).control_tokens
    # The vocabulary's control tokens: all that the markers are, or are made of.
    control = {piece for piece in pieces if len(piece) > 1 and any(piece in marker for marker in markers)}
    control -= {"f", "g", "function", "call", "to=functions."}
    got = message(name, pieces, {piece for piece in control if not piece.isalnum() and not piece[0].isalpha()})
    plain = message(name, pieces, set())
    assert [(call.name, call.arguments) for call in got.tool_calls] == [
        (call.name, call.arguments) for call in plain.tool_calls
    ]
    assert len(got.tool_calls) == 2
    assert got.content == plain.content


def test_gigachat_text_and_a_control_token_in_one_marker() -> None:
    pieces = [
        "Ok. ",
        "function",
        " call",
        "<|role_sep|>",
        "\n",
        '{"name": "f", ',
        '"arguments": {"a": "x"}}',
        "<|message_sep|>",
    ]
    got = message("gigachat3", pieces, {"<|role_sep|>", "<|message_sep|>"})
    assert [(call.name, call.arguments) for call in got.tool_calls] == [("f", '{"a": "x"}')]
    assert got.content == "Ok."
    spelled = ["function call", "<|role", "_sep|>", '{"name": "f", "arguments": {}}']  # by ordinary ids: text
    assert message("gigachat3", spelled, {"<|role_sep|>"}).tool_calls == ()


def test_gemma_thoughts_open_with_a_control_token_and_a_word() -> None:
    pieces = [
        "<|channel>",
        "thought",
        "\nhm",
        "<channel|>",
        "<|tool_call>",
        "call:f{a:",
        '<|"|>',
        "x",
        '<|"|>',
        "}",
        "<tool_call|>",
    ]
    control = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'}
    got = message("gemma4", pieces, control, "gemma4")
    assert got.reasoning == "hm"
    assert got.content is None
    assert [(call.name, call.arguments) for call in got.tool_calls] == [("f", '{"a": "x"}')]
