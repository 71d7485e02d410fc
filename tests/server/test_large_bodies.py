"""Bodies that are large or dear: refused early, read beside the event loop, never held by more than a bound."""

import asyncio
import json
import threading

import pytest

from tests.server.conftest import CHAT, TEXT, Serve, Served
from tests.server.helpers import user
from tokenline.aside import LARGE, MAX_WAITING, THREADS, Aside, Declined
from tokenline.server import body as bodies
from tokenline.server.json_answer import PIECE_VALUES, encode
from tokenline.server.parse_cost import ParseCost

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000, b"[]," * 300_000, b"{}," * 600_000, b'"a",' * 500_000, b'{"a":' * 100_000, b"1," * 700_000,
        b"\\u0000" * 3_000_000, b'"f1":1,' * 100_000, b"x" * (40 << 20),
    ],
    ids=["nested", "arrays", "objects", "strings", "names", "numbers", "escapes", "members", "bytes"],
)  # fmt: skip
def test_what_would_hold_up_others_is_known_by_its_bytes(data: bytes):
    cost = ParseCost(8192)
    assert not all(cost.add(data[at : at + 65536]) for at in range(0, len(data), 65536))


@pytest.mark.parametrize("context", [128, 8192, 131072])
def test_what_fits_a_context_may_be_read(context: int):
    ids = json.dumps({"prompt": [100_000] * context}).encode()
    text = json.dumps({"messages": user("Ja, \"你好\": {'a': [1, 2]}\n" * (context // 8))}).encode()
    calls = json.dumps({"tools": [{"name": f"f{i}", "type": "object"} for i in range(context // 16)]}).encode()
    for data in (ids, text, calls, b"word " * (2 << 20)):
        assert ParseCost(context).add(data)


def test_an_answer_in_pieces_is_the_same_json():
    small = {"a": [1, None, "x\n你好😀"], "b": {}, "c": []}
    numbers = list(range(3 * PIECE_VALUES + 5))
    entries = [{"token": str(i), "top": [{"token": "x", "logprob": -0.5}] * 20} for i in range(2000)]
    large = {
        "choices": [{"ids": numbers, "logprobs": {"content": entries}}, small],
        "empty": [[], {}],
        "last": [numbers],
    }
    for value in (small, large, [], {}, "x", [large, large], numbers, [[numbers], []]):
        assert json.loads(encode(value)) == value
        assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


async def test_small_work_is_done_at_once_and_a_full_queue_refuses():
    aside, go = Aside("test"), asyncio.Event()
    loop = asyncio.get_running_loop()
    assert await aside.run_if_large(LARGE, threading.get_ident) == threading.get_ident()
    assert await aside.run_if_large(LARGE + 1, threading.get_ident) != threading.get_ident()

    def wait() -> str:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return "then"

    jobs = [asyncio.ensure_future(aside.run(wait)) for _ in range(THREADS + MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Declined, match="try again later") as declined:
        await aside.run(wait)
    assert declined.value.code == "queue_full"
    jobs.pop().cancel()  # the client of one that waits is gone: its place is free
    await asyncio.sleep(0.1)
    jobs.append(asyncio.ensure_future(aside.run(wait)))
    go.set()
    assert await asyncio.gather(*jobs) == ["then"] * len(jobs)
    go.clear()
    jobs = [asyncio.ensure_future(aside.run(wait)) for _ in range(THREADS + 1)]
    await asyncio.sleep(0.1)
    aside.close()  # what has begun is done, what waits is told
    go.set()
    *begun, waited = await asyncio.gather(*jobs, aside.run(wait), return_exceptions=True)
    assert begun[:THREADS] == ["then"] * THREADS
    for told in (*begun[THREADS:], waited):
        assert isinstance(told, Declined)
        assert told.code == "shutting_down"


async def test_a_dear_body_is_a_413_and_the_next_request_is_answered(serve: Serve):
    served = await serve(live=True)
    for data in (b'{"messages": [' + b"[]," * 400_000 + b"1]}", b'{"x": ' + b'{"a":' * 200_000):
        response = await served.http.post(CHAT, content=data, headers=JSON)
        assert response.status_code == 413
        error = response.json()["error"]
        assert error["code"] == "body_too_large"
        assert "4096" in error["message"]
    assert (await served.http.post(TEXT, json={"prompt": "x", "max_tokens": 1})).status_code == 200


async def test_what_is_too_long_for_any_context_is_not_tokenized(served: Served, monkeypatch: pytest.MonkeyPatch):
    limit = served.app.state.server.service.room.max_text
    assert limit == (1 << 20) + 16 * 4096
    monkeypatch.setattr(served.renderer, "text", None)
    monkeypatch.setattr(served.renderer, "chat", None)
    monkeypatch.setattr(served.renderer, "apply_template", None)
    monkeypatch.setattr(served.renderer.tokenizer, "encode", None)
    long = "x" * (limit + 1)
    for url, body, field in (
        ("/tokenize", {"prompt": long}, "prompt"),
        ("/tokenize", {"prompt": long, "add_special_tokens": False}, "prompt"),
        ("/tokenize", {"messages": user(long)}, "messages"),
        ("/apply-template", {"messages": user(long)}, "messages"),
        ("/v1/chat/completions/input_tokens", {"messages": user(long)}, "messages"),
        (CHAT, {"messages": user(long)}, "messages"),
        (CHAT, {"messages": user("x"), "tools": [{"function": {"name": long}}], "tool_choice": "none"}, "messages"),
        (TEXT, {"prompt": long}, "prompt"),
    ):
        response = await served.http.post(url, json=body)
        assert response.status_code == 400, url
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (field, "context_length_exceeded")


async def test_what_is_longer_than_the_context_can_be_counted(served: Served):
    text = "Hello 你好 😀 " * 2000
    for more in ({}, {"add_special_tokens": False}, {"return_token_strs": True}):
        answer = (await served.http.post("/tokenize", json={"prompt": text, **more})).json()
        assert answer["count"] == len(answer["tokens"]) > 4096
        back = (await served.http.post("/detokenize", json={"tokens": answer["tokens"]})).json()
        assert back["prompt"].endswith(text[-100:])
    assert len(answer["token_strs"]) == answer["count"]


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def _connect(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a body has been begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    writer.write(HEAD + b"Content-Length: 200000\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("pause_s", [None, 0.05], ids=["silent", "a-little-at-a-time"])
async def test_a_body_that_does_not_come_is_a_408(serve: Serve, monkeypatch: pytest.MonkeyPatch, pause_s: float | None):
    served = await serve(live=True)
    monkeypatch.setattr(bodies, "IDLE_S", 0.3)
    reader, writer = await _connect(served)

    async def send() -> None:
        while pause_s is not None:
            writer.write(b" ")
            await asyncio.sleep(pause_s)

    sending = asyncio.ensure_future(send())
    answer = await reader.read()  # to its end: the connection closes
    sending.cancel()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "request_timeout"
    writer.close()


async def test_large_bodies_share_a_bound_and_small_ones_need_none(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    served = await serve(live=True)
    reader_of_bodies = served.app.state.server.bodies
    monkeypatch.setattr(bodies, "MAX_HELD_BYTES", 100_000)
    body = {"max_tokens": 1, "prompt": "x", "user": "y" * 60_000}
    _, writer = await _connect(served)
    writer.write(b" " * 90_000)
    while reader_of_bodies._held < 90_000:
        await asyncio.sleep(0.01)
    refused = await served.http.post(TEXT, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused.headers["retry-after"]
    assert (await served.http.post(TEXT, json={**body, "user": "y"})).status_code == 200
    writer.close()  # a client that leaves gives back what it held
    while reader_of_bodies._held:
        await asyncio.sleep(0.01)
    assert (await served.http.post(TEXT, json=body)).status_code == 200
    assert reader_of_bodies._held == 0


async def test_log_probabilities_of_a_whole_answer_are_bounded(served: Served):
    chat = {"messages": user("x"), "logprobs": True, "top_logprobs": 20, "n": 128}
    refused = await served.http.post(CHAT, json={**chat, "max_tokens": 98})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "max_tokens"
    assert "at most 97" in error["message"]
    for body in ({"max_tokens": 1}, {"max_tokens": 98}, {"max_tokens": 98, "stream": True}):
        assert (await served.http.post(CHAT, json={**chat, "n": 2, **body, "stop": ["x"]})).status_code == 200
    text = await served.http.post(TEXT, json={"prompt": ["x"] * 2, "n": 64, "logprobs": 20, "max_tokens": 98})
    assert text.status_code == 400
