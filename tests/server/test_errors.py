"""Bad input: each answers in OpenAI's shape with the field's name, leaves no traceback in the log, and harms nobody."""

import asyncio
import dataclasses
import json
import logging
from typing import Any

import pytest

from tests.limits import HANG_S
from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny, in_module_loop, serving
from tests.server.helpers import Slow, eventually, user
from tokenline.engine.request import RequestRefused
from tokenline.models.base import Batch, KVPool, Model
from tokenline.render.chat_input import ChatInput
from tokenline.render.renderer import Renderer
from tokenline.server.errors import from_refusal

OK = {"messages": user("hi"), "max_tokens": 2}


def error_of(response, status: int) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b'{"messages": [', b"hello", b"[]", b'"text"', b"null", b"3", b'{"a": NaN}',
        b'{"temperature": Infinity}', b'{"a": ' + b"[" * 100_000,         b'{"a": 1} x', b"{'a': 1}",
        b'{"a": "\xff"}', b'{"a": "\\ud800"}',
        '{"a": 1}'.encode("utf-16"), b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("url", [CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"])
@in_module_loop
async def test_what_is_no_json_object(shared: Served, url: str, data: bytes):
    response = await shared.http.post(url, content=data, headers={"content-type": "application/json"})
    assert error_of(response, 400)["code"] == "invalid_json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@in_module_loop
async def test_other_content_types_are_refused(shared: Served, kind: str):
    response = await shared.http.post(CHAT, content=json.dumps(OK), headers={"content-type": kind})
    assert "application/json" in error_of(response, 415)["message"]


PARAMETERS = [
    ("temperature", "0.5"), ("temperature", -0.1), ("temperature", 2.1), ("temperature", True), ("temperature", [1]),
    ("temperature", 10**400), ("top_p", -0.01), ("top_p", 1.01), ("top_p", "1"), ("n", 0), ("n", -1),
    ("n", 129), ("n", 1.5), ("n", "2"), ("n", True), ("max_tokens", -2), ("max_tokens", -5), ("max_tokens", "5"),
    ("max_tokens", 5.0),
    ("max_tokens", True), ("max_tokens", 10**30), ("min_tokens", -1), ("min_tokens", 10), ("seed", 1.5), ("seed", "1"),
    ("seed", 2**63), ("presence_penalty", 2.5), ("presence_penalty", -3), ("frequency_penalty", 9),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("top_k", -2), ("top_k", 0.5), ("min_p", 2), ("stop", 5),
    ("stop", ""), ("stop", ["a", ""]), ("stop", ["a", 1]), ("stop", ["x"] * 17), ("stop", "x" * 1025), ("stop", {}),
    ("stop_token_ids", ["1"]), ("stop_token_ids", [-1]), ("stop_token_ids", [600]), ("stop_token_ids", 3),
    ("stop_token_ids", [10**30]), ("stream", "yes"), ("stream", 1), ("stream_options", {"include_usage": True}),
    ("cache_salt", ""), ("cache_salt", 3), ("cache_salt", "x" * 1025), ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": -100.5}), ("logit_bias", {"600": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"a": 1}),
    ("logit_bias", {"²": 1}), ("logit_bias", {"5": "1"}), ("logit_bias", [1]), ("logit_bias", {"9" * 5000: 1}),
    ("ignore_eos", "no"), ("model", 5), ("user", 5), ("use_beam_search", True),
    ("guided_json", "{"), ("truncate_prompt_tokens", 5), ("skip_special_tokens", False), ("bad_words", ["x"]),

    ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprobs", True),
    ("return_token_ids", "yes"), ("include_stop_str_in_output", 1),
]  # fmt: skip


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(("name", "value"), PARAMETERS, ids=lambda value: str(value)[:30])
@in_module_loop
async def test_a_wrong_value_is_a_400_that_names_its_field(shared: Served, url: str, name: str, value: Any):
    body = {"max_tokens": 2, **({"messages": user("hi")} if url == CHAT else {"prompt": "hi"}), name: value}
    error = error_of(await shared.http.post(url, content=json.dumps(body), headers=JSON), 400)
    assert error["param"].replace("[", ".").split(".")[0] == name
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 400


JSON = {"content-type": "application/json"}

CHAT_ONLY = [
    ("messages", None), ("messages", []), ("messages", "hi"), ("messages", {}), ("max_completion_tokens", 0),
    ("max_tokens", 0),
    ("logprobs", 3), ("logprobs", "true"), ("top_logprobs", 5), ("top_logprobs", 21), ("top_logprobs", -1),
    ("audio", {"voice": "a", "format": "mp3"}), ("modalities", ["audio"]), ("modalities", ["text", "audio"]),
    ("web_search_options", {}), ("functions", [{"name": "f"}]), ("function_call", "auto"),
    ("prediction", {"type": "content", "content": "x"}), ("store", True), ("moderation", {}), ("verbosity", "low"),
    ("chat_template", "{{ 1 }}"), ("documents", [{}]), ("echo", True), ("best_of", 2), ("metadata", 3),
    ("reasoning_effort", "huge"), ("reasoning_effort", 3),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}),
    ("response_format", "json"), ("response_format", {"type": "xml"}), ("response_format", {}),
    ("tool_choice", "auto"), ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("tools", "x"), ("tools", [3]),
    ("tools", [{"type": "custom", "custom": {}}]), ("tools", [{"type": "function"}]),
    ("tools", [{"type": "function", "function": {}}]), ("tools", [{"type": "function", "function": {"name": ""}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": []}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "description": 3}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "strict": 1}}]), ("chat_template_kwargs", []),
    ("prompt_cache_retention", "1h"), ("parallel_tool_calls", "no"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), CHAT_ONLY, ids=lambda value: str(value)[:40])
@in_module_loop
async def test_a_wrong_value_of_a_chat(shared: Served, name: str, value: Any):
    body = {**OK, name: value}
    if name == "tools":
        body["tool_choice"] = "none"
    error = error_of(await shared.http.post(CHAT, json=body), 400)
    assert error["param"].replace("[", ".").split(".")[0] == name
    assert name in error["message"]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("choice", [None, "auto", 3, {"type": "x"}])
@in_module_loop
async def test_tools_need_a_parser_unless_they_are_forced(shared: Served, choice: Any):
    body = {**OK, "tools": [TOOL], "tool_choice": choice}
    assert error_of(await shared.http.post(CHAT, json=body), 400)["param"] == "tool_choice"


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

MESSAGES = [
    ([3], "messages[0]"),
    (["hi"], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "usr", "content": "x"}], "messages[0].role"),
    ([{"role": 5, "content": "x"}], "messages[0].role"),
    ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
    (
        [
            *user("a"),
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]},
        ],
        "messages[1].content[1]",
    ),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
    ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
    ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
    ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
    ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], "messages[0].function_call"),
    ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0].custom"),
    ([{"role": "assistant", "tool_calls": [{**CALL, "type": "tool"}]}], "messages[0].tool_calls[0].type"),
    ([{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}], "messages[0].tool_calls[0].id"),
    ([*user("a"), {"role": "tool", "content": "x", "tool_call_id": 3}], "messages[1].tool_call_id"),
]


