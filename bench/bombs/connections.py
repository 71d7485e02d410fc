"""What is done to connections: bodies that never end, answers that nobody reads, malformed HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.bombs.bomb import CHAT, CLOSED, TEXT, Bomb, Target, raw

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MIB = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def opened(target: Target, count: int) -> AsyncIterator[list[Pair]]:
    """So many connections, closed in the end."""
    pairs = [await asyncio.open_connection(*target.address, limit=4096) for _ in range(count)]
    try:
        yield pairs
    finally:
        for _, writer in pairs:
            writer.transport.abort()
        await asyncio.sleep(0)


def _head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def _held(name: str, count: int, pieces: Sequence[bytes], seconds: float, *, slow: bool = False) -> Bomb:
    """So many connections that send this and then nothing, for some time."""

    async def attack(target: Target) -> str:
        async with opened(target, count) as pairs:
            for piece in pieces:
                for _, writer in pairs:
                    with contextlib.suppress(ConnectionError):
                        writer.write(piece)
                        async with asyncio.timeout(5):
                            await writer.drain()
            await asyncio.sleep(seconds)
            answer = await target.http.get("/health")
            return str(answer.status_code)

    return Bomb(name, attack, ("200",), slow)


def _unread(name: str, count: int, body: dict[str, object], seconds: float, *, slow: bool = False) -> Bomb:
    """So many requests whose answers nobody reads."""
    data = json.dumps(body).encode()
    path = CHAT if "messages" in body else TEXT
    return _held(name, count, [_head(path, len(data)) + data], seconds, slow=slow)


async def _flood(target: Target, data: bytes, end: bytes = b"") -> str:
    """Send a lot on one connection; the status of the first answer."""
    reader, writer = await asyncio.open_connection(*target.address)

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), 65536):
                writer.write(data[at : at + 65536])
                await writer.drain()
            writer.write(end)

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(60):
            line = await reader.readline()
        return line.split(b" ")[1].decode() if line.startswith(b"HTTP/") else CLOSED
    except ConnectionError:
        return CLOSED
    finally:
        sending.cancel()
        writer.transport.abort()


def _sent(name: str, data: bytes, *expects: str, end: bytes = b"", slow: bool = False) -> Bomb:
    async def attack(target: Target) -> str:
        return await _flood(target, data, end)

    return Bomb(name, attack, expects, slow)


_CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_LONG = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}

BOMBS = [
    raw("no-http", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    _held("connections-that-say-nothing", 300, [b""], 1.0),
    _held("more-than-there-is-room-for", 1500, [b"GET / HT"], 2.0, slow=True),
    _held("half-heads", 300, [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nA: "], 1.0),
    _held("half-bodies", 30, [_head(CHAT, 15 * MIB), *[b" " * MIB] * 14], 1.0),
    _held("half-bodies-to-no-route", 30, [_head("/nothing", 15 * MIB), *[b" " * MIB] * 14], 1.0),
    _unread("streams-that-nobody-reads", 30, _LONG, 3.0, slow=True),
    _unread("answers-that-nobody-reads", 30, {**_LONG, "stream": False, "max_tokens": 99}, 3.0, slow=True),
    _sent("many-in-a-row", HEALTH * 3000, "200"),
    _sent("chunks-of-one-byte", _CHUNKED + b"1\r\n \r\n" * 1_000_000, "400", "413", end=b"0\r\n\r\n", slow=True),
    _sent("a-body-of-a-gigabyte", _head(CHAT, 1 << 30) + b" " * 64 * MIB, "413", CLOSED),
    _sent("endless-chunks", _CHUNKED + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 1000, "413"),
    _sent("endless-head", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1_000_000, "431", CLOSED),
]  # fmt: skip
