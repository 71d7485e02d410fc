"""Answers that must hold to a grammar, from a model with random weights: whatever it would say, it has to say this."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.server.conftest import CHAT, TEXT, Served

MESSAGES = [{"role": "user", "content": "How many legs has a spider? 蜘蛛"}]
LEGS = {
    "type": "object",
    "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["昆虫", "arachnid"]}},
    "required": ["legs", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "count", "parameters": LEGS}},
    {"type": "function", "function": {"name": "stop"}},
]


def check_legs(value: Any) -> None:
    assert set(value) == {"legs", "kind"}
    assert 0 <= value["legs"] <= 99
    assert value["kind"] in ("昆虫", "arachnid")


async def post(served: Served, route: str = CHAT, /, **body: Any) -> dict[str, Any]:
    body = {"max_tokens": 200, "temperature": 0, **body}
    if route == CHAT:
        body.setdefault("messages", MESSAGES)
    response = await served.http.post(route, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "legs", "schema": value}}


async def streamed(served: Served, **body: Any) -> tuple[str, list[dict], str]:
    """Content, tool calls and finish reason of a stream."""
    content, calls, reason = "", {}, ""
    body = {"messages": MESSAGES, "max_tokens": 200, "temperature": 0, "stream": True, **body}
    async with served.http.stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                content += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
                for call in choice["delta"].get("tool_calls", ()):
                    kept = calls.setdefault(call["index"], {"name": None, "arguments": ""})
                    kept["name"] = call["function"].get("name") or kept["name"]
                    kept["arguments"] += call["function"]["arguments"]
    return content, [calls[index] for index in sorted(calls)], reason


@pytest.mark.parametrize("temperature", [0, 1.5])
async def test_response_format_json_schema(served: Served, temperature):
    answer = await post(served, response_format=schema(LEGS), temperature=temperature, seed=3)
    choice = answer["choices"][0]
    check_legs(json.loads(choice["message"]["content"]))
    assert choice["finish_reason"] == "stop"


async def test_an_answer_ends_with_its_grammar_whatever_its_least_length(served: Served):
    """Nothing but the end can follow: `min_tokens` cannot keep it away."""
    answer = await post(served, guided_choice=["yes"], min_tokens=50)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("yes", "stop")
    shortest = await post(served, guided_regex="(yes)*", min_tokens=50)
    assert shortest["usage"]["completion_tokens"] >= 50


async def test_a_grammar_and_ignore_eos(served: Served):
    guided: dict[str, Any] = {"guided_choice": ["yes"]}
    for route, asked in (
        (CHAT, {"messages": MESSAGES, **guided}),
        (TEXT, {"prompt": "a", **guided}),
        (CHAT, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}),
    ):
        response = await served.http.post(route, json={**asked, "ignore_eos": True})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "ignore_eos"


async def test_the_stream_holds_to_the_schema_too(served: Served):
    content, _, reason = await streamed(served, response_format=schema(LEGS))
    check_legs(json.loads(content))
    assert reason == "stop"


async def test_json_object_begins_as_one_and_is_cut_honestly(served: Served):
    choice = (await post(served, response_format={"type": "json_object"}, max_tokens=5))["choices"][0]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": r"[A-F]{3}-\d"}, r"[A-F]{3}-\d"),
        ({"guided_choice": ["是", "no 😀"]}, "是|no 😀"),
        ({"guided_grammar": 'root ::= "a" | "b" "c"'}, "a|bc"),
        ({"structured_outputs": {"regex": "x{2}"}}, "xx"),
        ({"structured_outputs": {"choice": ["one"]}}, "one"),
    ],
)
@pytest.mark.parametrize("route", [CHAT, TEXT])
async def test_guided_decoding(served: Served, route, fields, pattern):
    body = {"prompt": "Say: "} if route == TEXT else {}
    choice = (await post(served, route, **body, **fields))["choices"][0]
    assert re.fullmatch(pattern, choice["text"] if route == TEXT else choice["message"]["content"])


async def test_a_named_function_is_called(served: Served):
    named = {"type": "function", "function": {"name": "count"}}
    choice = (await post(served, tools=TOOLS, tool_choice=named))["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "count"
    check_legs(json.loads(call["function"]["arguments"]))
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    content, calls, reason = await streamed(served, tools=TOOLS, tool_choice=named)
    assert (content, reason) == ("", "tool_calls")
    assert [call["name"] for call in calls] == ["count"]
    check_legs(json.loads(calls[0]["arguments"]))


async def test_required_calls_one_of_the_tools(served: Served):
    choice = (await post(served, tools=TOOLS, tool_choice="required", parallel_tool_calls=False))["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("count", "stop")
    assert choice["finish_reason"] == "tool_calls"


async def test_constrained_and_free_requests_share_a_batch_and_the_cache(served: Served):
    free: dict[str, Any] = {"max_tokens": 24}
    alone = await post(served, **free)
    mixed = await asyncio.gather(
        *(post(served, response_format=schema(LEGS)) if number % 2 else post(served, **free) for number in range(10))
    )
    for number, answer in enumerate(mixed):
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        content = answer["choices"][0]["message"]["content"]
        if number % 2:
            check_legs(json.loads(content))
        else:
            assert content == alone["choices"][0]["message"]["content"]


async def test_choices_are_constrained_each_by_itself(served: Served):
    answer = await post(served, guided_choice=["a", "bc", "def"], n=6, temperature=2.0, seed=1)
    assert {choice["message"]["content"] for choice in answer["choices"]} <= {"a", "bc", "def"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": schema({"not": {}})}, "response_format.json_schema.schema"),
        (
            {"response_format": schema({"type": "integer", "minimum": 2, "maximum": 1})},
            "response_format.json_schema.schema.minimum",
        ),
        ({"response_format": schema([1])}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {"lark": "x"}}, "structured_outputs.lark"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"uniqueItems": True}}}
                ],
                "tool_choice": "required",
            },
            "tools[0].function.parameters.uniqueItems",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_a_400_before_anything_is_generated(served: Served, fields, param):
    before = served.engine.snapshot().totals.prompt_tokens
    for stream in (False, True):
        response = await served.http.post(CHAT, json={"messages": MESSAGES, "stream": stream, **fields})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert "\n" not in error["message"]
    assert served.engine.snapshot().totals.prompt_tokens == before
