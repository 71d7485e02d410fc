"""What a template wants is found out by trying it, and a request reaches the model whole: `r2-` cases of layer 2."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.render.models import template_source
from tests.sources import template_files
from tokenline.parse.delta import ToolCallDelta
from tokenline.parse.registry import detect, make_parser
from tokenline.render.call_ids import nine_characters
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import CHATML, ChatRenderer
from tokenline.render.errors import RenderError
from tokenline.render.needs import CallStyle, IdForm

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "q"}
OPAQUE = "call_0123456789abcdefABCDEF01"


def collection(name: str) -> ChatRenderer:
    return ChatRenderer({"default": template_source(name)}, NAMED)


def text(renderer: ChatRenderer, *messages: Any, **more: Any) -> str:
    chat = ChatInput(list(messages), **more)
    plain = renderer.render(chat, now=None).text
    assert renderer.render(chat, traced=True).text == plain
    return plain


def tool_call(id: str, city: str, name: str = "get_weather") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps({"city": city})}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **more, "tool_calls": list(calls)}


def result(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def tool(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "ping", **members}}


def in_order(rendered: str, pieces: Iterable[str]) -> bool:
    at = 0
    for piece in pieces:
        at = rendered.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


# --- what the server answers it takes back ---------------------------------------------------------------------------

TWO = calling(tool_call("a12345678", "Oslo"), tool_call("b12345678", "Rome"))


@pytest.mark.parametrize(
    "name", ["meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b", "GigaChat3-10B-A1.8B", "Qwen-Qwen3-0.6B"]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_two_calls_are_taken_back_each_with_its_result(name: str, swapped: bool) -> None:  # r2-14
    results = [result("a12345678", "nine"), result("b12345678", "thirty")]
    renderer = collection(name)
    rendered = text(renderer, USER, TWO, *(reversed(results) if swapped else results))
    for piece in ("Oslo", "Rome", "nine", "thirty"):
        assert piece in rendered
    if renderer.needs().single_calls:
        assert in_order(rendered, ["Oslo", "nine", "Rome", "thirty"])


def test_every_template_shows_two_calls_or_says_that_it_cannot() -> None:
    refused: dict[str, str] = {}
    for file in template_files():
        renderer = ChatRenderer({"default": file.read_text("utf-8")}, NAMED)
        try:
            rendered = renderer.render(
                ChatInput(
                    [USER, TWO, result("a12345678", "nine"), result("b12345678", "thirty")], [tool(description="d")]
                )
            ).text
        except RenderError as error:
            refused[file.stem] = error.message
            continue
        assert all(piece in rendered for piece in ("Oslo", "Rome", "nine", "thirty", "ping")), file.stem
    assert all("firefunction" in name or "command-r-plus" in name for name in refused), refused


@pytest.mark.parametrize("name", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"])
def test_any_id_is_taken_and_becomes_the_same_every_turn(name: str) -> None:  # r2-16
    renderer = collection(name)
    assert renderer.needs().ids is IdForm.NINE
    chat = [USER, calling(tool_call(OPAQUE, "Oslo")), result(OPAQUE, "9")]
    rendered = text(renderer, *chat)
    assert rendered.count(nine_characters(OPAQUE)) == 2
    assert OPAQUE not in rendered
    assert text(renderer, *chat, {"role": "assistant", "content": "Nine."}, USER).count(nine_characters(OPAQUE)) == 2
    assert "abcdefghi" in text(renderer, USER, calling(tool_call("abcdefghi", "Oslo")), result("abcdefghi", "9"))


def test_ids_are_left_alone_where_any_will_do() -> None:
    assert OPAQUE in text(
        collection("unsloth-Apriel-1.5"), USER, calling(tool_call(OPAQUE, "Oslo")), result(OPAQUE, "9")
    )


def test_an_id_carries_the_name_where_nothing_else_does() -> None:  # as in Kimi K2's own template
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.tool_call_id or '' }}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}<{{ c.id }}>{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    renderer = ChatRenderer({"default": source}, NAMED)
    assert renderer.needs().ids is IdForm.NAMED
    rendered = text(renderer, USER, calling(tool_call(OPAQUE, "Oslo")), result(OPAQUE, "9"))
    assert rendered.count("functions.get_weather:0") == 2
    own = "functions.get_weather:7"
    assert text(renderer, USER, calling(tool_call(own, "Oslo")), result(own, "9")).count(own) == 2


def test_a_result_without_a_name_is_found_by_its_id() -> None:  # r2-23
    rendered = text(
        collection("google-gemma-4-31B-it"), USER, calling(tool_call("abcdefghi", "Oslo")), result("abcdefghi", "9 deg")
    )
    assert "response:get_weather{" in rendered


# --- nothing vanishes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "Let me look."])
@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "meta-llama-Llama-3.1-8B-Instruct",
        "openai-gpt-oss-120b",
        "MiniMax-M1",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "Mistral-Small-3.2-24B-Instruct-2506",
    ],
)
def test_neither_calls_nor_the_text_beside_them_are_lost(name: str, content: str | None) -> None:
    message = calling(tool_call("a12345678", "Oslo"), content=content)
    for more in ([], [{"role": "assistant", "content": "Nine."}, USER]):
        rendered = text(collection(name), USER, message, result("a12345678", "nine"), *more)
        assert in_order(rendered, [content or "", "get_weather", "Oslo", "nine"])
        assert "None" not in rendered


def test_text_beside_a_call_stands_where_the_model_wrote_it() -> None:
    message = calling(tool_call("a12345678", "Oslo"), content="Let me look.")
    rendered = text(collection("mistralai-Mistral-Nemo-Instruct-2407"), USER, message, result("a12345678", "nine"))
    assert '[INST]q[/INST]Let me look.[TOOL_CALLS][{"name": "get_weather", ' in rendered


def test_text_and_reasoning_beside_a_call_are_taken_together() -> None:
    message = calling(tool_call("a12345678", "Oslo"), content="Let me look.", reasoning_content="Hm.")
    assert "Let me look." in text(collection("openai-gpt-oss-120b"), USER, message, result("a12345678", "nine"))


def test_what_a_template_leaves_out_is_named() -> None:
    source = "{% for m in messages if m.role != 'assistant' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(RenderError, match="is left out by this model's chat template") as caught:
        text(ChatRenderer({"default": source}, NAMED), USER, {"role": "assistant", "content": "An answer."}, USER)
    assert caught.value.param == "messages[1].content"


@pytest.mark.parametrize(
    "name", ["openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct", "Qwen3.5-4B", "MiniMax-M2"]
)
def test_several_system_messages_all_arrive(name: str) -> None:
    systems = [{"role": role, "content": f"Rule of the {role}."} for role in ("system", "developer")]
    rendered = text(collection(name), *systems, USER)
    assert in_order(rendered, [system["content"] for system in systems])


def test_a_later_system_message_that_a_template_hides_becomes_the_users() -> None:
    late = {"role": "system", "content": "Answer in French."}
    rendered = text(collection("openai-gpt-oss-120b"), USER, {"role": "assistant", "content": "a"}, late, USER)
    assert "<|start|>user<|message|>Answer in French.\n\nq<|end|>" in rendered


def test_a_system_message_stays_in_a_loop_of_calls() -> None:
    system = {"role": "system", "content": "Be brief."}
    chat = [system, USER, calling(tool_call("a12345678", "Oslo")), result("a12345678", "nine")]
    assert "Be brief." in text(collection("mistralai-Mistral-Nemo-Instruct-2407"), *chat)


def test_a_message_that_ends_in_calls_cannot_be_continued() -> None:
    chat = ChatInput([USER, calling(tool_call("a", "Oslo"), content="x")], None, False, True)
    for name in ("Qwen-Qwen3-0.6B", "LFM2-8B-A1B", "meta-llama-Llama-3.1-8B-Instruct"):
        with pytest.raises(RenderError) as caught:
            collection(name).render(chat)
        assert caught.value.param == "continue_final_message"


# --- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "HuggingFaceTB-SmolLM3-3B",
        "deepseek-ai-DeepSeek-V3.1",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "google-gemma-2-2b-it",
    ],
)
@pytest.mark.parametrize("system", [False, True])
def test_tools_are_shown_by_templates_that_do_not_read_them(name: str, system: bool) -> None:  # r2-19
    if system and name == "google-gemma-2-2b-it":
        pytest.skip("refuses any system message")
    renderer = collection(name)
    messages = [{"role": "system", "content": "Be brief."}, USER] if system else [USER]
    rendered = text(renderer, *messages, tools=[tool(description="answers pong", parameters={"type": "object"})])
    assert '"name": "ping"' in rendered
    assert "answers pong" in rendered
    assert "ping" not in text(renderer, *messages)
    if system:
        assert "Be brief." in rendered
    shown = renderer.needs().call_example or '<tool_call>\n{"name": "FUNCTION_NAME"'
    assert shown in rendered
    parser = detect(renderer.template().source)[0]
    if parser is not None:  # what the model is asked to write is what the server reads
        (call,) = parsed(parser, shown)
        assert call == {"name": "FUNCTION_NAME", "arguments": '{"ARGUMENT": "VALUE"}'}


def parsed(parser: str, answer: str) -> list[dict[str, Any]]:
    reader = make_parser(parser, None, tools=[])
    calls: dict[int, dict[str, str]] = {}
    for delta in [*reader.feed(answer), *reader.finish(cut=False)]:
        if isinstance(delta, ToolCallDelta):
            call = calls.setdefault(delta.index, {"name": "", "arguments": ""})
            call["name"] += delta.name or ""
            call["arguments"] += delta.arguments
    return list(calls.values())


@pytest.mark.parametrize("name", ["LFM2-8B-A1B", "LFM2.5-Instruct"])
def test_calls_are_written_as_lfm2_writes_them(name: str) -> None:  # r2-20
    renderer = collection(name)
    assert renderer.needs().calls is CallStyle.PYTHONIC
    rendered = text(renderer, USER, calling(tool_call("abcdefghi", "Oslo")), result("abcdefghi", "9 deg"))
    assert '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>' in rendered
    arguments = {"s": 'a"b\n', "n": 1.5, "t": True, "z": None, "l": [1, {"k": "v"}]}
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    written = r'[f(s="a\"b\n", n=1.5, t=True, z=None, l=[1, {"k": "v"}])]'
    assert written in text(renderer, USER, calling(call))


def test_results_become_the_users_words_where_there_is_no_role_for_them() -> None:
    rendered = text(
        collection("microsoft-Phi-3.5-mini-instruct"),
        USER,
        TWO,
        result("a12345678", "nine"),
        result("b12345678", "ten"),
    )
    assert "<tool_response>\nnine\n</tool_response>\n<tool_response>\nten\n</tool_response>" in rendered


ODD_TOOLS = {
    "no description": tool(parameters={"type": "object", "properties": {}}),
    "null description": tool(description=None, parameters={"type": "object", "properties": {}}),
    "no parameters": tool(description="d"),
    "null parameters": tool(description="d", parameters=None),
    "empty parameters": tool(description="d", parameters={}),
    "no properties": tool(description="d", parameters={"type": "object"}),
    "null properties": tool(description="d", parameters={"type": "object", "properties": None}),
    "nothing": {"function": {"name": "ping"}},
    "no type": {"function": {"name": "ping", "description": "d", "parameters": {"type": "object", "properties": {}}}},
    "tuple": tool(
        description="d",
        parameters={
            "type": "object",
            "properties": {"p": {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}},
        },
    ),
    "types": tool(description="d", parameters={"type": "object", "properties": {"p": {"type": ["string", "null"]}}}),
    "anything": tool(description="d", parameters={"type": "object", "properties": {"p": True, "q": {}}}),
}


def test_optional_members_of_tools_are_filled_in_for_every_template() -> None:  # r2-17
    for file in template_files():
        if "firefunction" in file.stem or "command-r-plus" in file.stem:  # these refuse every chat like this one
            continue
        renderer = ChatRenderer({"default": file.read_text("utf-8")}, NAMED)
        for what, odd in ODD_TOOLS.items():
            for traced in (False, True):
                rendered = renderer.render(ChatInput([USER], [odd]), traced=traced).text
                assert "ping" in rendered, (file.stem, what)
                if "description" in what:
                    assert "None" not in rendered.replace("<type>None", ""), (file.stem, what)


def test_a_tool_that_a_template_can_show_stays_as_it_came() -> None:
    odd = {"function": {"name": "ping", "description": None, "x": 1}}
    assert json.dumps(odd) in text(collection("Qwen-Qwen3-0.6B"), USER, tools=[odd])


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"])
def test_arguments_are_objects_where_a_template_has_its_own_form_for_them(name: str) -> None:
    rendered = text(collection(name), USER, calling(tool_call("a", "Oslo")), result("a", "9"))
    assert 'call:get_weather{city:<|"|>Oslo<|"|>}' in rendered
    kimi = text(collection("Kimi-K3"), USER, calling(tool_call("a", "Oslo")), result("a", "9"))
    assert '<|open|>argument key="city" type="string"<|sep|>Oslo' in kimi


# --- lists that templates change -------------------------------------------------------------------------------------


def test_a_template_may_change_its_own_lists_and_no_others() -> None:
    rendered = text(collection("Kimi-K2-Instruct"), USER, TWO, result("a12345678", "nine"), result("b12345678", "ten"))
    assert in_order(rendered, ["functions.get_weather:1", "Return of functions.get_weather:0", "nine", "weather:1"])
    for source in ("{% set _ = messages.append(1) %}", "{% set _ = messages[0].parts.append(1) %}"):
        with pytest.raises(RenderError, match=r"SecurityError|refused|unsafe"):
            text(ChatRenderer({"default": source}, NAMED), {**USER, "parts": [1]})
    grows = "{% set x = [1] %}{% for i in range(64) %}{% set _ = x.extend(x) %}{% endfor %}{{ x | length }}"
    with pytest.raises(RenderError, match="list of more than"):
        text(ChatRenderer({"default": grows}, NAMED), USER)
    plus = "{% set n = namespace(x=[]) %}{% set n.x = messages[0].parts + n.x + [2] %}{% set _ = n.x.append(3) %}"
    rendered = text(
        ChatRenderer({"default": plus + "{{ n.x }}{{ messages[0].content }}"}, NAMED), {**USER, "parts": [1]}
    )
    assert rendered == "[1, 2, 3]q"


# --- reasoning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Qwen-Qwen3-0.6B", "<think>\n\n</think>\n\n"),
        ("Qwen3.5-4B", "<think>\n\n</think>\n\n"),
        ("GLM-4.6", "<think></think>"),
        ("HuggingFaceTB-SmolLM3-3B", "<think>\n\n</think>\n"),
        ("NVIDIA-Nemotron-Nano-v2", "<think></think>"),
        ("deepseek-ai-DeepSeek-V3.1", "<think></think>"),
        ("MiniMax-M3", "</mm:think>"),
        ("ByteDance-Seed-OSS", "</seed:think>"),
        ("tencent-Hy3", "<think:opensource></think:opensource>"),
        ("Cohere2MoE", "<|START_THINKING|><|END_THINKING|>"),
        ("Kimi-K3", "<|open|>response<|sep|>"),
        ("inclusionai-ling-3.0-flash", "<think></think>"),
    ],
)
def test_no_reasoning_is_what_none_means(name: str, end: str) -> None:  # r2-22
    renderer = collection(name)
    rendered = text(renderer, USER, reasoning_effort="none")
    assert rendered.endswith(end)
    assert text(renderer, USER, thinking=False) == rendered
    assert text(renderer, USER, template_kwargs={"reasoning_effort": "none"}) == rendered
    assert text(renderer, USER, thinking=True) != rendered


@pytest.mark.parametrize(
    ("name", "effort"),
    [
        ("openai-gpt-oss-120b", "none"),
        ("openai-gpt-oss-120b", "minimal"),
        ("openai-gpt-oss-120b", "wild"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "none"),
        ("StepFun3.5-Flash", "none"),
        ("Kimi-K3", "minimal"),
        ("upstage-Solar-Open-100B", "max"),
    ],
)
def test_an_effort_that_a_template_does_not_know_is_refused(name: str, effort: str) -> None:
    with pytest.raises(RenderError) as caught:
        text(collection(name), USER, reasoning_effort=effort)
    assert caught.value.param == "reasoning_effort"
    with pytest.raises(RenderError) as caught:
        text(collection(name), USER, template_kwargs={"reasoning_effort": effort})
    assert caught.value.param == "chat_template_kwargs.reasoning_effort"


def test_efforts_reach_the_template_by_its_own_name() -> None:
    assert "Reasoning: high" in text(collection("openai-gpt-oss-120b"), USER, reasoning_effort="high")
    assert "thinking_effort=low" in text(collection("Kimi-K3"), USER, reasoning_effort="low")
    assert "<|think|><|end|>" in text(collection("upstage-Solar-Open-100B"), USER, reasoning_effort="minimal")
    own = {"enable_thinking": True}
    kept = text(collection("Qwen-Qwen3-0.6B"), USER, reasoning_effort="none", template_kwargs=own)
    assert not kept.endswith("</think>\n\n")


def test_a_model_that_does_not_reason_needs_no_switch() -> None:
    chatml = ChatRenderer({"default": CHATML}, NAMED)
    assert text(chatml, USER, reasoning_effort="none") == text(chatml, USER, thinking=False) == text(chatml, USER)
    with pytest.raises(RenderError) as caught:
        text(chatml, USER, thinking=True)
    assert caught.value.param == "enable_thinking"
