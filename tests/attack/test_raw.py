"""Whatever bytes come: an answer in this server's shape with an id, or a closed connection; and the next is served."""

import asyncio
import json

import pytest
from bench.bombs.bomb import CLOSED

from tests.attack.raw_requests import RAW
from tests.limits import HANG_S


async def answer_to(url: str, data: bytes) -> bytes:
    """The first answer that comes back, as far as it comes at once; b"": none."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(HANG_S):
            first = await reader.read(65536)
            length = first.partition(b"\r\n\r\n")[2]
            while first and not length:  # the head alone has come
                more = await reader.read(65536)
                if not more:
                    break
                first += more
                length = first.partition(b"\r\n\r\n")[2]
            return first
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(("name", "data", "expected"), RAW, ids=[name for name, _, _ in RAW])
async def test_raw_requests(server: tuple[str, int], name: str, data: bytes, expected: tuple[str, ...]):
    url = server[0]
    answer = await answer_to(url, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ")[1].decode() if head.startswith(b"HTTP/1.") else CLOSED
    assert status in expected, answer[:300]
    if status != CLOSED and status != "100":
        assert b"\r\nx-request-id:" in head.lower()
    if status.startswith("4") and body and b"\r\nallow:" not in head.lower():
        error = json.loads(body)["error"]
        assert error["message"]
        assert error["type"]
    if status in ("400", "431") and name.startswith(("no-request", "large", "many", "long-name")):
        assert b"\r\nconnection: close" in head.lower()
    follow = await answer_to(url, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert follow.startswith(b"HTTP/1.1 200 "), "the next client is served"
