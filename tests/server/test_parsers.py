"""Tool calls and reasoning through HTTP, with a model that says what the test wants."""

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from tests.server.conftest import CHAT, Served, Tiny, serving
from tests.server.helpers import finish_reasons, joined, stream, user
from tests.server.scripted import Scripted
from tokenline.models.base import Model
from tokenline.render.chat_input import ChatInput
from tokenline.render.renderer import Renderer
from tokenline.server.openai.custom_tools import with_functions
from tokenline.service.parsers import ParserChoice

# ChatML with Hermes tool calls and <think>, as Qwen3's, without its cutting of old turns.
TEMPLATE = """\
{% if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}

Answer with <tool_call>{"name": …, "arguments": …}</tool_call>, after <think></think>.<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "今天的天气",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class Talker:
    """A served model that can be told its next answer."""

    def __init__(self, served: Served, model: Scripted):
        self.served = served
        self.model = model

    def body(self, says: str, **more: Any) -> dict[str, Any]:
        """A request whose answer will be `says` and the end of the turn."""
        body = {"messages": user("What is the weather?"), "temperature": 0, "max_tokens": 400, **more}
        messages, tools, _ = with_functions(body["messages"], body.get("tools"))
        line = self.served.renderer.chat(ChatInput(messages, tools))
        end = self.served.renderer.tokenizer.special_tokens["<|im_end|>"]
        self.model.say([*self.served.renderer.tokenizer.encode(says), end], after=len(line))
        return body

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.served.http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        return response.json()


@pytest_asyncio.fixture
async def talker(tiny: Tiny) -> AsyncIterator[Talker]:
    model = Scripted(tiny.model)
    renderer = Renderer.from_model(tiny.path, chat_template=TEMPLATE)
    async with serving(dataclasses.replace(tiny, renderer=renderer), live=False, model=cast(Model, model)) as served:
        yield Talker(served, model)


def calls_of(chunks: list[Any]) -> dict[int, dict[str, str]]:
    """The tool calls of a stream, added up by index as OpenAI's clients do it."""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            pieces = choice["delta"].get("tool_calls", [])
            assert len({piece["index"] for piece in pieces}) == len(pieces)
            for piece in pieces:
                if piece["index"] not in calls:
                    assert piece["id"]
                    assert piece["type"] == "function"
                    assert piece["function"]["name"]
                    calls[piece["index"]] = {"id": piece["id"], "name": piece["function"]["name"], "arguments": ""}
                else:
                    assert set(piece) == {"index", "function"}
                    assert set(piece["function"]) == {"arguments"}
                calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return calls


