"""Open connections: how many there may be, how long each may wait for what, and who makes room for a newcomer.

    listener ──accept──> Connections ──one `Http1` each──> requests

uvicorn and asyncio have no such bounds: a connection may say nothing for ever, a client may never read its answer, and
where a process has no descriptor left, asyncio logs a traceback for every connection that waits, many times a second.
Knows connections by what they wait for; no HTTP.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("tokenline.connections")

MAX_CONNECTIONS = 1000
SPARE_DESCRIPTORS = 128  # for files, and for what libraries open
HEAD_S = 20.0  # from the first byte of a request, or of a connection, to the end of its headers
STALLED_S = 60.0  # for which a client reads nothing of what it is sent
CLOSING_S = 5.0  # the same, on a connection that is being closed
YOUNG_S = 1.0  # a connection that does not make room for another one
SWEEP_S = 1.0
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(Protocol):
    """What is asked of one (see `http1`)."""

    opened_s: float  # since when it has been without a request (time.monotonic())

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, or only the beginning of one."""
        ...

    @property
    def head_since_s(self) -> float | None:
        """Since when it has had only the beginning of a request, if it has; a new one begins with its first moment."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        ...

    @property
    def is_closing(self) -> bool: ...

    def head_is_late(self) -> None:
        """End it: its request does not come."""
        ...

    def close(self) -> None:
        """End it, once what is unsent is sent."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...


def max_connections() -> int:
    """How many descriptors leave room for, after the process was given all that it may have."""
    try:
        import resource  # not on Windows
    except ImportError:
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(MAX_CONNECTIONS, soft - SPARE_DESCRIPTORS))
    return MAX_CONNECTIONS


class Connections:
    """All that are open. Belongs to the event loop."""

    def __init__(self, limit: int):
        self.limit = limit
        self._open: dict[Connection, tuple[int, float]] = {}  # what was unsent, and since when that has been so
        self._room = asyncio.Event()
        self._room.set()
        self._is_full = False  # and that was said

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open[connection] = (0, time.monotonic())
        if len(self._open) >= self.limit:
            self._room.clear()

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        if len(self._open) < self.limit:
            self._room.set()

    # ---- newcomers

    async def accept(self, listener: socket.socket, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections until cancelled. Where there is no room, whoever waits on the listener waits on."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._room.is_set():
                self._make_room(time.monotonic())
                await self._room.wait()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    continue  # that client has gone already
                self._say_full(f"{error.strerror}; {len(self._open)} connections are open")
                self._close_oldest_idle(time.monotonic())
                await asyncio.sleep(SWEEP_S)
                continue
            try:
                await loop.connect_accepted_socket(make, connection)
            except OSError:
                connection.close()
            if len(self._open) <= self.limit // 2:
                self._is_full = False

    def _make_room(self, now_s: float) -> None:
        if not self._close_oldest_idle(now_s):
            self._say_full(f"{len(self._open)} connections are open, the most there may be")

    def _say_full(self, reason: str) -> None:
        """Once, until somebody is accepted while half of the room is free."""
        if not self._is_full:
            self._is_full = True
            logger.warning("newcomers wait: %s", reason)

    def _close_oldest_idle(self, now_s: float) -> bool:
        """Whether there was one; not one that has only just come, and is about to say what it wants."""
        idle = [connection for connection in self._open if connection.is_idle and not connection.is_closing]
        oldest = min(idle, key=lambda connection: connection.opened_s, default=None)
        if oldest is None or now_s - oldest.opened_s < YOUNG_S:
            return False
        oldest.close()
        return True

    # ---- time

    async def sweep(self) -> None:
        """Every second, end what has waited too long. Until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.end_late(time.monotonic())

    def end_late(self, now_s: float) -> None:
        for connection, (unsent, since_s) in list(self._open.items()):
            if connection.unsent != unsent or not unsent:
                self._open[connection] = (connection.unsent, now_s)
            elif now_s - since_s > (CLOSING_S if connection.is_closing else STALLED_S):
                connection.abort()
                continue
            head_s = connection.head_since_s
            if head_s is not None and now_s - head_s > HEAD_S and not connection.is_closing:
                connection.head_is_late()
        if not self._room.is_set():
            self._make_room(now_s)

    def abort_all(self) -> None:
        for connection in list(self._open):
            connection.abort()
