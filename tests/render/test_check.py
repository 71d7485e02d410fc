"""Every fault of a chat that no template is needed to see is named with its place, what is accepted and what came."""

from typing import Any

import pytest

from tokenline.fields import Path, dotted
from tokenline.render.chat_input import ChatInput
from tokenline.render.check import check_chat, check_ids, check_tools
from tokenline.render.errors import RenderError

USER = {"role": "user", "content": "a"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def said(chat: Any) -> tuple[Path, str, str]:
    """The place, message and code of the error of a chat."""
    with pytest.raises(RenderError) as caught:
        check_chat(chat)
    error = caught.value
    assert error.param == dotted(error.path)
    assert error.message == str(error)
    assert error.message.startswith(f"'{error.param}' ")
    assert error.message.endswith(".")
    assert "\n" not in error.message
    return error.path, error.message, error.code


def test_a_chat_with_every_field_passes() -> None:
    parts = [{"type": kind, "text": "x", "refusal": "x"} for kind in ("text", "input_text", "output_text", "refusal")]
    check_chat(
        ChatInput(
            [
                {"role": "system", "content": [*parts, "plain"], "unknown": object()},
                {"role": "user", "content": "a", "name": "me", "tool_calls": [], "audio": None, "function_call": None},
                {"role": "assistant", "content": None, "tool_calls": [CALL, {"function": {"name": "f"}}]},
                {"role": "tool", "content": "r", "tool_call_id": "c1"},
                {"role": "assistant", "content": None, "refusal": "no", "reasoning_content": "r", "tool_calls": None},
            ],
            [
                {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
                {"function": {"name": "g", "description": "d", "parameters": {}, "strict": True}},
            ],
            template_kwargs={"enable_thinking": False},
        )
    )


@pytest.mark.parametrize(
    ("messages", "param", "words", "code"),
    [
        (None, "messages", "is missing.", "missing"),
        ([], "messages", "must be a non-empty array of messages; got an array of 0.", "invalid_type"),
        ("hi", "messages", 'must be a non-empty array of messages; got "hi".', "invalid_type"),
        ({}, "messages", "must be a non-empty array of messages; got an object.", "invalid_type"),
        ([3], "messages[0]", "must be an object; got 3.", "invalid_type"),
        (["hi"], "messages[0]", 'must be an object; got "hi".', "invalid_type"),
        ([{}], "messages[0].role", "is missing.", "missing"),
        ([USER, {"content": "x"}], "messages[1].role", "is missing.", "missing"),
        (
            [{"role": "function", "name": "f", "content": "x"}],
            "messages[0].role",
            'must not be "function", which is deprecated; use "tool".',
            "unsupported_value",
        ),
        (
            [{**USER, "content": 5}],
            "messages[0].content",
            "must be a string or an array of text parts; got 5.",
            "invalid_type",
        ),
        (
            [{**USER, "content": {"type": "text", "text": "x"}}],
            "messages[0].content",
            "must be a string or an array of text parts; got an object.",
            "invalid_type",
        ),
        (
            [USER, {**USER, "content": [{"type": "text", "text": "x"}, IMAGE]}],
            "messages[1].content[1]",
            'must be a text part; got one of type "image_url".',
            "unsupported_value",
        ),
        ([{**USER, "content": [{}]}], "messages[0].content[0]", "must be a text part; got one of type null.", ""),
        ([{**USER, "content": [{"type": ["text"]}]}], "messages[0].content[0]", "got one of type an array of 1.", ""),
        ([{**USER, "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text", "must be a string", ""),
        ([{**USER, "content": [{"type": "text"}]}], "messages[0].content[0].text", "must be a string; got null.", ""),
        ([{**USER, "content": [{"type": "refusal"}]}], "messages[0].content[0].refusal", "must be a string", ""),
        ([{**USER, "content": [3]}], "messages[0].content[0]", "must be an object; got 3.", "invalid_type"),
        ([{**USER, "name": 3}], "messages[0].name", "must be a string; got 3.", "invalid_type"),
        ([USER, {"role": "tool", "content": "x", "tool_call_id": 3}], "messages[1].tool_call_id", "a string", ""),
        ([{"role": "assistant", "refusal": 3}], "messages[0].refusal", "must be a string; got 3.", ""),
        ([{**USER, "reasoning_content": 1}], "messages[0].reasoning_content", "must be a string; got 1.", ""),
        ([{**USER, "reasoning": []}], "messages[0].reasoning", "must be a string; got an array of 0.", ""),
        ([{**USER, "thinking": True}], "messages[0].thinking", "must be a string; got true.", ""),
        ([{**USER, "audio": {"id": "a"}}], "messages[0].audio", "is not supported", "unsupported_value"),
        (
            [USER, {"role": "assistant", "content": None, "function_call": {"name": "f"}}],
            "messages[1].function_call",
            "is not supported; use 'messages[1].tool_calls'.",
            "unsupported_value",
        ),
        ([{**USER, "tool_calls": [CALL]}], "messages[0].tool_calls", "is only for assistant messages.", ""),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls", 'array of tool calls; got "x".', ""),
        ([{"role": "assistant", "tool_calls": [CALL, 1]}], "messages[0].tool_calls[1]", "must be an object", ""),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}],
            "messages[0].tool_calls[0].type",
            'must be "function"; got "custom".',
            "unsupported_value",
        ),
        (
            [{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}],
            "messages[0].tool_calls[0].id",
            "must be a string; got 5.",
            "invalid_type",
        ),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function", "must be an object", ""),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
            "messages[0].tool_calls[0].function.name",
            'must be a non-empty string; got "".',
            "invalid_type",
        ),
    ],
)
def test_a_wrong_message(messages: Any, param: str, words: str, code: str) -> None:
    path, message, found = said(ChatInput(messages))
    assert dotted(path) == param
    assert words in message
    assert found == code or not code


