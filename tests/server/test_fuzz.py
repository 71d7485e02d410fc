"""Whatever JSON comes, the answer is a 200 or a 4xx in OpenAI's shape; never a 500, never a broken stream."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.conftest import CHAT, TEXT, Served, Tiny, serving
from tests.server.helpers import events, user
from tokenline.server.openai.unsupported import CHAT as CHAT_TABLE
from tokenline.server.openai.wire import ChatBody, CompletionBody

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 700),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["user", "assistant", "tool", "system", "text", "function", "none", "auto", "json_object", "x" * 2000]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "function", "name", "arguments", "id", "5", "include_usage"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)
FIELDS = sorted(
    {*ChatBody.model_fields, *CompletionBody.model_fields, *CHAT_TABLE} - {"max_tokens", "max_completion_tokens"}
)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def running(loop: asyncio.Runner, tiny: Tiny) -> Iterator[Served]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(serving(tiny, live=False)))
    loop.run(stack.aclose())


@pytest.mark.parametrize("url", [CHAT, TEXT])
@settings(max_examples=120, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3), stream=st.booleans())
def test_any_fields(loop: asyncio.Runner, running: Served, url: str, fields: dict[str, Any], stream: bool):
    start: dict[str, Any] = {"messages": user("hi")} if url == CHAT else {"prompt": "hi"}
    check(loop, running, url, {**start, "stream": stream, **fields, "max_tokens": 2})


messages_of_sorts = st.lists(
    st.one_of(
        values,
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
            optional=dict.fromkeys(("content", "tool_calls", "name", "reasoning_content", "tool_call_id"), values),
        ),
    ),
    max_size=3,
)


@settings(max_examples=120, deadline=None)
@given(messages=messages_of_sorts)
def test_any_messages(loop: asyncio.Runner, running: Served, messages: list[Any]):
    check(loop, running, CHAT, {"messages": messages, "max_tokens": 2})


def check(loop: asyncio.Runner, running: Served, url: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    response = loop.run(running.http.post(url, content=json.dumps(body), headers=headers))
    if response.status_code == 200:
        if response.headers["content-type"].startswith("text/event-stream"):
            found = events(response.text)
            assert found[-1] == "[DONE]"
            assert not [event for event in found[:-1] if "error" in event]
        else:
            assert response.json()["usage"]["completion_tokens"] >= 1
    else:
        assert 400 <= response.status_code < 500, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) < 1000
