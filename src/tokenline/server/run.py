"""Run the application on a port until SIGTERM or Ctrl-C: uvicorn, shut down so that streams end properly.

Knows sockets and signals, no route. `run` is the last call of `tokenline serve`.
"""

import asyncio
import gc
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from tokenline.server.connections import Connections, max_connections
from tokenline.server.http1 import MAX_HEAD_BYTES, Http1
from tokenline.server.log import configure_logging
from tokenline.server.state import ServerState

# How long a thread that works on a large request may keep the interpreter from the engine and the event loop, which
# each need it several times for a token or an answer. Python's default is 5 ms.
SWITCH_S = 0.001
FLUSH_S = 1.0  # for the last bytes of an answer, when the server ends
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they never write to a closed one


class ServerError(Exception):
    """The server cannot start, or had to stop. The message is for the person at the terminal."""


def bind(host: str, port: int) -> socket.socket:
    """Take the port (0: any free one). Raises ServerError. Worth doing before a model is loaded for minutes."""
    if not 0 <= port <= 65535:  # getaddrinfo would take it modulo 65536
        raise ServerError(f"cannot listen on {host}:{port}: a port is a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ServerError(f"cannot listen on {host}:{port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # On Linux two sockets may bind one port with SO_REUSEADDR; only listening shows that it is taken.
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ServerError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    return listener


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return f"{text} (is another server running? choose another --port)" if "in use" in text else text


def url_of(listener: socket.socket) -> str:
    """The base URL under which a listening socket can be reached from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    listener: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal comes, then end what is running within the grace period and return.

    `listener`: a socket from `bind`, instead of host and port. `on_ready` is called with the base URL once requests are
    answered. Raises ServerError when the port is taken or the engine has died.
    """
    state: ServerState = app.state.server
    configure_logging(state.settings.log_level, state.settings.log_json)
    listener = listener or bind(host, port)
    server = make_server(app, lambda: on_ready and on_ready(url_of(listener)))
    # What is loaded by now stays: without this, the garbage collector goes through all of it in the middle of some
    # request, which took 0.25 s.
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    with listener, _signals_end_here():
        server.run(sockets=[listener])
    if server.engine_failed:
        raise ServerError(f"the engine has stopped: {server.failure}")


def make_server(app: FastAPI, on_ready: Callable[[], object] = lambda: None) -> "TokenlineServer":
    """The uvicorn server of an application, for callers that run the event loop: `await server.serve([listener])`."""
    state: ServerState = app.state.server
    open_connections = Connections(max_connections())
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        # Anybody can write X-Forwarded-For; callers are told apart by it only behind a proxy that the user names.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        http=cast(Any, partial(Http1, open_connections)),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        # The last resort: by then the engine has ended its requests, and every connection has been ended.
        timeout_graceful_shutdown=math.ceil(state.settings.shutdown_grace_s + FLUSH_S + 1),
    )
    return TokenlineServer(config, state, open_connections, on_ready)


class TokenlineServer(uvicorn.Server):
    """uvicorn waits for open connections first and tells the application last; here the engine learns at once that it
    is to come to an end, so that those connections do.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, connections: Connections, on_ready: Callable[[], object]
    ):
        super().__init__(config)
        self._state = state
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []
        self._on_ready = on_ready
        self.engine_failed = False
        self.failure: str | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # its own way of accepting has no bounds
        if self.started:
            for listener in sockets or ():
                listener.setblocking(False)
                self._tasks.append(asyncio.create_task(self._connections.accept(listener, self._make_protocol)))
            self._tasks.append(asyncio.create_task(self._connections.sweep()))
            self._on_ready()

    def _make_protocol(self) -> asyncio.BaseProtocol:
        make = self.config.http_protocol_class
        return cast(Any, make)(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        health = await self._state.service.engine.health()
        if not health.ok:
            self.engine_failed, self.failure = True, health.failure
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(self._state.close())
        for task in self._tasks:
            task.cancel()
        ending = asyncio.create_task(self._end_connections(closing))
        await super().shutdown(sockets)
        ending.cancel()
        await closing

    async def _end_connections(self, engine_closing: asyncio.Future[None]) -> None:
        """Once the engine has ended what it was doing, a client has a moment to read what it was told."""
        await asyncio.shield(engine_closing)
        await asyncio.sleep(FLUSH_S)
        self._connections.abort_all()


@contextmanager
def _signals_end_here() -> Iterator[None]:
    """uvicorn raises a signal again once it has come down; ending on request is a success, so nothing happens then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
