"""Tools beside a response_format, reasoning before a constraint, strict and lenient tools: through HTTP, whole and
streamed, with a model that says what the test wants where the grammar lets it.
"""

import json
from typing import Any

import pytest

from tests.server.conftest import CHAT, Served
from tests.server.helpers import finish_reasons, joined, stream
from tests.server.test_log import lines
from tests.server.test_parsers import CALL, Talker, calls_of, talker
from tokenline.grammar.vocabulary import ABOUT

__all__ = ["talker"]  # the fixture

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
JSON_ANSWER = '{"answer": "4"}'
THOUGHT = "<think>\n2+2 is {4}.\n</think>\n\n"
BATCH: dict[str, Any] = {
    "type": "object",
    "properties": {"ids": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}},
    "required": ["ids"],
}


def tool(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def response_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


async def both(talker: Talker, says: str, **body: Any) -> tuple[dict[str, Any], str]:
    """The message of the whole answer and its finish reason, which the streamed one must share."""
    asked = talker.body(says, **body)
    choice = (await talker.whole(asked))["choices"][0]
    message = choice["message"]
    chunks = await stream(talker.served.http, CHAT, asked)
    assert joined(chunks) == (message["content"] or "")
    assert finish_reasons(chunks) == {0: choice["finish_reason"]}
    called = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    assert [(call["name"], call["arguments"]) for call in calls_of(chunks).values()] == called
    return message, choice["finish_reason"]


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("thought", ["", THOUGHT])
async def test_tools_and_a_response_format(talker: Talker, strict: bool | None, thought: str):
    """r2-04, r2-05: the model calls, or answers in the schema."""
    body: dict[str, Any] = {"tools": [tool("weather", WEATHER, strict=strict)]}
    body["response_format"] = response_format(ANSWER, strict=True)
    message, reason = await both(talker, thought + CALL, **body)
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"city": "Oslo"}']
    assert (message["content"], reason) == (None, "tool_calls")
    message, reason = await both(talker, thought + JSON_ANSWER, **body)
    assert (message["content"], message.get("tool_calls"), reason) == (JSON_ANSWER, None, "stop")
    for said in (CALL, JSON_ANSWER):
        message, _ = await both(talker, thought + said, **body, tool_choice="auto", parallel_tool_calls=False)
        assert message.get("tool_calls") if said == CALL else message["content"] == JSON_ANSWER


async def test_what_is_neither_a_call_nor_in_the_schema_cannot_be_said(talker: Talker):
    body: dict[str, Any] = {
        "tools": [tool("weather", {**WEATHER, "properties": {"city": {"enum": ["Rome"]}}}, strict=True)],
        "response_format": response_format({**ANSWER, "properties": {"answer": {"enum": ["x"]}}}),
    }
    message, _ = await both(talker, CALL, **body)
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"city": "Rome"}]
    message, _ = await both(talker, JSON_ANSWER, **body)
    assert json.loads(message["content"]) == {"answer": "x"}


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("thought", ["", THOUGHT])
async def test_a_forced_call_leaves_the_format_no_part(talker: Talker, strict: bool | None, thought: str):
    """r2-05"""
    body: dict[str, Any] = {
        "tools": [tool("weather", WEATHER, strict=strict)],
        "response_format": response_format(ANSWER),
    }
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, says in (
        ("required", '[{"name": "weather", "parameters": {"city": "Oslo"}}]'),
        (named, '{"city": "Oslo"}'),
    ):
        message, reason = await both(talker, thought + says, **body, tool_choice=choice)
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Oslo"}')
        assert reason == "tool_calls"
        assert (message.get("reasoning_content") or "").strip() == ("2+2 is {4}." if thought else "")


