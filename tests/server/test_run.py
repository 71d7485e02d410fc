"""Running on a port: the port is taken, SIGTERM, an engine that dies. Each in a process or on a socket of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.limits import HANG_S
from tests.server.conftest import CHAT, Tiny
from tests.server.helpers import user
from tokenline.server.run import ServerError, bind, url_of

SERVER = """
import sys
import time
from pathlib import Path
from tokenline.engine.engine import Engine
from tokenline.engine.settings import EngineSettings
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer
from tokenline.server.app import create_app
from tokenline.server.run import ServerError, run
from tokenline.server.settings import ServerSettings

path, grace, pause, break_at = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
model = load_model(path, device="cpu", dtype="float32")
forward, calls = model.forward, 0

def counted(batch, kv):
    global calls
    calls += 1
    if break_at and calls > break_at:
        raise RuntimeError("broken on purpose")
    time.sleep(pause)
    return forward(batch, kv)

model.forward = counted
engine = Engine(model, EngineSettings(kv_cache_memory=16 << 20))
settings = ServerSettings(("tiny",), shutdown_grace_s=grace, log_level="info", log_json=True)
app = create_app(Renderer.from_model(path), engine, settings)
try:
    run(app, "127.0.0.1", 0, on_ready=lambda url: print(url, flush=True))
except ServerError as error:
    sys.exit(f"ServerError: {error}")
"""


class Process:
    """A server process, its URL, and after `wait` its exit status and log."""

    def __init__(self, tiny: Tiny, *arguments: float):
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVER), str(tiny.path), *map(str, arguments)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        _, log = self._process.communicate(timeout=HANG_S)
        return self._process.returncode, log

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def server(tiny: Tiny, *, grace_s: float = 10.0, pause_s: float = 0.0, break_at: int = 0) -> Iterator[Process]:
    """`pause_s` makes each step longer, so that a long answer is under way however late the signal comes."""
    process = Process(tiny, grace_s, pause_s, break_at)
    try:
        yield process
    finally:
        process.end()


def body(max_tokens: int) -> dict:
    return {"messages": user("hi"), "stream": True, "max_tokens": max_tokens, "ignore_eos": True}


def data_of(lines: Iterator[str]) -> Iterator[dict | str]:
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def test_after_sigterm_a_short_stream_comes_to_its_end(tiny: Tiny):
    with (
        server(tiny, grace_s=HANG_S) as process,
        httpx.stream("POST", process.url + CHAT, json=body(200), timeout=HANG_S) as response,
    ):
        seen = []
        for data in data_of(response.iter_lines()):
            seen.append(data)
            if len(seen) == 3:
                process.signal(signal.SIGTERM)
        assert seen[-1] == "[DONE]"
        assert seen[-2]["choices"][0]["finish_reason"] == "length"
        code, log = process.wait()
        assert code == 0, log
        assert "Traceback" not in log


def test_after_the_grace_period_a_long_stream_ends_with_an_error(tiny: Tiny):
    with (
        server(tiny, grace_s=0.2, pause_s=0.02) as process,
        httpx.stream("POST", process.url + CHAT, json=body(4000), timeout=HANG_S) as response,
    ):
        seen = []
        for data in data_of(response.iter_lines()):
            seen.append(data)
            if len(seen) == 3:
                process.signal(signal.SIGTERM)
        assert seen[-1]["error"]["code"] == "shutting_down"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in seen[:-1])
        code, log = process.wait()
        assert code == 0, log
        assert "Traceback" not in log
        (line,) = [entry for entry in map(json.loads, log.splitlines()) if entry["message"] == "request"]
        assert (line["finish"], line["error"]) == ("abort", "shutting_down")


def test_after_the_grace_period_a_plain_answer_is_a_503(tiny: Tiny):
    with server(tiny, grace_s=0.2, pause_s=0.02) as process:
        with httpx.stream("POST", process.url + CHAT, json=body(4000), timeout=HANG_S) as running:
            chunks = data_of(running.iter_lines())
            next(chunks)  # the server is at work
            client = socket.create_connection(process.url.removeprefix("http://").split(":"))
            data = json.dumps({**body(4000), "stream": False}).encode()
            kind = "Content-Type: application/json\r\nExpect: 100-continue"
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
            client.settimeout(HANG_S)
            client.sendall(head.encode())
            assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is reading the request
            client.sendall(data)
            process.signal(signal.SIGTERM)
            list(chunks)
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
            client.close()
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"shutting_down" in answer
        assert process.wait()[0] == 0


def test_an_idle_server_ends_at_once_on_ctrl_c(tiny: Tiny):
    with server(tiny, grace_s=60) as process:
        assert httpx.get(process.url + "/health", timeout=HANG_S).status_code == 200
        process.signal(signal.SIGINT)
        code, log = process.wait()
        assert code == 0, log


def test_a_process_whose_engine_has_died_exits_with_an_error(tiny: Tiny):
    with server(tiny, break_at=1) as process:
        answers = [httpx.post(process.url + CHAT, json={**body(5), "stream": False}, timeout=HANG_S) for _ in range(1)]
        assert [answer.status_code for answer in answers] == [500]
        for _ in range(2):
            try:
                httpx.post(process.url + CHAT, json={**body(5), "stream": False}, timeout=HANG_S)
            except httpx.HTTPError:
                break  # it has gone already
        code, log = process.wait()
        assert code == 1
        assert "ServerError: the engine has stopped" in log


def test_a_port_that_is_taken_is_said_so():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ServerError, match=rf"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no-such-host.invalid", 0), ("192.0.2.1", 0)])
def test_an_address_that_cannot_be_had(host: str, port: int):
    with pytest.raises(ServerError, match=f"cannot listen on {host}:{port}"):
        bind(host, port)


def test_a_port_is_free_again_after_use():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        first.accept()[0].close()  # the side that closes first keeps the port in TIME_WAIT
        client.close()
    bind("127.0.0.1", port).close()


def test_the_url_is_one_that_this_machine_can_use():
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
