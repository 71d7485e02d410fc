"""What an attack is: a name, what it sends, and how it may end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

CLOSED = "closed"  # the outcome of a connection that the server has closed without an answer
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is attacked: tokenline with a small model, on a port of 127.0.0.1, without keys."""

    url: str
    pid: int
    http: httpx.AsyncClient  # with `url` as its base, and no limit of connections

    @property
    def address(self) -> tuple[str, int]:
        base = httpx.URL(self.url)
        return base.host, base.port or 80


Attack = Callable[[Target], Awaitable[str]]  # gives the outcome: a status as text, or `CLOSED`, or a word of its own


@dataclass(frozen=True, slots=True)
class Bomb:
    name: str  # of letters, digits and hyphens: the id of a test
    attack: Attack
    expects: tuple[str, ...]  # the outcomes that are right
    slow: bool = False  # takes more than some 2 seconds, so `make test` leaves it out


def post(name: str, path: str, make: Callable[[], Any], *expects: int, slow: bool = False) -> Bomb:
    """One POST of JSON. `make`: its body, as an object, or as bytes that need not be JSON."""

    async def attack(target: Target) -> str:
        body = await asyncio.to_thread(make)
        if isinstance(body, bytes):
            answer = await target.http.post(path, content=body, headers={"Content-Type": "application/json"})
        else:
            answer = await target.http.post(path, json=body)
        return str(answer.status_code)

    return Bomb(name, attack, tuple(map(str, expects)), slow)


def many(name: str, count: int, one: Bomb) -> Bomb:
    """The same so many times at once. Its outcome is that of all, in a row without repetition."""

    async def attack(target: Target) -> str:
        outcomes = await asyncio.gather(*(one.attack(target) for _ in range(count)))
        wrong = sorted({outcome for outcome in outcomes if outcome not in one.expects})
        return wrong[0] if wrong else one.expects[0]

    return Bomb(name, attack, one.expects, one.slow)


def raw(name: str, data: bytes, *expects: int | str, slow: bool = False) -> Bomb:
    """These bytes on a connection of their own; the outcome is the status of the first answer."""

    async def attack(target: Target) -> str:
        return await exchange(target, data)

    return Bomb(name, attack, tuple(map(str, expects)), slow)


async def exchange(target: Target, data: bytes, patience_s: float = 60.0) -> str:
    """Send bytes and read the first answer's status; `CLOSED` without one, "silent" if none comes in time."""
    reader, writer = await asyncio.open_connection(*target.address)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(patience_s):
            line = await reader.readline()
        return line.split(b" ")[1].decode() if line.startswith(b"HTTP/") else CLOSED
    except ConnectionError:
        return CLOSED
    except TimeoutError:
        return "silent"
    finally:
        writer.close()
