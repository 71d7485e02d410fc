"""Clients that go away free their request at once: streaming or not, in prefill, in decode, or while they wait."""

import asyncio
import json
import socket

import pytest

from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny
from tests.server.helpers import Slow, eventually, user

# Prefill of this takes hundreds of steps with a batch of so few tokens.
SLOW_PREFILL = {"max_num_seqs": 4, "max_batch_tokens": 8}
SLOW_STEP_S = 0.05
LONG = "The quick brown fox jumps over the lazy dog. " * 120


async def post_and_leave(served: Served, url: str, body: dict, when) -> None:
    """Send a request on a socket of its own, close it when `when()` holds."""
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST {url} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer key\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    await eventually(when)
    writer.close()
    await writer.wait_closed()


def body_of(url: str, text: str, **more) -> dict:
    start = {"messages": user(text)} if url == CHAT else {"prompt": text}
    return {**start, "max_tokens": 2000, "ignore_eos": True, **more}


def all_free(served: Served) -> bool:
    stats = served.engine.snapshot()
    return stats.running == stats.waiting == stats.blocks_running == 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_in_decode(serve: Serve, tiny: Tiny, url: str, streamed: bool):
    """ss-02: also without streaming, where no write fails."""
    served = await serve(live=True, model=Slow(tiny.model))
    body = body_of(url, "hi", stream=streamed, n=2)
    await post_and_leave(served, url, body, lambda: served.engine.snapshot().totals.generated_tokens > 10)
    await eventually(lambda: all_free(served))
    totals = served.engine.snapshot().totals
    assert (totals.finished, totals.failed) == (0, 0)
    assert totals.aborted > 0
    assert totals.generated_tokens < 2 * 2000


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_in_prefill(serve: Serve, tiny: Tiny, url: str, streamed: bool):
    served = await serve(live=True, model=Slow(tiny.model, SLOW_STEP_S), **SLOW_PREFILL)
    body = body_of(url, LONG, stream=streamed, max_tokens=100)
    await post_and_leave(served, url, body, lambda: served.engine.snapshot().running == 1)
    await eventually(lambda: all_free(served))
    assert served.engine.snapshot().totals.generated_tokens == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stream_that_opened_in_prefill(serve: Serve, tiny: Tiny, streamed: bool):
    """The stream opens before the first token; a client that leaves then is noticed too."""
    served = await serve(live=True, model=Slow(tiny.model, SLOW_STEP_S), stream_open_after_s=0.0, **SLOW_PREFILL)
    body = body_of(CHAT, LONG, stream=streamed, max_tokens=100)
    await post_and_leave(served, CHAT, body, lambda: served.engine.snapshot().running == 1)
    await eventually(lambda: all_free(served))
    assert served.engine.snapshot().totals.generated_tokens == 0


async def test_while_waiting_for_others(serve: Serve, tiny: Tiny):
    model = Slow(tiny.model, 0.05)
    served = await serve(live=True, model=model, max_num_seqs=1, max_batch_tokens=512, api_keys=("key",))
    served.http.headers["authorization"] = "Bearer key"  # another caller's would not wait
    running = asyncio.create_task(served.http.post(CHAT, json=body_of(CHAT, "first", max_tokens=400)))
    await eventually(lambda: served.engine.snapshot().running == 1)
    for streamed in (False, True):
        await post_and_leave(
            served, CHAT, body_of(CHAT, "second", stream=streamed), lambda: served.engine.snapshot().waiting == 1
        )
        await eventually(lambda: served.engine.snapshot().waiting == 0)
    model.pause_s = 0.0
    answer = (await running).json()
    assert answer["usage"]["completion_tokens"] == 400
    assert served.engine.snapshot().totals.finished == 1


async def test_with_several_prompts(serve: Serve, tiny: Tiny):
    served = await serve(live=True, model=Slow(tiny.model))
    body = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 2000, "ignore_eos": True}
    await post_and_leave(served, TEXT, body, lambda: served.engine.snapshot().running == 6)
    await eventually(lambda: all_free(served))


async def test_in_the_middle_of_the_body(serve: Serve, caplog):
    served = await serve(live=True)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        )
        client.sendall(head.encode() + b'{"messages": [')
        await asyncio.sleep(0.05)
    assert (await served.http.post(CHAT, json=body_of(CHAT, "hi", max_tokens=2))).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


async def test_others_are_answered_as_if_nothing_had_happened(serve: Serve):
    served = await serve(live=True)
    body = body_of(CHAT, "steady", max_tokens=200, temperature=0)
    alone = (await served.http.post(CHAT, json=body)).json()["choices"]
    steady = asyncio.create_task(served.http.post(CHAT, json=body))
    for number in range(6):
        leaving = body_of(CHAT, f"leaving {number}", stream=number % 2 == 0)
        before = served.engine.snapshot().totals.generated_tokens
        await post_and_leave(
            served, CHAT, leaving, lambda before=before: served.engine.snapshot().totals.generated_tokens > before + 5
        )
    assert (await steady).json()["choices"] == alone
    await eventually(lambda: all_free(served))
