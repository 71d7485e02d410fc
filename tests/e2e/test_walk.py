"""The walk of the README, on the default model: what one turn leaves behind, the next one finds, to the token."""

import asyncio
from typing import Any

import pytest

from tests.e2e.conftest import Served

SYSTEM = {"role": "system", "content": "你是助手"}
TODAY = {"role": "user", "content": "今天星期几"}
TOMORROW = {"role": "user", "content": "明天呢"}
TOKENS = 24


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def ask(served: Served, messages: list[Any], stream: bool, max_tokens: int = TOKENS) -> tuple[str, list[int], Any]:
    """Text, generated ids and usage of one greedy answer."""
    extra = {"return_token_ids": True}
    if not stream:
        answer: Any = served.client.chat.completions.create(
            model=served.model,
            messages=messages,
            max_tokens=max_tokens,
            temperature=0,
            extra_body=extra,
        )
        choice = answer.choices[0]
        return choice.message.content, choice.token_ids, answer.usage
    text, ids, usage = "", [], None
    for chunk in served.client.chat.completions.create(
        model=served.model,
        messages=messages,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
    ):
        usage = chunk.usage or usage
        for part in chunk.choices:
            text += part.delta.content or ""
            ids += getattr(part, "token_ids", None) or []
    return text, ids, usage


def cached(usage) -> int:
    return usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_the_walk(served: Served, stream: bool):
    served.forget()

    # A: nothing is held yet
    line_a = served.ids([SYSTEM, TODAY])
    text_a, ids_a, usage_a = ask(served, [SYSTEM, TODAY], stream)
    assert usage_a.prompt_tokens == len(line_a)
    assert cached(usage_a) == 0
    assert usage_a.completion_tokens == len(ids_a)
    held = line_a + ids_a[:-1]  # the last id was sampled but never computed

    # B: the same history, one more question
    chat_b = [SYSTEM, TODAY, {"role": "assistant", "content": text_a}, TOMORROW]
    line_b = served.ids(chat_b)
    text_b, ids_b, usage_b = ask(served, chat_b, stream)
    assert cached(usage_b) == common(held, line_b)
    assert cached(usage_b) >= len(line_a), "the whole first prompt is reused"
    assert usage_b.prompt_tokens - cached(usage_b) < len(line_b)

    # C: B again, word for word
    text_c, ids_c, usage_c = ask(served, chat_b, stream)
    assert cached(usage_c) == usage_c.prompt_tokens - 1
    assert (text_c, ids_c) == (text_b, ids_b)

    # D: a timestamp in front of the system prompt
    dated = {"role": "system", "content": "2026-11-29 10:41 你是助手"}
    line_d = served.ids([dated, *chat_b[1:]])
    _, _, usage_d = ask(served, [dated, *chat_b[1:]], stream)
    expected = max(common(line, line_d) for line in (held, line_b + ids_b[:-1]))
    assert cached(usage_d) == expected
    assert expected < 10, "only what stands before the timestamp"


def test_several_conversations_at_once_over_several_turns(served: Served):
    """Each turn finds all of its own earlier line, whatever the others do; answers are those of a cold server."""
    served.forget()
    client_texts: list[list[str]] = []

    async def converse(client, name: str) -> list[str]:
        chat: list[dict] = [{"role": "system", "content": "You answer in one short sentence. 😀"}]
        before: list[int] = []
        texts = []
        for turn in range(3):
            chat.append({"role": "user", "content": f"{name} asks question {turn}: 天空为什么是蓝色的？"})
            line = await asyncio.to_thread(served.ids, chat)
            answer = await client.chat.completions.create(
                model=served.model,
                messages=chat,
                max_tokens=12,
                temperature=0,
                extra_body={"return_token_ids": True},
            )
            assert answer.usage.prompt_tokens == len(line)
            assert cached(answer.usage) >= common(before, line)
            before = line + answer.choices[0].token_ids[:-1]
            texts.append(answer.choices[0].message.content)
            chat.append({"role": "assistant", "content": texts[-1]})
        return texts

    async def all_at_once() -> list[list[str]]:
        async with served.async_client() as client:
            return await asyncio.gather(*(converse(client, name) for name in ("Ann", "Bo", "王芳", "Zoë")))

    client_texts = asyncio.run(all_at_once())
    served.forget()

    async def alone() -> list[str]:
        async with served.async_client() as client:
            return await converse(client, "王芳")

    assert asyncio.run(alone()) == client_texts[2]


def test_fifty_requests_at_once_prefill_their_prefix_once(served: Served):
    served.forget()
    system = {"role": "system", "content": "You are the archive desk. " * 20}
    chats: list[Any] = [[system, {"role": "user", "content": f"Where is shelf {number}?"}] for number in range(50)]
    lines = [served.ids(chat) for chat in chats]

    async def all_at_once() -> list[Any]:
        async with served.async_client() as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(model=served.model, messages=chat, max_tokens=2, temperature=0)
                    for chat in chats
                )
            )

    answers = asyncio.run(all_at_once())
    computed = sum(answer.usage.prompt_tokens - cached(answer.usage) for answer in answers)
    # What a tree of these lines has: every distinct position once, and the last token of each prompt.
    distinct = {tuple(line[:end]) for line in lines for end in range(1, len(line) + 1)}
    assert computed == len(distinct)