@pytest.mark.parametrize(("messages", "param"), MESSAGES, ids=lambda value: str(value)[:40])
@in_module_loop
async def test_a_wrong_message_is_a_400_that_names_its_place(shared: Served, messages: list, param: str):
    error = error_of(await shared.http.post(CHAT, json={**OK, "messages": messages}), 400)
    assert error["param"] == param
    assert param in error["message"]


async def test_a_part_that_is_no_text_says_what_is_supported(served: Served):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    message = error_of(await served.http.post(CHAT, json={**OK, "messages": messages}), 400)["message"]
    assert "image_url" in message
    assert "text" in message


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"), (5, "prompt"), ([], "prompt"), ({}, "prompt"), ("", "prompt"), ([""], "prompt[0]"),
        ([[]], "prompt[0]"), ([600], "prompt[0]"), ([1, -1], "prompt[1]"), ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"), ([1, True], "prompt[1]"), ([[1, 2], [3, 600]], "prompt[1][1]"),
        ([[1], "a", None], "prompt[2]"),
        ([1, 2.0], "prompt[1]"),
        ([10**30], "prompt[0]"), (["a"] * 257, "prompt"),
    ],
)  # fmt: skip
@in_module_loop
async def test_a_wrong_prompt(shared: Served, prompt: Any, param: str):
    error = error_of(await shared.http.post(TEXT, json={"prompt": prompt}), 400)
    assert error["param"] == param


