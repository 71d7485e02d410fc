"""OpenAI's custom tools, whose input is text: asked for, called whole and streamed, and taken back (r2-41's kind)."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from tests.server.conftest import CHAT, Served
from tests.server.helpers import stream, user
from tests.server.test_parsers import Talker, talker
from tokenline.server.openai.custom_tools import InputReader, input_of, with_functions

__all__ = ["talker"]  # the fixture

CODE: dict[str, Any] = {"type": "custom", "custom": {"name": "run_code", "description": "Runs Python."}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
INPUT = 'print("天气 😀")\n\tif x < "\\d":\n'


def says(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"  # with \u escapes


def added_up(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": piece.get("type"), "text": ""})
                told = piece.get("custom") or piece["function"]
                call["name"] = call.get("name") or told["name"]
                call["text"] += told["input"] if "input" in told else told["arguments"]
    return calls


async def test_a_call_whole_and_streamed(talker: Talker) -> None:
    text = says("run_code", input=INPUT) + says("weather", city="Oslo") + says("run_code", input="2")
    body = talker.body(text, tools=[CODE, WEATHER])
    answer = await talker.whole(body)
    ChatCompletion.model_validate(answer)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    first, second, third = choice["message"]["tool_calls"]
    assert {**first, "id": ""} == {"id": "", "type": "custom", "custom": {"name": "run_code", "input": INPUT}}
    assert second["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert third["custom"]["input"] == "2"
    chunks = await stream(talker.served.http, CHAT, body)
    calls = added_up(chunks)
    assert [(call["type"], call["name"], call["text"]) for call in calls.values()] == [
        ("custom", "run_code", INPUT),
        ("function", "weather", '{"city": "Oslo"}'),
        ("custom", "run_code", "2"),
    ]
    assert all(call["id"] for call in calls.values())


async def test_its_calls_and_results_are_taken_back(talker: Talker) -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "run_code", "input": INPUT}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
    messages = [*user("Run it."), {"role": "assistant", "tool_calls": [call]}, result]
    response = await talker.served.http.post("/apply-template", json={"messages": messages, "tools": [CODE]})
    prompt = response.json()["prompt"]
    assert json.dumps({"input": INPUT}, ensure_ascii=False) in prompt
    assert "Runs Python." in prompt


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "run_code"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "custom", "custom": {"name": "run_code"}}]}},
    ],
    ids=["named", "allowed"],
)  # fmt: skip
async def test_a_forced_call_holds_a_regular_expression(served: Served, choice: Any) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{3}"}}
    tool = {"type": "custom", "custom": {"name": "run_code", "format": form}}
    body = {"messages": user("Go."), "tools": [tool], "tool_choice": choice, "max_tokens": 200}
    body["parallel_tool_calls"] = False
    response = await served.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    calls = response.json()["choices"][0]["message"]["tool_calls"]
    assert calls
    for call in calls:
        assert (call["type"], call["custom"]["name"]) == ("custom", "run_code")
        assert len(call["custom"]["input"]) == 3
        assert call["custom"]["input"].isdigit()


@pytest.mark.parametrize(
    ("custom", "param"),
    [
        (None, "tools[0].custom"),
        ({}, "tools[0].custom.name"),
        ({"name": 5}, "tools[0].custom.name"),
        ({"name": "f", "description": 1}, "tools[0].custom.description"),
        ({"name": "f", "format": "text"}, "tools[0].custom.format"),
        ({"name": "f", "format": {"type": "json"}}, "tools[0].custom.format.type"),
        ({"name": "f", "format": {"type": "grammar", "grammar": {}}}, "tools[0].custom.format.grammar.definition"),
        (
            {"name": "f", "format": {"type": "grammar", "syntax": "abnf", "definition": "x"}},
            "tools[0].custom.format.syntax",
        ),
    ],
)
async def test_what_is_wrong_is_a_400_that_names_the_place(served: Served, custom: Any, param: str) -> None:
    body = {"messages": user("Go."), "tools": [{"type": "custom", "custom": custom}], "tool_choice": "none"}
    response = await served.http.post(CHAT, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_grammar_is_told_to_the_model() -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"+'}}
    _, tools, _ = with_functions([], [{"type": "custom", "custom": {"name": "f", "format": form}}])
    assert tools[0]["function"]["description"].endswith('Lark grammar:\nstart: "a"+')


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\u4e2d\\ud83d\\ude00\\n\\"\\\\"}', 'a中😀\n"\\'),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"input": "\\ud83d\\ud83d\\ude00"}', "\ufffd😀"),
        ('{"input": "cut \\ud8', "cut "),
        ('{"input": "cut \\', "cut "),
        ("{}", ""),
        ('{"code": "x"}', '{"code": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('"plain"', '"plain"'),
    ],
)
def test_the_input_in_arguments(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


@given(st.text(), st.booleans(), st.data())
def test_an_input_is_the_same_however_it_is_cut(text: str, ascii_only: bool, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert input_of(arguments) == text
    whole = arguments[: data.draw(st.integers(0, len(arguments)))]  # perhaps cut
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    reader = InputReader()
    edges = [0, *cuts, len(whole)]
    pieces = [reader.feed(whole[start:end]) for start, end in itertools.pairwise(edges)]
    assert "".join(pieces) + reader.finish() == input_of(whole)
