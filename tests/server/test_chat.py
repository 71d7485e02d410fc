"""POST /v1/chat/completions: one answer, streamed or not."""

import json
import math

import numpy as np
import pytest

from tests.server.conftest import CHAT, TEXT, Serve, Served
from tests.server.helpers import finish_reasons, joined, stream, user
from tokenline.engine.request import Namespace
from tokenline.render.chat_input import ChatInput

UNICODE = [
    {"role": "system", "content": "Antworte kurz."},
    {"role": "user", "content": "Wie hoch ist der Brocken? 山有多高? 🗻"},
]


def greedy(messages: list, **more) -> dict:
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **more}


async def test_the_answer_has_openais_shape(served: Served):
    response = await served.http.post(CHAT, json=greedy(user("hello")))
    answer = response.json()
    assert response.status_code == 200
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("chatcmpl-")
    assert response.headers["x-request-id"] == answer["id"]
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    prompt = len(served.renderer.chat(ChatInput(user("hello"))))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 12,
        "total_tokens": prompt + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "cache": {
            "computed_tokens": prompt,
            "restored_tokens": 0,
            "evicted_tokens": 0,
            "evicted_ago_s": None,
            "longest_match_tokens": 0,
        },
    }


async def test_a_stream_says_the_role_first_then_the_text_then_why_it_ended(served: Served):
    chunks = await stream(served.http, CHAT, greedy(UNICODE))
    first, *middle, last = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("more", [{}, {"stop": ["e", "日", "�"]}, {"n": 3, "temperature": 1, "seed": 5}])
