"""Compressed bodies and byte-order marks (r2-37)."""

import functools
import gzip
import importlib.util
import json
import zlib
from collections.abc import AsyncIterator

import pytest

from tests.server.conftest import CHAT, Serve, Served, in_module_loop
from tests.server.helpers import user
from tokenline.server.encodings import decoder
from tokenline.server.errors import ApiError

BODY = json.dumps({"messages": user("你好"), "max_tokens": 1}).encode()
JSON = {"Content-Type": "application/json"}
zipped = functools.partial(gzip.compress, mtime=0)  # without the time: the bytes are part of the tests' names


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@in_module_loop
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", zipped(BODY)),
        ("x-gzip", zipped(BODY)),
        ("GZIP", zipped(BODY)),
        ("gzip", zipped(BODY[:20]) + zipped(BODY[20:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", raw_deflate(BODY)),
        ("identity", BODY),
        ("", BODY),
        ("gzip", zipped(b"\xef\xbb\xbf" + BODY)),
    ],
)
async def test_encoded_bodies(shared: Served, coding: str, body: bytes):
    async def in_pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    headers = {**JSON, "Content-Encoding": coding}
    for content in (body, in_pieces()):
        response = await shared.http.post(CHAT, content=content, headers=headers)
        assert response.status_code == 200, response.text


@in_module_loop
async def test_a_byte_order_mark(shared: Served):
    response = await shared.http.post(CHAT, content=b"\xef\xbb\xbf" + BODY, headers=JSON)
    assert response.status_code == 200, response.text


@in_module_loop
@pytest.mark.parametrize("coding", ["br", "compress", "gzip, gzip", "gzip, br", "x"])
async def test_another_coding_is_a_415_that_says_what_is_accepted(shared: Served, coding: str):
    response = await shared.http.post(CHAT, content=BODY, headers={**JSON, "Content-Encoding": coding})
    assert response.status_code == 415
    assert response.headers["accept-encoding"].startswith("gzip, deflate")
    error = response.json()["error"]
    assert error["code"] == "unsupported_encoding"
    assert "gzip" in error["message"]


@in_module_loop
async def test_zstd_is_decoded_where_python_can_or_a_415(shared: Served):
    if importlib.util.find_spec("compression") is None:
        response = await shared.http.post(CHAT, content=b"x", headers={**JSON, "Content-Encoding": "zstd"})
        assert response.status_code == 415
        assert "zstd" in response.json()["error"]["message"]
    else:
        body = importlib.import_module("compression.zstd").compress(BODY)
        response = await shared.http.post(CHAT, content=body, headers={**JSON, "Content-Encoding": "zstd"})
        assert response.status_code == 200


@in_module_loop
@pytest.mark.parametrize("body", [BODY, b"", zipped(BODY)[:-9], zipped(BODY) + b"more"])
async def test_what_is_not_gzip_is_a_400_that_says_so(shared: Served, body: bytes):
    response = await shared.http.post(CHAT, content=body, headers={**JSON, "Content-Encoding": "gzip"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_encoding"
    assert "gzip" in error["message"]


async def test_a_bomb_is_a_413(serve: Serve):
    served = await serve(max_body_bytes=100_000)
    body = zipped(b'{"user": "' + b"x" * 50_000_000 + b'"}')
    assert len(body) < 100_000
    response = await served.http.post(CHAT, content=body, headers={**JSON, "Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert (await served.http.post(CHAT, content=BODY, headers=JSON)).status_code == 200


def test_a_bomb_is_not_unpacked_further_than_the_limit():
    unpack = decoder("gzip", 1000)
    assert unpack is not None
    assert len(unpack.feed(zipped(b"x" * 10_000_000))) == 1001
    exact = decoder("gzip", 1000)
    assert exact is not None
    assert len(exact.feed(zipped(b"x" * 1000))) == 1000
    exact.finish()


def test_many_members_are_one_body():
    unpack = decoder("gzip", 1000)
    assert unpack is not None
    assert unpack.feed(zipped(b"") * 3 + zipped(b"ab")) == b"ab"
    unpack.finish()
    with pytest.raises(ApiError):
        decoder("lzma", 10)
