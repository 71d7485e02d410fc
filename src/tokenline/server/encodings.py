"""Compressed request bodies (Content-Encoding): decoded as they come, and never to more than the limit.

zstd needs Python 3.14 or newer, whose standard library has it; elsewhere it is a 415, as any other coding.
"""

import importlib
import zlib
from collections.abc import Callable
from typing import Protocol

from tokenline.fields import shown
from tokenline.server.errors import ApiError


class _Decompressor(Protocol):
    """What zlib's and zstd's objects have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decoder:
    """Decodes one body, to `limit + 1` bytes at most: enough to know that it is too large."""

    def __init__(self, coding: str, make: Callable[[], _Decompressor], limit: int):
        self._coding = coding
        self._make = make
        self._now: _Decompressor | None = None  # None: before the first byte, or between two members of one body
        self._begun = False
        self._left = limit

    def feed(self, data: bytes) -> bytes:
        """The bytes that these stand for. Raises ApiError (400)."""
        made: list[bytes] = []
        while data and self._left >= 0:
            self._begun = True
            if self._now is None:
                self._now = self._make()
            try:
                part = self._now.decompress(data, self._left + 1)
            except Exception as error:  # zlib.error, ZstdError
                raise self._fault(str(error)) from None
            self._left -= len(part)
            made.append(part)
            data = b""
            if self._now.eof:
                data, self._now = self._now.unused_data, None
        return b"".join(made)

    def finish(self) -> None:
        """Raise for a body that ends too early."""
        if self._left >= 0 and (self._now is not None or not self._begun):
            raise self._fault("it ends too early")

    def _fault(self, reason: str) -> ApiError:
        return ApiError(400, f"The body is not valid {self._coding}: {reason}.", code="invalid_encoding")


class _Deflate:
    """RFC 9110 means zlib's format by "deflate"; some clients send the bare one. The first bytes tell."""

    def __init__(self) -> None:
        self._head = b""
        self._inner: _Decompressor | None = None

    @property
    def eof(self) -> bool:
        return self._inner is not None and self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return b"" if self._inner is None else self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        if self._inner is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return b""
            is_zlib = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj(15 if is_zlib else -15)
        return self._inner.decompress(data, max_length)


def _codings() -> dict[str, Callable[[], _Decompressor]]:
    found: dict[str, Callable[[], _Decompressor]] = {
        "gzip": lambda: zlib.decompressobj(31),
        "x-gzip": lambda: zlib.decompressobj(31),
        "deflate": _Deflate,
    }
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        return found
    return {**found, "zstd": zstd.ZstdDecompressor}


_CODINGS = _codings()
ACCEPTED = ", ".join(name for name in _CODINGS if name != "x-gzip")


def decoder(content_encoding: str, limit: int) -> Decoder | None:
    """For the header's value; None where nothing is encoded. Raises ApiError (415) for what is not known here."""
    codings = [part.strip().lower() for part in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _CODINGS:
        raise ApiError(
            415,
            f"The Content-Encoding {shown(content_encoding)} is not supported. Send the body as it is, or with one of "
            f"{ACCEPTED}.",
            code="unsupported_encoding",
            headers={"Accept-Encoding": ACCEPTED},
        )
    return Decoder(codings[0], _CODINGS[codings[0]], limit)
