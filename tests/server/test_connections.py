"""Open connections: how many, for how long, and who goes first. On a real port, or with connections that are told."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from dataclasses import dataclass, field

import httpx
import pytest

from tests.limits import HANG_S
from tests.server.conftest import CHAT, TEXT, Serve, Served, Tiny
from tests.server.test_run import Process
from tokenline.server import connections as module
from tokenline.server.connections import CLOSING_S, HEAD_S, STALLED_S, Connections, max_connections

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass(eq=False)
class Told:
    """A connection that is as it is told, and remembers what was done to it."""

    opened_s: float = 0.0
    is_idle: bool = True
    head_since_s: float | None = None
    unsent: int = 0
    is_closing: bool = False
    done: list[str] = field(default_factory=list)

    def head_is_late(self) -> None:
        self.done.append("late")

    def close(self) -> None:
        self.done.append("closed")
        self.is_closing = True

    def abort(self) -> None:
        self.done.append("aborted")


def test_what_waits_too_long_is_ended():
    now_s = time.monotonic()
    connections = Connections(10)
    late, early = Told(head_since_s=now_s), Told(head_since_s=now_s + 10)
    stalled, slow, leaving = Told(unsent=5), Told(unsent=5), Told(unsent=5, is_closing=True)
    told = [late, early, stalled, slow, leaving]
    for one in told:
        connections.add(one)
    for second in range(int(STALLED_S) + 3):
        slow.unsent = 6 if slow.unsent == 5 else 5  # it takes something now and then
        connections.end_late(now_s + second)
        if second < HEAD_S:
            assert not late.done
        if second < CLOSING_S:
            assert not leaving.done
        if second == HEAD_S + 2:
            early.head_since_s = None
        for one in (late, leaving):
            if one.done:
                connections.remove(one)
    assert [one.done[:1] for one in told] == [["late"], [], ["aborted"], [], ["aborted"]]


async def _connect(served: Served, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    return reader, writer


async def test_a_newcomer_takes_the_place_of_the_oldest_that_is_idle(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    served = await serve(live=True)
    body = b'{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true}'
    stream = await _connect(served, HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await stream[0].readline()).startswith(b"HTTP/1.1 200")
    idle = [await _connect(served, b"GET / HT") for _ in range(3)]
    await asyncio.sleep(0.05)
    newcomers = [await _connect(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
    for reader, _ in newcomers:
        assert (await asyncio.wait_for(reader.readline(), HANG_S)).startswith(b"HTTP/1.1 200")
    for reader, _ in idle:
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
    assert b"data: [DONE]" in await asyncio.wait_for(stream[0].read(), HANG_S)
    assert not [record for record in caplog.records if "newcomers wait" in record.message]


async def test_where_all_are_busy_newcomers_wait_and_that_is_said_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    served = await serve(live=True)
    half = [await _connect(served, HEAD + b"Content-Length: 100\r\n\r\n{") for _ in range(2)]
    await asyncio.sleep(0.1)
    newcomers = [await _connect(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(5)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(newcomers[0][0].readline(), 0.3)
    half[0][1].close()
    for reader, writer in newcomers:
        assert (await asyncio.wait_for(reader.readline(), HANG_S)).startswith(b"HTTP/1.1 200")
        writer.close()
    assert len([record for record in caplog.records if "newcomers wait" in record.message]) == 1


async def test_without_descriptors_there_is_one_line_and_no_traceback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(module, "SWEEP_S", 0.02)
    served = await serve(live=True)
    loop = asyncio.get_running_loop()
    accept, left = loop.sock_accept, [20]

    async def fails(listener: socket.socket):
        if left[0]:
            left[0] -= 1
            raise OSError(24, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", fails)
    for _ in range(2):  # the first is accepted by what waits already
        async with httpx.AsyncClient(base_url=served.url, timeout=HANG_S) as client:
            assert (await client.get("/health")).status_code == 200
    assert left == [0]
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in said] == ["newcomers wait: Too many open files; 1 connections are open"]


async def test_a_head_that_does_not_come_is_a_408(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "HEAD_S", 0.1)
    monkeypatch.setattr(module, "SWEEP_S", 0.05)
    served = await serve(live=True)
    reader, _ = await _connect(served, b"GET / HTTP/1.1\r\nA: ")
    answer = await asyncio.wait_for(reader.read(), HANG_S)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "request_timeout"' in answer
    reader, _ = await _connect(served)
    assert await asyncio.wait_for(reader.read(), HANG_S) == b""


async def test_a_client_that_does_not_read_loses_its_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STALLED_S", 0.3)
    monkeypatch.setattr(module, "SWEEP_S", 0.05)
    served = await serve(live=True)
    body = b'{"prompt": "' + b"a1 " * 300_000 + b'", "return_token_strs": true}'  # the answer has some 8 MB
    head = HEAD.replace(TEXT.encode(), b"/tokenize") + b"Content-Length: %d\r\n\r\n" % len(body)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(client.connect, (host, int(port)))
        await asyncio.to_thread(client.sendall, head + body)
        await asyncio.sleep(0)
        client.settimeout(HANG_S)
        size = 0
        await asyncio.to_thread(client.recv, 1)  # it has begun
        await asyncio.sleep(1.5)
        with contextlib.suppress(ConnectionError):
            while more := await asyncio.to_thread(client.recv, 1 << 20):
                size += len(more)
    assert size < 8_000_000, "what was sent by then, and no more"
    assert (await served.http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HT",
        HEAD + b"Content-Length: 100000\r\n\r\n{",
        HEAD + b"Content-Length: 69\r\n\r\n" + b'{"prompt": "x", "max_tokens": 4000, "ignore_eos": 1, "stream": true} ',
    ],
    ids=["half-a-head", "half-a-body", "a-stream"],
)
def test_the_server_ends_in_time_and_without_a_traceback(tiny: Tiny, data: bytes):
    """Clients that have sent half of something, and those that never read."""
    process = Process(tiny, 1.0, 0.01, 0)
    host, port = process.url.removeprefix("http://").split(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(5)]
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.sendall(data)
    time.sleep(0.5)
    started_s = time.monotonic()
    process.signal(signal.SIGTERM)
    status, log = process.wait()
    assert status == 0
    assert time.monotonic() - started_s < HANG_S
    assert "Traceback" not in log
    assert '"level": "error"' not in log
    for client in clients:
        client.settimeout(HANG_S)
        with contextlib.suppress(ConnectionError):
            told = client.recv(65536)
            if b"Content-Length: 100000" in data:
                assert told.startswith(b"HTTP/1.1 503 ")
                assert b"shutting_down" in told
        client.close()


def test_the_limit_leaves_descriptors_for_others(monkeypatch: pytest.MonkeyPatch):
    resource = pytest.importorskip("resource")
    limits = [(256, 512)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(0, new))
    assert max_connections() == 512 - module.SPARE_DESCRIPTORS
    limits[0] = (256, 4096)
    assert max_connections() == module.MAX_CONNECTIONS
    assert limits[0][0] == module.MAX_CONNECTIONS + module.SPARE_DESCRIPTORS
    limits[0] = (65536, 65536)
    assert max_connections() == module.MAX_CONNECTIONS


async def test_long_work_is_not_cut(serve: Serve, tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    """A client that waits for its answer has no time limit, and an idle connection is used again."""
    monkeypatch.setattr(module, "HEAD_S", 0.1)
    monkeypatch.setattr(module, "STALLED_S", 0.1)
    monkeypatch.setattr(module, "SWEEP_S", 0.02)
    served = await serve(live=True)
    body = {"messages": [{"role": "user", "content": "x " * 1500}], "max_tokens": 300, "ignore_eos": True}
    for _ in range(2):
        assert (await served.http.post(CHAT, json=body)).status_code == 200
        await asyncio.sleep(0.3)
