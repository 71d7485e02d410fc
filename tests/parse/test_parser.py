"""Markers that are control tokens: the model's token counts, the same characters spelled by it do not."""

from tests.parse.fake_tokens import Vocabulary
from tokenline.parse.delta import Delta
from tokenline.parse.message import Message
from tokenline.parse.registry import make_parser
from tokenline.parse.stream import EndReason, OutputStream


def generate(
    pieces: list[str],
    special: set[int],
    tool_parser: str | None,
    reasoning_parser: str | None = None,
    prompt_end: str = "",
) -> tuple[Message, OutputStream]:
    """A stream whose parser knows the vocabulary's control tokens, as the server makes it."""
    tokens = Vocabulary(pieces, special=special)
    control_tokens = {pieces[index] for index in special}
    parser = make_parser(tool_parser, reasoning_parser, control_tokens=control_tokens, prompt_end=prompt_end)
    end_ids = {index for index in special if pieces[index] in ("</s>", "<|call|>", "<|return|>", "<|im_end|>")}
    stream = OutputStream(tokens, parser=parser, end_ids=end_ids)
    deltas: list[Delta] = []
    for token_id in tokens.ids:
        deltas += stream.feed([token_id])
    deltas += stream.finish(cut=False)
    return stream.message(deltas), stream


def test_mistral_calls_behind_control_tokens() -> None:
    pieces = ["Ok", "[TOOL_CALLS]", "wea", "ther", "[ARGS]", '{"city"', ': "Oslo"}', "</s>"]
    message, stream = generate(pieces, {1, 4, 7}, "mistral")
    assert message.content == "Ok"
    (call,) = message.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    assert len(call.id) == 9
    assert call.id.isalnum()
    assert stream.end_reason is EndReason.TOOL_CALLS


def test_the_spelling_of_a_control_token_is_text() -> None:
    pieces = ["[TOOL", "_CALLS]", "f[ARGS]{}", " is how I would call", "</s>"]
    tokens = ["[TOOL_CALLS]", "[ARGS]"]
    special = {4, 5, 6}
    message, stream = generate([*pieces, *tokens], special, "mistral")
    assert message.content == "[TOOL_CALLS]f[ARGS]{} is how I would call"
    assert message.tool_calls == ()
    assert stream.end_reason is EndReason.END_OF_TURN


def test_a_control_token_inside_of_arguments_is_part_of_the_string() -> None:
    pieces = ["[TOOL_CALLS]", "say", "[ARGS]", '{"text": "a ', "[ARGS]", ' b"}', "</s>"]
    message, _ = generate(pieces, {0, 2, 4, 6}, "mistral")
    assert message.tool_calls[0].arguments == '{"text": "a [ARGS] b"}'


def test_other_control_tokens_never_come_out() -> None:
    pieces = ["Hello", "<|endoftext|>", "[TOOL_CALLS]", " there", "<|im_end|>"]
    message, _ = generate(pieces, {1, 2, 4}, "hermes", "qwen3")
    assert message.content == "Hello there"


def test_harmony_with_all_markers_as_control_tokens() -> None:
    pieces = [
        "<|channel|>",
        "analysis",
        "<|message|>",
        "Weather",
        "?",
        "<|end|>",
        "<|start|>",
        "assistant",
        "<|channel|>",
    ]
    pieces += [
        "comment",
        "ary",
        " to=functions.weather ",
        "<|constrain|>",
        "json",
        "<|message|>",
        '{"city":',
        '"Oslo"}',
    ]
    pieces += ["<|call|>"]
    special = {index for index, piece in enumerate(pieces) if piece.startswith("<|")}
    message, stream = generate(pieces, special, "openai", "openai_gptoss")
    assert message.reasoning == "Weather?"
    assert message.content is None
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("weather", '{"city":"Oslo"}')]
    assert stream.end_reason is EndReason.TOOL_CALLS
    assert stream.completion_tokens == len(pieces)
    assert stream.reasoning_tokens == 4  # from <|message|> to the <|end|> that closes it


def test_reasoning_tokens_are_counted_with_their_markers() -> None:
    pieces = ["<think>", "a", " b", "</think>", "4", "<|im_end|>"]
    _, stream = generate(pieces, {5}, None, "qwen3")
    assert stream.reasoning_tokens == 4
    _, stream = generate(["a", "</think>", "4"], set(), None, "qwen3", prompt_end="<think>\n")
    assert stream.reasoning_tokens == 2


def test_a_stop_string_in_the_middle_of_a_call_leaves_its_beginning() -> None:
    tokens = Vocabulary(['<tool_call>{"name": "f", "arguments": {"a": "b', "STOP", '"}}</tool_call>'])
    stream = OutputStream(tokens, stop=["STOP"], parser=make_parser("hermes", None))
    deltas = stream.feed(tokens.ids) + stream.finish(cut=False)
    assert stream.end_reason is EndReason.STOP_STRING
    (call,) = stream.message(deltas).tool_calls
    assert (call.name, call.arguments) == ("f", '{"a": "b')


def test_a_control_token_does_not_complete_a_stop_string() -> None:
    tokens = Vocabulary(["a[", "[TOOL_CALLS]", 'f[ARGS]{"x": 1}'], special={1})
    stream = OutputStream(tokens, stop=["[[T"], parser=make_parser("mistral", None))
    message = stream.message(stream.feed(tokens.ids) + stream.finish(cut=False))
    assert message.content == "a["
    assert [call.name for call in message.tool_calls] == ["f"]
