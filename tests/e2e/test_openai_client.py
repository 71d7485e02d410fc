"""The official client against a real server on a real port."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import openai
import pytest
import pytest_asyncio

from tests.limits import HANG_S
from tests.server.conftest import Served, Tiny, serving, tiny  # noqa: F401 (a fixture)
from tests.server.helpers import Slow, eventually
from tokenline.ids import common_prefix
from tokenline.render.chat_input import ChatInput

KEY = "key-of-the-test"
TEXTS = [
    "今天星期几？",
    "明天呢？",
    "😀 👩‍💻 🇨🇳 means what?",
    "Привет, как дела?",
    "Übung macht den Meister",
    "a\u0301 e\u0301\u2028x",
]


@pytest_asyncio.fixture
async def served(tiny: Tiny) -> AsyncIterator[Served]:  # noqa: F811
    async with serving(tiny, live=True, api_keys=(KEY,), max_num_seqs=16) as one:
        yield one


@pytest_asyncio.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0, timeout=HANG_S) as one:
        yield one


def user(text: str) -> list:
    return [{"role": "user", "content": text}]


NO_END = {"ignore_eos": True}


async def test_chat_streamed_and_not(client: openai.AsyncOpenAI, served: Served):
    for text in TEXTS:
        options = {"model": "tiny", "messages": user(text), "temperature": 0, "max_tokens": 24, "extra_body": NO_END}
        answer = await client.chat.completions.create(**options)
        pieces, reasons, usage = [], [], None
        stream = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                reasons.append(choice.finish_reason)
            usage = chunk.usage or usage
        assert "".join(pieces) == answer.choices[0].message.content
        assert [reason for reason in reasons if reason] == ["length"]
        assert answer.usage is not None
        assert usage is not None
        assert usage.prompt_tokens == answer.usage.prompt_tokens == len(served.renderer.chat(ChatInput(user(text))))
        assert usage.completion_tokens == answer.usage.completion_tokens == 24
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


async def test_the_streaming_helper_puts_the_same_together(client: openai.AsyncOpenAI):
    options = {"model": "tiny", "messages": user("help 你好"), "temperature": 0}
    options["extra_body"] = {"min_tokens": 6, "stop_token_ids": list(range(3, 600, 2))}  # the helper refuses "length"
    plain = await client.chat.completions.create(**options)
    async with client.chat.completions.stream(**options) as stream:
        async for _ in stream:
            pass
        whole = await stream.get_final_completion()
    assert whole.choices[0].message.content == plain.choices[0].message.content
    assert whole.choices[0].finish_reason == plain.choices[0].finish_reason


async def test_choices_stop_strings_and_logprobs(client: openai.AsyncOpenAI):
    free = await client.chat.completions.create(
        model="tiny", messages=user("x"), n=2, seed=4, max_tokens=40, extra_body=NO_END, logprobs=True, top_logprobs=2
    )
    assert len(free.choices) == 2
    for choice in free.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 40
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    text = free.choices[0].message.content or ""
    stop = next(character for character in text[8:] if character != "�")
    stopped = await client.chat.completions.create(
        model="tiny", messages=user("x"), n=2, seed=4, max_tokens=40, extra_body=NO_END, stop=[stop]
    )
    assert stopped.choices[0].message.content == text.split(stop)[0]
    assert stopped.choices[0].finish_reason == "stop"


async def test_text_completions(client: openai.AsyncOpenAI):
    options = {"model": "tiny", "prompt": ["The quick", "明天"], "temperature": 0, "max_tokens": 8, "echo": True}
    answer = await client.completions.create(**options, extra_body=NO_END)
    assert answer.choices[0].text.startswith("The quick")
    assert answer.choices[1].text.startswith("明天")
    texts = ["", ""]
    async for chunk in await client.completions.create(**options, stream=True, extra_body=NO_END):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]


async def test_models(client: openai.AsyncOpenAI):
    assert [model.id async for model in client.models.list()] == ["tiny", "tiny-too"]
    assert (await client.models.retrieve("tiny")).owned_by == "tokenline"


async def test_each_error_is_the_exception_that_the_client_has_for_it(client: openai.AsyncOpenAI, served: Served):
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="gpt-9", messages=user("x"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="tiny", messages=user("x"), temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as streamed:
        await client.chat.completions.create(model="tiny", messages=user("x"), n=0, stream=True)
    assert streamed.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="tiny", prompt="word " * 5000, max_tokens=1)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="tiny", input="x")


async def test_a_full_queue_is_a_rate_limit_error(tiny: Tiny):  # noqa: F811
    async with (
        serving(tiny, live=True, model=cast(Any, Slow(tiny.model)), max_waiting=1, api_keys=("key",)) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="key", max_retries=0, timeout=HANG_S) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=user("x"), max_tokens=3000, stream=True, extra_body=NO_END
        )
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="tiny", messages=user("y"), max_tokens=1)
        await stream.close()
        await eventually(lambda: served.engine.snapshot().running == 0)
        # With retries, as clients have them by default, a request waits for its turn.
        await client.with_options(max_retries=5).chat.completions.create(model="tiny", messages=user("y"), max_tokens=1)


async def test_an_error_in_mid_stream_is_an_exception(tiny: Tiny):  # noqa: F811
    from tests.server.test_errors import Breaking

    model = cast(Any, Breaking(tiny.model))
    async with (
        serving(tiny, live=True, model=model) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=HANG_S) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=user("x"), max_tokens=3000, stream=True, extra_body=NO_END
        )
        await anext(aiter(stream))
        model.broken = True
        with pytest.raises(openai.APIError, match="server failed"):
            [chunk async for chunk in stream]


async def test_twenty_at_once_each_get_their_own_answer(client: openai.AsyncOpenAI, served: Served):
    async def ask(number: int, streamed: bool) -> str:
        options = {
            "model": "tiny",
            "messages": user(f"{TEXTS[number % len(TEXTS)]} number {number}"),
            "temperature": 0,
            "max_tokens": 16,
            "extra_body": NO_END,
        }
        if not streamed:
            return (await client.chat.completions.create(**options)).choices[0].message.content or ""
        stream = await client.chat.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    alone = [await ask(number, False) for number in range(20)]
    together = await asyncio.gather(*(ask(number, number % 2 == 0) for number in range(20)))
    assert together == alone
    stats = served.engine.snapshot()
    assert (stats.running, stats.waiting, stats.totals.failed) == (0, 0, 0)


async def test_fifty_at_once_on_one_new_prefix_prefill_it_once(client: openai.AsyncOpenAI, served: Served):
    system: Any = {"role": "system", "content": "You are the archive desk. " * 60}

    async def ask(number: int) -> openai.types.CompletionUsage:
        answer = await client.chat.completions.create(
            model="tiny", messages=[system, *user(f"shelf {number}?")], max_tokens=1
        )  # fmt: skip
        assert answer.usage is not None
        return answer.usage

    lines = [served.renderer.chat(ChatInput([system, *user(f"shelf {number}?")])) for number in range(50)]
    shared = min(common_prefix(lines[0].ids, line.ids) for line in lines[1:])
    usages = await asyncio.gather(*map(ask, range(50)))
    computed = [
        usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
        for usage in usages
        if usage.prompt_tokens_details
    ]
    own = sum(len(line) - shared for line in lines)
    assert sum(computed) <= shared + own
    assert sum(computed) == served.engine.snapshot().totals.computed_tokens


async def test_a_client_that_gives_up_frees_its_request(tiny: Tiny):  # noqa: F811
    async with (
        serving(tiny, live=True, model=cast(Any, Slow(tiny.model))) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=HANG_S) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=user("long"), max_tokens=3000, stream=True, extra_body=NO_END
        )
        async for _ in stream:
            break
        await stream.close()
        await eventually(lambda: served.engine.snapshot().totals.aborted == 1)
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=openai.Timeout(HANG_S, read=2.0)).chat.completions.create(
                model="tiny", messages=user("long"), max_tokens=4000, extra_body=NO_END
            )
        await eventually(lambda: served.engine.snapshot().totals.aborted == 2)
        assert served.engine.snapshot().running == 0