@pytest.mark.parametrize("choice", [None, "auto"])
async def test_a_tool_call(talker: Talker, choice: str | None):
    """tc-12, tc-13, tc-19"""
    body = talker.body(f"On it.\n{CALL}", tools=[WEATHER], tool_choice=choice)
    answer = (await talker.whole(body))["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"].strip() == "On it."
    (call,) = answer["message"]["tool_calls"]
    assert call["id"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    chunks = await stream(talker.served.http, CHAT, body)
    assert finish_reasons(chunks) == {0: "tool_calls"}
    streamed = calls_of(chunks)
    assert [(one["name"], one["arguments"]) for one in streamed.values()] == [("weather", '{"city": "Oslo"}')]
    assert joined(chunks) == answer["message"]["content"]


async def test_two_tool_calls_and_no_text(talker: Talker):
    """tc-17"""
    second = CALL.replace("Oslo", "Rome")
    body = talker.body(f"{CALL}\n{second}", tools=[WEATHER])
    message = (await talker.whole(body))["choices"][0]["message"]
    assert message["content"] is None
    assert [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]] == ["Oslo", "Rome"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    streamed = calls_of(await stream(talker.served.http, CHAT, body))
    assert [json.loads(call["arguments"])["city"] for call in streamed.values()] == ["Oslo", "Rome"]
    assert list(streamed) == [0, 1]


async def test_no_parallel_tool_calls(talker: Talker):
    second = CALL.replace("Oslo", "Rome")
    body = talker.body(f"Two.\n{CALL}\n{second}", tools=[WEATHER], parallel_tool_calls=False)
    answer = (await talker.whole(body))["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert (answer["message"]["content"], answer["finish_reason"]) == ("Two.", "tool_calls")
    chunks = await stream(talker.served.http, CHAT, body)
    assert [call["arguments"] for call in calls_of(chunks).values()] == ['{"city": "Oslo"}']
    assert finish_reasons(chunks) == {0: "tool_calls"}


async def test_a_call_that_was_cut_is_the_same_whole_and_streamed(talker: Talker):
    """tc-16, as issue 8 decides it: the answer has what was streamed, and says that a limit has cut it."""
    body = talker.body('<tool_call>\n{"name": "weather", "arguments": {"city": "long que', tools=[WEATHER])
    said = talker.model._script[:-1]  # without the end of the turn
    body["max_tokens"] = len(said)
    choice = (await talker.whole(body))["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "long que'}
    chunks = await stream(talker.served.http, CHAT, body)
    assert finish_reasons(chunks) == {0: "length"}
    (streamed,) = calls_of(chunks).values()
    assert {key: streamed[key] for key in ("name", "arguments")} == call["function"]


async def test_with_tool_choice_none_a_call_is_text(talker: Talker):
    body = talker.body(CALL, tools=[WEATHER], tool_choice="none")
    choice = (await talker.whole(body))["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


async def test_reasoning_stands_apart_and_is_counted(talker: Talker):
    body = talker.body("<think>\nLet me think.\n</think>\n\nIt is sunny.")
    answer = await talker.whole(body)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"]
    assert message["reasoning"].strip() == "Let me think."
    assert message["content"].strip() == "It is sunny."
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    chunks = await stream(talker.served.http, CHAT, body)
    reasoning = "".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks)
    assert reasoning == message["reasoning"]
    assert joined(chunks) == message["content"]


async def test_a_conversation_with_tools_goes_on(talker: Talker):
    body = talker.body(CALL, tools=[WEATHER])
    message = (await talker.whole(body))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21 degrees"}
    body = talker.body("It is 21 degrees.", tools=[WEATHER], messages=[*body["messages"], message, result])
    answer = await talker.whole(body)
    assert answer["choices"][0]["message"]["content"] == "It is 21 degrees."
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(("arguments", "status"), [('["a"]', 400), ('{"a": ', 400), ("", 200), ('{"a": 1}', 200)])
async def test_arguments_in_the_history_must_be_a_json_object(talker: Talker, arguments: str, status: int):
    """tc-15"""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *user("x"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    response = await talker.served.http.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert response.status_code == status, response.text
    if status == 400:
        assert response.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


async def test_an_answer_that_comes_back_keeps_its_ids(talker: Talker):
    """Invariant 7: the next turn finds what was generated, also where its text encodes to other ids."""
    encode = talker.served.renderer.tokenizer.encode
    spelled = [token for letter in "the weather" for token in encode(letter)]
    assert spelled != encode("the weather")
    body = talker.body("")
    end = talker.served.renderer.tokenizer.special_tokens["<|im_end|>"]
    prompt = len(talker.served.renderer.chat(ChatInput(body["messages"])))
    talker.model.say([*spelled, end], after=prompt)
    answer = await talker.whole({**body, "return_token_ids": True})
    assert answer["choices"][0]["token_ids"] == [*spelled, end]
    next_turn = [*body["messages"], {"role": "assistant", "content": "the weather"}, *user("And tomorrow?")]
    again = await talker.whole({"messages": next_turn, "max_tokens": 1, "return_token_ids": True})
    assert again["prompt_token_ids"][prompt : prompt + len(spelled) + 1] == [*spelled, end]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= prompt + len(spelled)
    counted = (await talker.served.http.post("/tokenize", json={"messages": next_turn})).json()
    assert counted["tokens"] == again["prompt_token_ids"]
    salted = await talker.whole({"messages": next_turn, "max_tokens": 1, "return_token_ids": True, "cache_salt": "s"})
    assert salted["prompt_token_ids"] != again["prompt_token_ids"]


def test_parsers_come_from_the_template_or_the_settings(tiny: Tiny):
    renderer = Renderer.from_model(tiny.path, chat_template=TEMPLATE)

    def names(**settings: Any) -> tuple[str | None, str | None]:
        choice = ParserChoice.of(renderer, **settings)
        return choice.tool_parser, choice.reasoning_parser

    assert names() == ("hermes", "qwen3")
    assert names(tool_call_parser="none", reasoning_parser="none") == (None, None)
    assert names(tool_call_parser="mistral", reasoning_parser="granite") == ("mistral", "granite")
    with pytest.raises(ValueError, match="tool_call_parser"):
        names(tool_call_parser="no-such")
    with pytest.raises(ValueError, match="reasoning_parser"):
        names(reasoning_parser="no-such")
