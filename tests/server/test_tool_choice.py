"""`tool_choice: allowed_tools` (r2-41): some of the tools may be called, the prompt shows all."""

import json
from typing import Any

import pytest

from tests.server.conftest import CHAT, Served, in_module_loop
from tests.server.helpers import user
from tests.server.test_parsers import CALL, WEATHER, Talker, talker  # noqa: F401  (a fixture)
from tokenline.render.chat_input import ChatInput
from tokenline.service.request import AllowedTools, ChatRequest

TIME = {
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["UTC", "CET"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}
TOOLS = [WEATHER, TIME]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_an_allowed_tool_is_called(talker: Talker):  # noqa: F811
    body = talker.body(CALL, tools=TOOLS, tool_choice=allowed("auto", "weather"))
    answer = await talker.whole(body)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_prompt_shows_all_tools_and_comes_from_the_cache(served: Served):
    body = {"messages": user("What time is it in Oslo? Say it in one word."), "tools": TOOLS, "max_tokens": 4}
    first = (await served.http.post(CHAT, json={**body, "tool_choice": "required"})).json()["usage"]
    second = await served.http.post(CHAT, json={**body, "tool_choice": allowed("required", "time")})
    usage = second.json()["usage"]
    assert usage["prompt_tokens"] == first["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 32


async def test_one_of_the_allowed_tools_is_forced(served: Served):
    for seed in range(3):
        body = {"messages": user("Oslo?"), "tools": TOOLS, "max_tokens": 60, "temperature": 1.5, "seed": seed}
        answer = await served.http.post(CHAT, json={**body, "tool_choice": allowed("required", "time")})
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        assert {call["function"]["name"] for call in calls} <= {"time"}
        for call in calls if choice["finish_reason"] != "length" else calls[:-1]:  # the last one is cut
            assert json.loads(call["function"]["arguments"])["zone"] in ("UTC", "CET")


def test_callable_tools():
    chat = ChatInput(user("a"), TOOLS)

    def names(choice: Any) -> list[str]:
        request = ChatRequest(id="1", chat=chat, tool_choice=choice)
        return [tool["function"]["name"] for tool in request.callable_tools]

    assert names(None) == names("auto") == names("required") == ["weather", "time"]
    assert names("none") == []
    assert names(AllowedTools(("time",))) == ["time"]
    assert ChatRequest(id="1", chat=chat, tool_choice=AllowedTools(("time",))).callable_places == (1,)


@in_module_loop
@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("auto", "nothing"), "tool_choice"),
        (allowed("none", "time"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["time"]}},
         "tool_choice.allowed_tools.tools[0]"),
        ({"type": "some_tools"}, "tool_choice"),
        ({"type": "function", "function": {"name": "nothing"}}, "tool_choice"),
    ],
)  # fmt: skip
async def test_a_choice_that_cannot_be(shared: Served, choice: Any, param: str):
    response = await shared.http.post(CHAT, json={"messages": user("a"), "tools": TOOLS, "tool_choice": choice})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@in_module_loop
async def test_a_fault_of_an_allowed_tools_schema_is_found_where_it_stands(shared: Served):
    broken = {"type": "function", "function": {"name": "broken", "strict": True, "parameters": {"type": "nothing"}}}
    body = {"messages": user("a"), "tools": [*TOOLS, broken], "tool_choice": allowed("required", "broken")}
    response = await shared.http.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tools[2].function.parameters")