@pytest.mark.parametrize(
    ("tools", "param", "words"),
    [
        ("x", "tools", 'must be an array of tools; got "x".'),
        ([3], "tools[0]", "must be an object; got 3."),
        ([{"type": "custom", "custom": {}}], "tools[0].type", 'must be "function"; got "custom".'),
        ([{"type": "function"}], "tools[0].function", "must be an object; got null."),
        ([{"name": "f"}], "tools[0].function", "must be an object"),
        ([{"function": {}}], "tools[0].function.name", "must be a non-empty string; got null."),
        ([{"function": {"name": ""}}], "tools[0].function.name", "must be a non-empty string"),
        ([{"function": {"name": "f", "description": 3}}], "tools[0].function.description", "must be a string"),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters", "must be an object (a JSON"),
        ([{"function": {"name": "f", "strict": 1}}], "tools[0].function.strict", "must be true or false; got 1."),
        ([{"function": {"name": "f"}}, None], "tools[1]", "must be an object; got null."),
    ],
)
def test_a_wrong_tool(tools: Any, param: str, words: str) -> None:
    path, message, _ = said(ChatInput([USER], tools))
    assert dotted(path) == param
    assert words in message
    with pytest.raises(RenderError, match=param.replace("[", r"\[")):
        check_tools(tools)


def test_what_a_template_may_be_given() -> None:
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message"):
        _, message, _ = said(ChatInput([USER], template_kwargs={name: []}))
        assert message == f"'chat_template_kwargs.{name}' is not allowed: '{name}' is a field of its own."
    path, message, _ = said(ChatInput([USER], template_kwargs=[]))  # type: ignore[arg-type]
    assert path == ("chat_template_kwargs",)
    assert "must be an object; got an array of 0." in message


def test_a_last_message_is_continued_or_followed() -> None:
    path, message, _ = said(ChatInput([USER], continue_final_message=True, add_generation_prompt=True))
    assert path == ("continue_final_message",)
    assert message.startswith("'continue_final_message' and 'add_generation_prompt' cannot both be true: ")


def test_a_message_is_in_the_words_of_whoever_sent_it() -> None:
    """A protocol whose JSON differs translates the places; the sentence stays."""
    with pytest.raises(RenderError) as caught:
        check_chat(ChatInput([{"role": "assistant", "function_call": {}}]))
    text = caught.value.text(lambda path: "/".join(map(str, path)))
    assert text == "'messages/0/function_call' is not supported; use 'messages/0/tool_calls'."


def test_what_came_is_shown_short() -> None:
    _, message, _ = said(ChatInput([{**USER, "name": {"x" * 1000: 1}}, USER]))
    assert message == "'messages[0].name' must be a string; got an object."
    _, message, _ = said(ChatInput([USER], "y" * 10_000))
    assert len(message) < 120


@pytest.mark.parametrize("bad", [-1, 600, 10**30, True, 1.0, "1", None, [1]])
def test_an_id_that_is_no_token(bad: Any) -> None:
    for path in (("prompt",), ("prompt", 2), ("tokens",)):
        with pytest.raises(RenderError, match=r"must be a token id, an integer from 0 to 599; got ") as caught:
            check_ids([0, 599, bad], 600, path)
        assert caught.value.path == (*path, 2)
        assert caught.value.code == ("invalid_value" if type(bad) is int else "invalid_type")
    check_ids([0, 599], 600, ("prompt",))
