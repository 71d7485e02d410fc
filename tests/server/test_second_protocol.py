"""A second protocol is one more shell: the toy below touches neither render, parse nor engine.

It is a telegram: `{"to_model": "text", "words": 5, "live": true}`. The whole answer is one field; a stream has named
events and an end of its own. Its errors name its own fields, in a shape of their own.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from tests.server.conftest import CHAT, Serve, Served
from tokenline.fields import Places
from tokenline.parse.delta import ContentDelta
from tokenline.render.chat_input import ChatInput
from tokenline.server.body import Body
from tokenline.server.errors import ApiError, speak
from tokenline.server.log import name_request
from tokenline.server.respond import Whole, respond
from tokenline.server.sse import Frame, Frames
from tokenline.server.state import ServerState
from tokenline.service.answer import Answer
from tokenline.service.events import Piece, PromptDone
from tokenline.service.request import ChatRequest, Limits, Sampling

# --- the protocol ----------------------------------------------------------------------------------------------------


class Telegram(Body):
    to_model: Any = Field(description="a text")
    words: int | None = Field(default=None, description="a number of words")
    live: bool = False


class TelegramShell:
    async def whole(self, answer: Answer) -> Whole:
        async for _ in answer:
            pass
        return Whole(1, lambda: {"from_model": answer.message(0).content, "read": answer.usage().prompt_tokens})

    async def frames(self, answer: Answer) -> Frames:
        async for event in answer:
            if isinstance(event, PromptDone):
                yield Frame({"remembered": event.cache.cached}, "read")
            elif isinstance(event, Piece):
                for delta in event.deltas:
                    if isinstance(delta, ContentDelta):
                        yield Frame({"word": delta.text}, "word")
        yield Frame("over", "end")

    def error_frame(self, error: ApiError) -> Frame:
        return Frame(telegram_error(error), "trouble")


def telegram_error(error: ApiError) -> Mapping[str, Any]:
    return {"stop": error.message, "field": error.param}


def telegram_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post("/telegram")
    async def telegram(http: HTTPRequest) -> Response:
        speak(http, telegram_error)
        record = name_request(http, "tg-")
        body = await state.bodies.read(http, Telegram, max_bytes=10_000)
        request = ChatRequest(
            id=record.id,
            caller=state.caller(http),
            chat=ChatInput([{"role": "user", "content": body.to_model}]),
            sampling=Sampling(temperature=0),
            limits=Limits(max_tokens=body.words),
            places=Places({("messages", 0, "content"): ("to_model",), ("max_tokens",): ("words",)}),
        )
        return await respond(http, state, request, TelegramShell(), stream=body.live)

    return router


# --- what it does ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def telegraph(serve: Serve) -> Served:
    served = await serve()
    served.app.include_router(telegram_routes(served.app.state.server))
    return served


async def send(served: Served, **body: Any) -> httpx.Response:
    return await served.http.post("/telegram", json=body)


async def test_an_answer_is_the_same_whole_streamed_and_in_the_other_protocol(telegraph: Served):
    whole = (await send(telegraph, to_model="你好 👋", words=8)).json()
    streamed = await send(telegraph, to_model="你好 👋", words=8, live=True)
    lines = streamed.text.split("\n\n")
    assert lines[0] == f'event: read\ndata: {{"remembered":{whole["read"] - 1}}}'
    assert lines[-2:] == ["event: end\ndata: over", ""]
    words = [json.loads(line.split("data: ")[1])["word"] for line in lines if line.startswith("event: word")]
    assert "".join(words) == whole["from_model"]
    body = {"messages": [{"role": "user", "content": "你好 👋"}], "max_tokens": 8, "temperature": 0}
    chat = (await telegraph.http.post(CHAT, json=body)).json()
    assert chat["choices"][0]["message"]["content"] == whole["from_model"]
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == whole["read"] - 1, "protocols share the cache"


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"to_model": 5, "words": 3}, "to_model", "'to_model' must be a string"),  # render's check
        ({"to_model": "a", "words": 0}, "words", "'words' must be an integer from 1"),  # the service's
        ({"to_model": "a", "words": "x"}, "words", "'words' must be a number of words"),  # the shell's own
        ({"to_model": " a" * 4300, "words": 3}, "messages", "context length"),  # the engine's limits
    ],
)
async def test_every_rooms_error_names_the_field_that_the_client_wrote(telegraph: Served, body, field, said, live):
    response = await send(telegraph, **body, live=live)
    assert response.status_code == 400
    assert set(response.json()) == {"stop", "field"}
    assert response.json()["field"] == field
    assert said in response.json()["stop"]


async def test_a_failure_in_the_middle_ends_the_stream_in_the_protocols_own_words(telegraph: Served, monkeypatch):
    async def broken(self: TelegramShell, answer: Answer) -> Frames:
        yield Frame({"word": "a"}, "word")
        raise RuntimeError("secret")

    monkeypatch.setattr(TelegramShell, "frames", broken)
    text = (await send(telegraph, to_model="a", words=3, live=True)).text
    assert text.startswith('event: word\ndata: {"word":"a"}\n\nevent: trouble\ndata: {"stop":')
    assert "secret" not in text