async def test_no_tools_wanted(talker: Talker):
    body: dict[str, Any] = {"tools": [tool("weather", WEATHER)], "response_format": response_format(ANSWER)}
    message, _ = await both(talker, JSON_ANSWER, **body, tool_choice="none")
    assert message["content"] == JSON_ANSWER
    message, _ = await both(talker, CALL, **body, tool_choice="none", max_tokens=40)
    assert "tool_calls" not in message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"response_format": response_format(ANSWER)}, JSON_ANSWER),
        ({"response_format": {"type": "json_object"}}, JSON_ANSWER),
        ({"guided_choice": ["yes", "no"]}, "no"),
        ({"guided_regex": "[0-9]+"}, "4"),
    ],
)
async def test_reasoning_that_the_prompt_has_not_opened(talker: Talker, fields: dict[str, Any], says: str):
    """r2-13: the model may think first, or not."""
    for thought, reasoning in (("", ""), (THOUGHT, "2+2 is {4}."), ("<think>\n\n</think>\n\n", "")):
        message, reason = await both(talker, thought + says, **fields)
        assert (message["content"], reason) == (says, "stop")
        assert (message.get("reasoning_content") or "").strip() == reasoning


@pytest.mark.parametrize(
    "keyword",
    [
        {"uniqueItems": True},
        {"multipleOf": 1e-12},
        {"not": {"required": ["x"]}},
        {"if": {"required": ["ids"]}, "then": {"required": ["y"]}},
        {"oneOf": [{"type": "object"}, {"required": ["ids"]}]},
        {"pattern": r"^(?<=a)b"},
        {"pattern": r"\bword\b", "minLength": 3},
        {"contains": {"type": "integer"}},
        {"$ref": "https://example.com/schema.json"},
        {"dependentSchemas": {"a": {"required": ["b"]}}},
    ],
    ids=lambda keyword: next(iter(keyword)),
)
async def test_a_tool_that_is_not_strict_is_enforced_as_far_as_it_can_be(served: Served, keyword: Any, caplog):
    """r2-08: the call is forced, the tool itself checks the rest; the log says what was left to the model."""
    caplog.set_level("INFO", logger="tokenline")
    schema = {
        **BATCH,
        "properties": {"ids": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, **keyword}},
    }
    for place in (schema, {**schema, **keyword}):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 4, "temperature": 0}
        body |= {"tools": [tool("weather", WEATHER), tool("batch", place)]}
        body["tool_choice"] = {"type": "function", "function": {"name": "batch"}}
        response = await served.http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        response = await served.http.post(CHAT, json={**body, "tool_choice": "required"})
        assert response.status_code == 200, response.text
        said_of = ABOUT.get(next(iter(keyword)))
        if said_of is not None and said_of != ("array" if place is schema else "object"):
            continue  # says nothing here, so nothing is left out
        assert "tools[1].function.parameters" in lines(caplog)[-1]["left_out"]
        body["tools"][1]["function"]["strict"] = True
        response = await served.http.post(CHAT, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("tools[1].function.parameters")


async def test_the_rest_of_a_lenient_schema_is_enforced(served: Served):
    """r2-08"""
    schema = {
        **BATCH,
        "properties": {"ids": {**BATCH["properties"]["ids"], "items": {"enum": ["a", "b"]}, "maxItems": 2}},
    }
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Go."}],
        "tool_choice": "required",
        "max_tokens": 300,
    }
    for seed in range(3):
        response = await served.http.post(CHAT, json={**body, "tools": [tool("batch", schema)], "seed": seed})
        choice = response.json()["choices"][0]
        calls = choice["message"]["tool_calls"]
        for call in calls if choice["finish_reason"] != "length" else calls[:-1]:  # the last one is cut
            value = json.loads(call["function"]["arguments"])
            assert set(value) == {"ids"}
            assert set(value["ids"]) <= {"a", "b"}
            assert 1 <= len(value["ids"]) <= 2


async def test_a_response_format_is_lenient_unless_it_is_strict(served: Served, caplog):
    caplog.set_level("INFO", logger="tokenline")
    schema = {
        **ANSWER,
        "properties": {"answer": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2, "uniqueItems": True}},
    }
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 100, "temperature": 0}
    for strict in (None, False):
        response = await served.http.post(
            CHAT, json={**body, "response_format": response_format(schema, strict=strict)}
        )
        assert response.status_code == 200, response.text
        assert set(json.loads(response.json()["choices"][0]["message"]["content"])["answer"]) <= {"a"}
        assert lines(caplog)[-1]["left_out"] == "output.properties.answer.uniqueItems"
    response = await served.http.post(CHAT, json={**body, "response_format": response_format(schema, strict=True)})
    assert response.status_code == 400
    assert response.json()["error"]["param"].endswith("schema.properties.answer.uniqueItems")