async def test_a_missing_prompt_or_messages(served: Served):
    for url, name in ((TEXT, "prompt"), (CHAT, "messages"), ("/apply-template", "messages"), ("/detokenize", "tokens")):
        error = error_of(await served.http.post(url, json={}), 400)
        assert (error["param"], error["code"]) == (name, "missing_required_parameter")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"), ({"best_of": 2, "n": 3}, "best_of"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"), ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"add_special_tokens": False}, "add_special_tokens"),
    ],
)  # fmt: skip
@in_module_loop
async def test_what_a_text_completion_cannot_honour(shared: Served, more: dict, param: str):
    assert error_of(await shared.http.post(TEXT, json={"prompt": "a", **more}), 400)["param"] == param


async def test_an_error_before_the_first_chunk_is_a_plain_answer(served: Served):
    """ss-03, case 0"""
    for url, start in ((CHAT, {"messages": user("hi")}), (TEXT, {"prompt": "hi"})):
        error_of(await served.http.post(url, json={**start, "stream": True, "top_p": 7}), 400)
        error_of(await served.http.post(url, json={**start, "stream": True, "max_tokens": 0.5}), 400)


async def test_an_unknown_model_is_a_404(served: Served):
    for url in (CHAT, TEXT, "/tokenize", "/apply-template"):
        body = {"prompt": "x"} if url in (TEXT, "/tokenize") else {"messages": user("hi")}
        error = error_of(await served.http.post(url, json={**body, "model": "gpt-4"}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert '"gpt-4"' in error["message"]
        assert '"tiny"' in error["message"]


async def test_unknown_routes_and_methods(served: Served):
    assert error_of(await served.http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = await served.http.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "OPTIONS, POST"
    error_of(await served.http.post("/health", json={}), 405)


@pytest.mark.parametrize("live", [False, True])
async def test_a_body_over_the_limit_is_a_413(serve: Serve, live: bool):
    served = await serve(live=live, max_body_bytes=20_000)
    body = {**OK, "user": "x" * 30_000}
    assert "20000" in error_of(await served.http.post(CHAT, json=body), 413)["message"]

    async def without_length():
        for piece in (b'{"user": "', *[b"y" * 1000] * 30, b'"}'):
            yield piece

    error_of(await served.http.post(CHAT, content=without_length(), headers=JSON), 413)
    assert (await served.http.post(CHAT, json=OK)).status_code == 200


async def test_a_prompt_that_cannot_fit_names_the_figures(serve: Serve):
    """ev-04: refused, never cut. A maximum that is larger than the room is no fault (r2-40)."""
    served = await serve(max_model_len=128)
    too_long = error_of(await served.http.post(TEXT, json={"prompt": [5] * 150, "max_tokens": 8}), 400)
    assert too_long["code"] == "context_length_exceeded"
    assert "150" in too_long["message"]
    assert "128" in too_long["message"]
    large = {"prompt": [5] * 120, "ignore_eos": True, "max_tokens": 50}
    filled = (await served.http.post(TEXT, json=large)).json()
    assert (filled["usage"]["total_tokens"], filled["choices"][0]["finish_reason"]) == (128, "length")
    error_of(await served.http.post(TEXT, json={"prompt": [5] * 128}), 400)
    fits = (await served.http.post(TEXT, json={"prompt": [5] * 120, "ignore_eos": True})).json()
    assert fits["usage"]["prompt_tokens"] == 120
    assert fits["usage"]["completion_tokens"] == 8
    assert fits["choices"][0]["finish_reason"] == "length"
    chat = {"messages": user("word " * 200), "max_tokens": 8}
    line = len(served.renderer.chat(ChatInput(chat["messages"])))
    error = error_of(await served.http.post(CHAT, json=chat), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(line) in error["message"]


async def test_without_a_limit_a_chat_may_fill_the_context(serve: Serve):
    served = await serve(max_model_len=64)
    answer = (await served.http.post(CHAT, json={"messages": user("hi"), "ignore_eos": True})).json()
    assert answer["usage"]["total_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_longer_than_the_pool(serve: Serve, tiny):
    block = tiny.model.kv_bytes_per_token() * 32
    served = await serve(kv_cache_memory=4 * block)
    assert served.engine.limits.pool_tokens == 128
    error = error_of(await served.http.post(TEXT, json={"prompt": [5] * 200, "max_tokens": 2}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "128" in error["message"]
    assert (await served.http.post(TEXT, json={"prompt": [5] * 100, "max_tokens": 2})).status_code == 200


async def test_a_book_is_refused_before_it_is_tokenized(serve: Serve):
    served = await serve(max_model_len=128)
    for url, start in ((CHAT, {"messages": user("word " * 100_000)}), (TEXT, {"prompt": "word " * 100_000})):
        error = error_of(await served.http.post(url, json=start), 400)
        assert error["code"] == "context_length_exceeded"
        assert "at least" in error["message"]
    error = error_of(await served.http.post(TEXT, json={"prompt": [5] * 200_000}), 400)
    assert "200000" in error["message"]


async def test_a_large_prompt_that_fits_is_answered(serve: Serve):
    """Over the size that is rendered in a thread: with many tokens' worth of one token's text."""
    served = await serve()
    spaces = max(range(600), key=lambda token: len(served.renderer.tokenizer.token_bytes(token)))
    text = served.renderer.tokenizer.token_bytes(spaces).decode()
    body = {"prompt": text * 50, "max_tokens": 2, "user": "x" * 100_000}
    answer = (await served.http.post(TEXT, json=body)).json()
    assert answer["usage"]["prompt_tokens"] == len(served.renderer.text(text * 50))


async def test_a_template_that_raises_is_a_400_with_its_message(served: Served, serve: Serve, tiny, monkeypatch):
    from tokenline.render.renderer import Renderer

    source = "{{ raise_exception('Only user and assistant roles are supported!') }}"
    renderer = Renderer.from_model(tiny.path, chat_template=source)
    monkeypatch.setattr(served.app.state.server.service, "renderer", renderer)
    error = error_of(await served.http.post(CHAT, json=OK), 400)
    assert "Only user and assistant roles are supported!" in error["message"]


async def test_a_full_queue_is_a_429_that_says_when_to_come_back(serve: Serve, tiny: Tiny):
    served = await serve(live=True, model=Slow(tiny.model), max_waiting=1, api_keys=("greedy", "other"))
    greedy, other = ({"Authorization": f"Bearer {key}"} for key in ("greedy", "other"))
    endless = {"messages": user("hi"), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    async with served.http.stream("POST", CHAT, json=endless, headers=greedy) as running:
        assert running.status_code == 200
        for body in (OK, {**OK, "stream": True}):
            response = await served.http.post(CHAT, json=body, headers=greedy)
            assert error_of(response, 429)["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
        assert (await served.http.post(CHAT, json=OK, headers=other)).status_code == 200
    await eventually(lambda: served.engine.snapshot().running == 0)
    assert (await served.http.post(CHAT, json=OK, headers=greedy)).status_code == 200


async def test_without_keys_each_connection_is_a_caller(serve: Serve, tiny: Tiny):
    served = await serve(live=True, model=Slow(tiny.model), max_waiting=1)
    endless = {"messages": user("hi"), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    forged = {"X-Forwarded-For": "192.0.2.1"}
    async with served.http.stream("POST", CHAT, json=endless, headers=forged) as running:
        assert running.status_code == 200
        assert (await served.http.post(CHAT, json=OK, headers=forged)).status_code == 200
        body = {"prompt": ["a", "b"], "max_tokens": 1}
        assert error_of(await served.http.post(TEXT, json=body), 429)["code"] == "queue_full"


async def test_several_prompts_of_which_one_is_refused_are_all_refused(serve: Serve):
    served = await serve(max_waiting=2)
    body = {"prompt": ["a", "b", "c", "d"], "max_tokens": 20, "ignore_eos": True}
    for streamed in (False, True):
        error_of(await served.http.post(TEXT, json={**body, "stream": streamed}), 429)
        await eventually(lambda: served.engine.snapshot().running + served.engine.snapshot().waiting == 0)
    assert (await served.http.post(TEXT, json={**body, "prompt": ["a", "b"]})).status_code == 200


async def test_no_traceback_for_a_clients_fault(served: Served, caplog):
    caplog.set_level(logging.DEBUG)
    await served.http.post(CHAT, content=b"{", headers=JSON)
    await served.http.post(CHAT, json={**OK, "n": 0})
    await served.http.post(CHAT, json={**OK, "messages": [{"role": "user", "content": 5}]})
    await served.http.get("/nothing")
    assert not [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO]


class Breaking:
    """The real model, whose computation fails as long as `broken` is set."""

    def __init__(self, model: Model):
        self._model = model
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Batch, kv: KVPool) -> Any:
        if self.broken:
            raise RuntimeError("secret_internal_detail")
        return self._model.forward(batch, kv)


async def test_an_engine_that_fails_is_a_500_without_internals_and_lives(serve: Serve, tiny, caplog):
    model = Breaking(tiny.model)
    served = await serve(model=model)
    model.broken = True
    for body in (OK, {**OK, "stream": True}):
        error = error_of(await served.http.post(CHAT, json=body), 500)
        assert error["type"] == "server_error"
        assert "secret_internal_detail" not in error["message"]
    assert "secret_internal_detail" in caplog.text
    model.broken = False
    assert (await served.http.post(CHAT, json=OK)).status_code == 200
    assert (await served.http.get("/health")).status_code == 200


async def test_an_engine_that_is_dead_shows_in_health_and_in_every_answer(serve: Serve, tiny):
    model = Breaking(tiny.model)
    served = await serve(model=model)
    model.broken = True
    for _ in range(3):
        error_of(await served.http.post(CHAT, json=OK), 500)
    async with asyncio.timeout(HANG_S):
        while (await served.engine.health()).ok:
            await asyncio.sleep(0.005)
    assert (await served.http.get("/health")).status_code == 503
    assert error_of(await served.http.post(CHAT, json=OK), 503)["code"] == "engine_failed"
    assert error_of(await served.http.post("/reset_prefix_cache", json={}), 503)["code"] == "engine_failed"


async def test_an_engine_that_fails_in_mid_stream_is_an_error_event(serve: Serve, tiny):
    """ss-03, case 1: no finish reason, no [DONE], and the response ends."""
    model = Breaking(tiny.model)
    served = await serve(live=True, model=model)
    lines: list[str] = []
    body = {"messages": user("hi"), "stream": True, "max_tokens": 3000, "ignore_eos": True}
    async with served.http.stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            if line:
                lines.append(line)
            if len(lines) == 4:
                model.broken = True
    assert all(line.startswith("data: ") for line in lines)
    *chunks, error = [json.loads(line[6:]) for line in lines]
    assert set(error) == {"error"}
    assert error["error"]["type"] == "server_error"
    assert "secret" not in error["error"]["message"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_each_refusal_has_its_status():
    assert from_refusal(RequestRefused("queue_full", "m")).status == 429
    assert from_refusal(RequestRefused("shutting_down", "m")).status == 503
    assert from_refusal(RequestRefused("context_length_exceeded", "m")).status == 400


async def test_a_template_that_writes_nothing(tiny: Tiny):
    renderer = Renderer.from_model(tiny.path, chat_template="{# nothing #}")
    async with serving(dataclasses.replace(tiny, renderer=renderer), live=False) as served:
        for options in ({}, {"stream": True}):
            response = await served.http.post(CHAT, json={"messages": user("hi"), **options})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "messages"
        counted = await served.http.post("/tokenize", json={"messages": user("hi")})
        assert counted.json()["count"] == 0