async def test_streamed_and_not_are_the_same_answer(served: Served, more: dict):
    """Text, finish reasons and counts are equal, since both are made from the same pieces."""
    body = greedy(UNICODE, max_tokens=40, **more)
    whole = (await served.http.post(CHAT, json=body)).json()
    *chunks, last = await stream(served.http, CHAT, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        assert joined(chunks, choice["index"]) == choice["message"]["content"]
        assert finish_reasons(chunks)[choice["index"]] == choice["finish_reason"]
    assert last["choices"] == []
    line = served.renderer.chat(ChatInput(UNICODE))
    for usage in (whole["usage"], last["usage"]):
        assert usage["prompt_tokens"] == len(line)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream_options", [None, {}, {"include_usage": False}, {"include_obfuscation": False}])
async def test_no_usage_chunk_unless_asked_for(served: Served, stream_options: dict | None):
    body = {"messages": user("Greet me"), "max_tokens": 4, "stream_options": stream_options}
    chunks = await stream(served.http, CHAT, body)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


async def test_with_usage_asked_for_the_other_chunks_say_null(served: Served):
    body = {"messages": user("Greet me"), "max_tokens": 4, "stream_options": {"include_usage": True}}
    *chunks, last = await stream(served.http, CHAT, body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_hit_is_reported_in_both_modes_as_the_engine_counted_it(served: Served):
    body = {
        "messages": [{"role": "system", "content": "You are the archive desk. " * 40}, *user("Where is shelf 7?")],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    seen, before = [], 0
    for streamed in (False, False, True):
        if streamed:
            chunks = await stream(served.http, CHAT, {**body, "stream_options": {"include_usage": True}})
            usage = chunks[-1]["usage"]
        else:
            usage = (await served.http.post(CHAT, json=body)).json()["usage"]
        counted = served.engine.snapshot().totals.cached_tokens
        assert usage["prompt_tokens_details"]["cached_tokens"] == counted - before
        before = counted
        seen.append(usage["prompt_tokens_details"]["cached_tokens"])
    prompt = len(served.renderer.chat(ChatInput(body["messages"])))
    assert seen == [0, prompt - 1, prompt - 1]


async def test_the_walk_of_the_readme(served: Served):
    """A, B, C, D: what is cached is the common prefix of the token lines, to the token."""
    system = {"role": "system", "content": "你是助手"}

    async def ask(messages: list) -> tuple[str, int, np.ndarray]:
        answer = (await served.http.post(CHAT, json=greedy(messages))).json()
        usage = answer["usage"]
        return (
            answer["choices"][0]["message"]["content"],
            usage["prompt_tokens_details"]["cached_tokens"],
            served.renderer.chat(ChatInput(messages)).ids,
        )

    a = [system, *user("今天星期几")]
    text, cached, line_a = await ask(a)
    assert cached == 0
    b = [system, *user("今天星期几"), {"role": "assistant", "content": "Monday."}, *user("明天呢")]
    text_b, cached, line_b = await ask(b)
    assert cached == _common(line_a, line_b)
    text_c, cached, _ = await ask(b)
    assert cached == len(line_b) - 1
    assert text_c == text_b
    d = [{"role": "system", "content": "2026-03-01 10:00 你是助手"}, *b[1:]]
    _, cached, line_d = await ask(d)
    assert cached == max(_common(line_d, line_a), _common(line_d, line_b))
    assert text != ""


def _common(a: np.ndarray, b: np.ndarray) -> int:
    different = np.flatnonzero(a[: min(len(a), len(b))] != b[: min(len(a), len(b))])
    return int(different[0]) if len(different) else min(len(a), len(b))


async def test_choices_share_one_prompt(served: Served):
    body = greedy(user("choose"), n=4, temperature=1.5, seed=7, max_tokens=6)
    answer = (await served.http.post(CHAT, json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) > 1
    assert answer["usage"]["prompt_tokens"] == len(served.renderer.chat(ChatInput(user("choose"))))
    assert answer["usage"]["completion_tokens"] == 4 * 6
    again = (await served.http.post(CHAT, json=body)).json()
    assert [c["message"] for c in again["choices"]] == [c["message"] for c in answer["choices"]]
    chunks = await stream(served.http, CHAT, body)
    assert [joined(chunks, i) for i in range(4)] == [c["message"]["content"] for c in answer["choices"]]
    roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1, 2, 3]


async def test_a_stop_string_ends_its_choice_and_only_that(served: Served):
    body = greedy(user("many words"), n=3, temperature=1.2, seed=3, max_tokens=60)
    free = (await served.http.post(CHAT, json=body)).json()
    texts = [choice["message"]["content"] for choice in free["choices"]]
    # A character of the first choice's middle that another choice does not have at all, or has later.
    stop = next(c for c in texts[0][5:] if c not in texts[0][:5] and c not in texts[1] and c != "�")
    answer = (await served.http.post(CHAT, json={**body, "stop": stop})).json()
    first, second = answer["choices"][0], answer["choices"][1]
    assert first["message"]["content"] == texts[0][: texts[0].index(stop)]
    assert first["finish_reason"] == "stop"
    assert second["message"]["content"] == texts[1]
    assert second["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] < free["usage"]["completion_tokens"]
    chunks = await stream(served.http, CHAT, {**body, "stop": [stop]})
    assert joined(chunks, 0) == first["message"]["content"]
    assert finish_reasons(chunks) == {c["index"]: c["finish_reason"] for c in answer["choices"]}
    stats = served.engine.snapshot()
    assert (stats.running, stats.waiting) == (0, 0)


async def test_an_end_id_is_counted_but_no_text(served: Served):
    """st-07: the end of the turn counts as generated; here any id that comes is made one."""
    free = (await served.http.post(CHAT, json=greedy(user("hi"), return_token_ids=True))).json()
    ids = free["choices"][0]["token_ids"]
    end = next(token for token in ids[3:] if token not in ids[:3])
    at = ids.index(end)
    body = greedy(user("hi"), stop_token_ids=[end], return_token_ids=True, logprobs=True)
    answer = (await served.http.post(CHAT, json=body)).json()
    choice = answer["choices"][0]
    tokenizer = served.renderer.tokenizer
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == ids[: at + 1]
    assert answer["usage"]["completion_tokens"] == at + 1
    assert len(choice["logprobs"]["content"]) == at
    assert choice["message"]["content"] == tokenizer.decode(id for id in ids[:at] if not tokenizer.is_special(id))


async def test_the_ids_can_be_had(served: Served):
    body = greedy(UNICODE, return_token_ids=True, max_tokens=30, stop=["zz"])
    answer = (await served.http.post(CHAT, json=body)).json()
    assert answer["prompt_token_ids"] == served.renderer.chat(ChatInput(UNICODE)).ids.tolist()
    first, *chunks = await stream(served.http, CHAT, body)
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == answer["choices"][0]["token_ids"]
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]


async def test_logprobs_are_there_for_each_token_streamed_or_not(served: Served):
    body = greedy(UNICODE, logprobs=True, top_logprobs=3, max_tokens=20)
    answer = (await served.http.post(CHAT, json=body)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 20
    for entry in content:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy: the likeliest was taken
        assert math.isclose(entry["top_logprobs"][0]["logprob"], entry["logprob"], abs_tol=1e-5)
        assert all(isinstance(byte, int) for byte in entry["bytes"])
    data = b"".join(bytes(entry["bytes"]) for entry in content)
    assert data.decode(errors="replace") == answer["choices"][0]["message"]["content"]
    chunks = await stream(served.http, CHAT, body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    streamed = [entry for part in parts if part for entry in part["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]
    plain = (await served.http.post(CHAT, json=greedy(UNICODE, logprobs=True, top_logprobs=0))).json()
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_logit_bias_forces_and_bans(served: Served):
    free = (await served.http.post(CHAT, json=greedy(user("x"), return_token_ids=True))).json()
    first = free["choices"][0]["token_ids"][0]
    banned = greedy(user("x"), return_token_ids=True, logit_bias={str(first): -100})
    assert (await served.http.post(CHAT, json=banned)).json()["choices"][0]["token_ids"][0] != first
    forced = greedy(user("x"), return_token_ids=True, logit_bias={"77": 100}, max_tokens=3)
    assert (await served.http.post(CHAT, json=forced)).json()["choices"][0]["token_ids"] == [77, 77, 77]


async def test_nulls_are_as_good_as_nothing(served: Served):
    """Typed clients send every optional field as null, and send back messages with all their nulls."""
    body = greedy(
        [
            *user("hi"),
            {"role": "assistant", "content": "yes?", "refusal": None, "audio": None, "function_call": None,
             "tool_calls": None, "annotations": None, "reasoning_content": None},
            *user("go on"),
        ],
    )  # fmt: skip
    for name in (
        "n", "stop", "seed", "tools", "tool_choice", "logit_bias", "logprobs", "top_logprobs", "stream", "audio",
        "stream_options", "response_format", "max_completion_tokens", "user", "metadata", "top_p", "cache_salt",
        "functions", "function_call", "modalities", "prediction", "web_search_options", "reasoning_effort", "store",
        "chat_template_kwargs", "guided_json", "moderation", "min_p", "top_k", "stop_token_ids", "parallel_tool_calls",
    ):  # fmt: skip
        body[name] = None
    response = await served.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text


async def test_harmless_fields_are_accepted_and_unknown_ones_named_in_the_debug_log(served: Served, caplog):
    caplog.set_level("DEBUG", logger="tokenline")
    more = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "parallel_tool_calls": True, "modalities": ["text"],
        "verbosity": "medium", "response_format": {"type": "text"}, "tool_choice": "none", "functions": [],
        "frobnicate": 3,
    }  # fmt: skip
    response = await served.http.post(CHAT, json=greedy(user("hi"), **more))
    assert response.status_code == 200, response.text
    assert "'frobnicate'" in caplog.text
    assert "'user'" not in caplog.text
    assert "'store'" not in caplog.text


async def test_tools_are_part_of_the_prompt_with_tool_choice_none(serve: Serve, served: Served):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    body = greedy(user("hi"), tools=[tool], tool_choice="none")
    response = await served.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_an_aborted_stream_leaves_nothing_in_later_answers(serve: Serve):
    """ss-05: the next turn of a chat whose answer was cut off by the client is answered as on a fresh server that is
    given the same ids: those that were generated, where the client got their text.
    """
    used, fresh = await serve(live=True), await serve()
    question = user("Tell me a long story, please.")
    received = ""
    async with used.http.stream("POST", CHAT, json=greedy(question, max_tokens=400, stream=True)) as response:
        seen = 0
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                received += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                seen += 1
            if seen == 4:
                break
    follow_up = [*question, {"role": "assistant", "content": received}, *user("go on")]
    first = await used.http.post(CHAT, json=greedy(follow_up, return_token_ids=True))
    assert first.status_code == 200
    line = used.renderer.chat(ChatInput(follow_up), namespace=Namespace())
    assert first.json()["prompt_token_ids"] == line.ids.tolist()
    assert used.renderer.tokenizer.decode(line.ids.tolist()) == line.text
    body = {"prompt": line.ids.tolist(), "temperature": 0, "max_tokens": len(first.json()["choices"][0]["token_ids"])}
    second = await fresh.http.post(TEXT, json={**body, "return_token_ids": True})
    assert first.json()["choices"][0]["token_ids"] == second.json()["choices"][0]["token_ids"]


async def test_the_last_message_can_be_continued(served: Served):
    messages = [*user("Count."), {"role": "assistant", "content": "One, two,"}]
    body = greedy(messages, continue_final_message=True, return_token_ids=True)
    answer = (await served.http.post(CHAT, json=body)).json()
    text = served.renderer.tokenizer.decode(answer["prompt_token_ids"])
    assert text.endswith("One, two,")


async def test_either_name_of_the_model_works_and_none_is_the_first(served: Served):
    for asked, answered in (("tiny", "tiny"), ("tiny-too", "tiny-too"), (None, "tiny")):
        response = await served.http.post(CHAT, json=greedy(user("hi"), model=asked))
        assert response.json()["model"] == answered


async def test_max_completion_tokens_comes_before_max_tokens(served: Served):
    body = greedy(user("hi"), max_tokens=9, max_completion_tokens=3)
    assert (await served.http.post(CHAT, json=body)).json()["usage"]["completion_tokens"] == 3


async def test_min_tokens_keeps_the_answer_going(served: Served):
    end = next(iter(served.renderer.end_ids))
    body = greedy(user("hi"), ignore_eos=False, logit_bias={str(end): 100})
    assert (await served.http.post(CHAT, json=body)).json()["usage"]["completion_tokens"] == 1
    body["min_tokens"] = 5
    answer = (await served.http.post(CHAT, json=body)).json()
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "stop"
