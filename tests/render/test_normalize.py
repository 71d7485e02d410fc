"""What clients send becomes what the template wants, or is refused with the field's name."""

from typing import Any

import pytest

from tests.sources import llama_cpp_source
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import CHATML, ChatRenderer
from tokenline.render.errors import RenderError
from tokenline.render.needs import CallStyle, NoContent

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = llama_cpp_source() / "templates"

# a toy template that refuses roles it does not know
REF_CHATML = """
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('unknown role ' ~ message.role) -}}{%- endif -%}
{{- '<|im_start|>' ~ ('user' if message.role == 'tool' else message.role) ~ '\n' -}}
{%- if message.role == 'system' and tools -%}
{{- message.content ~ '\n\n<tools>\n' -}}{%- for t in tools -%}{{- t | tojson ~ '\n' -}}{%- endfor -%}{{- '</tools>' -}}
{%- elif message.role == 'tool' -%}
{{- '<tool_response>\n' ~ message.content ~ '\n</tool_response>' -}}
{%- else -%}{{- message.content or '' -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- ('\n' if message.content or not loop.first) ~ '<tool_call>\n' -}}
{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson ~ '\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


@pytest.fixture(scope="module")
def ref() -> ChatRenderer:
    return ChatRenderer({"default": REF_CHATML}, NAMED)


def collection(name: str) -> ChatRenderer:
    return ChatRenderer({"default": (TEMPLATES / f"{name}.jinja").read_text("utf-8")}, NAMED)


def text(renderer: ChatRenderer, *messages: Any, **more: Any) -> str:
    return renderer.render(ChatInput(list(messages), **more)).text


def call(arguments: Any, name: str = "weather", **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", **more, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


USER = {"role": "user", "content": "Weather in Ghent?"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "9 C"}


def test_developer_is_system_where_the_template_does_not_know_it(ref: ChatRenderer) -> None:
    hi = {"role": "user", "content": "Hi"}
    developer = {"role": "developer", "content": "Be brief."}
    assert text(ref, developer, hi) == text(ref, {"role": "system", "content": "Be brief."}, hi)
    assert "<|start|>developer<|message|># Instructions" in text(collection("openai-gpt-oss-120b"), developer, hi)


def test_neighbours_that_the_template_does_not_take_are_named() -> None:
    mistral = collection("mistralai-Mistral-Nemo-Instruct-2407")
    messages = [
        {"role": "system", "content": "Kitchen helper."},
        {"role": "user", "content": "Boil an egg?"},
        {"role": "user", "content": "And rice?"},
    ]
    with pytest.raises(RenderError, match=r"^'messages\[2\]' cannot be rendered\. .*alternate") as caught:
        text(mistral, *messages)
    assert caught.value.param == "messages[2]"
    assert "And rice?" in text(collection("Qwen-Qwen3-0.6B"), *messages)


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_a_message_with_tool_calls_is_never_dropped(ref: ChatRenderer, content: dict[str, Any]) -> None:
    rendered = text(ref, USER, call('{"city": "Ghent"}', **content), RESULT)
    order = [rendered.index(piece) for piece in ("weather", "Ghent", "<tool_response>", "9 C")]
    assert order[1] < order[2] < order[3]
    assert rendered.count("<|im_start|>assistant") == 2
    for name in ("Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct", "Qwen-QwQ-32B"):
        rendered = text(collection(name), USER, call('{"city": "Ghent"}', **content), RESULT)
        assert '{"city": "Ghent"}' in rendered
        assert "None" not in rendered


def test_calls_are_written_as_hermes_does_where_a_template_knows_no_format() -> None:
    chatml = ChatRenderer({"default": CHATML}, NAMED)
    assert chatml.needs().calls is CallStyle.TAGGED
    written = '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>'
    assert written in text(chatml, USER, call("{}"), RESULT)


def test_calls_are_written_as_the_template_asks_for_them_where_it_does_not_write_them() -> None:
    granite = collection("ibm-granite-granite-3.3-2B-Instruct")
    assert granite.needs().calls is CallStyle.LISTED
    written = '<|tool_call|>[{"name": "weather", "arguments": {"city": "Ghent"}}]<|end_of_text|>'
    assert written in text(granite, USER, call('{"city":"Ghent"}'), RESULT)
    tagged = ChatRenderer({"default": "{# answer with <tool_call> #}" + CHATML}, NAMED)
    assert tagged.needs().calls is CallStyle.TAGGED
    written = (
        'assistant\nLook:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ghent"}}\n</tool_call><|im_end|>'
    )
    assert written in text(tagged, USER, call('{"city":"Ghent"}', content="Look:"), RESULT)


def test_the_templates_default_system_text(ref: ChatRenderer) -> None:
    default = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a default helper.<|im_end|>\n{% endif %}"
    )
    renderer = ChatRenderer({"default": default + CHATML}, NAMED)
    hi = {"role": "user", "content": "Hi"}
    bare, same, empty = (
        text(renderer, *messages, hi)
        for messages in (
            [],
            [{"role": "system", "content": "You are a default helper."}],
            [{"role": "system", "content": ""}],
        )
    )
    assert bare == same
    assert empty != bare


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('["a"]', "JSON object"),
        ('{"a": ', "not valid JSON"),
        ("7", "JSON object"),
        (["a"], "JSON object"),
        (True, "JSON object"),
    ],
)
def test_arguments_that_are_no_object_are_named(ref: ChatRenderer, arguments: Any, error: str) -> None:
    with pytest.raises(RenderError, match=error) as caught:
        text(ref, USER, call(arguments), RESULT)
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("arguments", ["", "  ", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(ref: ChatRenderer, arguments: Any) -> None:
    assert '"arguments": {}}' in text(ref, USER, call(arguments), RESULT)


def test_arguments_keep_their_text_where_the_template_copies_it() -> None:
    odd = '{ "city":"Gh\\u0065nt" }'
    assert odd in text(collection("Qwen-Qwen3-0.6B"), USER, call(odd), RESULT)
    assert '{"city": "Ghent"}' in text(collection("Qwen-Qwen2.5-7B-Instruct"), USER, call(odd), RESULT)
    assert '{"city": "Ghent"}' in text(collection("Qwen-Qwen3-0.6B"), USER, call({"city": "Ghent"}), RESULT)


def test_parts_are_joined_or_given_as_they_are() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    message = {"role": "user", "content": parts}
    assert "user\none\ntwo\nthree<" in text(ChatRenderer({"default": CHATML}, NAMED), message)
    assert "onetwothree" in text(collection("MiniMax-M2"), message)
    assert {"user", "assistant"} <= collection("MiniMax-M2").needs().parts


def test_a_refusal_is_what_the_assistant_said(ref: ChatRenderer) -> None:
    assert "assistant\nNo.<|im_end|>" in text(ref, USER, {"role": "assistant", "content": None, "refusal": "No."}, USER)


def test_what_a_template_needs_is_found_out() -> None:
    needs = collection("deepseek-ai-DeepSeek-R1-Distill-Llama-8B").needs()
    assert needs.arguments_text
    assert needs.no_content is NoContent.NULL
    assert "tool" not in collection("microsoft-Phi-3.5-mini-instruct").needs().roles
    assert "ipython" in collection("meta-llama-Llama-3.1-8B-Instruct").needs().roles


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([{"role": "wizard", "content": "x"}], "messages[0].role", '; got "wizard".'),
        ([{"role": 7, "content": "x"}], "messages[0].role", "; got 7."),
        ([{"role": None, "content": "x"}], "messages[0].role", "; got null."),
        ([{"role": ["user"], "content": "x"}], "messages[0].role", "; got an array of 1."),
        ([{"role": "user"}], "messages[0].content", "is missing."),
        ([USER, {"role": "user", "content": None}], "messages[1].content", "is missing."),
        ([{"role": "user", "content": 5}], "messages[0].content", "must be a string or an array of text parts"),
    ],
)
def test_bad_messages_are_named(ref: ChatRenderer, messages: Any, param: str, words: str) -> None:
    with pytest.raises(RenderError) as caught:
        ref.render(ChatInput(messages))
    assert caught.value.param == param
    assert words in caught.value.message
    if param.endswith("role"):
        assert 'must be one of "system", "developer", "user", "assistant", "tool"; got' in caught.value.message


def test_tools_are_checked(ref: ChatRenderer) -> None:
    with pytest.raises(RenderError) as caught:
        ref.render(ChatInput([USER], [{"type": "function"}]))
    assert caught.value.param == "tools[0].function"


def test_no_tools_and_an_empty_list_are_the_same() -> None:
    llama = collection("meta-llama-Llama-3.1-8B-Instruct")
    assert text(llama, USER, tools=[]) == text(llama, USER)


def test_template_kwargs_reach_the_template_and_cannot_replace_the_messages() -> None:
    qwen = collection("Qwen-Qwen3-0.6B")
    assert text(qwen, USER, template_kwargs={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(RenderError) as caught:
        text(qwen, USER, template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs.messages"


def test_continue_final_message(ref: ChatRenderer) -> None:
    begun = {"role": "assistant", "content": "It is "}
    go_on = {"add_generation_prompt": False, "continue_final_message": True}
    assert text(ref, USER, begun, **go_on).endswith("<|im_start|>assistant\nIt is ")
    assert text(collection("meta-llama-Llama-3.1-8B-Instruct"), USER, begun, **go_on).endswith("\n\nIt is")
    with pytest.raises(RenderError) as caught:
        text(ref, USER, begun, continue_final_message=True)
    assert caught.value.param == "continue_final_message"
    with pytest.raises(RenderError) as caught:
        text(ref, USER, call("{}"), **go_on)
    assert caught.value.param == "continue_final_message"


def test_deep_nesting_is_refused(ref: ChatRenderer) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for arguments in ({"x": deep}, '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        for traced in (False, True):
            with pytest.raises(RenderError, match=r"nested too deeply|valid JSON"):
                ref.render(ChatInput([USER, call(arguments), RESULT]), traced=traced)
