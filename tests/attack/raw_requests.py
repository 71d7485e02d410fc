"""Requests as bytes, and the statuses that are right for each; CLOSED: no answer, and the connection closes.

After cases of the literature on request smuggling, the tests of h11 and llhttp, and RFC 9112.
"""

from bench.bombs.bomb import CLOSED

Raw = tuple[str, bytes, tuple[str, ...]]

CHAT_BODY = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}'


def head(*lines: bytes, end: bytes = b"\r\n") -> bytes:
    return end.join([*lines, b"", b""])


def post(*headers: bytes, body: bytes = CHAT_BODY) -> bytes:
    first = (b"POST /v1/chat/completions HTTP/1.1", b"Host: localhost", b"Content-Type: application/json")
    return head(*first, *headers) + body


def get(target: bytes, *headers: bytes, version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return head(b"%s %s %s" % (method, target, version), b"Host: localhost", b"Connection: close", *headers)


LENGTH = b"Content-Length: %d" % len(CHAT_BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT_BODY), CHAT_BODY)
FINE, BAD = ("200",), ("400",)
METHODS = (
    b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"PATCH", b"TRACE", b"CONNECT", b"PROPFIND", b"get", b"G", b"A" * 500,
)  # fmt: skip
TARGETS = (
    b"/%00", b"/%ff%fe", b"/%", b"/%zz", b"/" + b"a" * 30_000, b"//", b"/../../etc/passwd", b"/v1/../v1/models", b"/.",
    b"/v1/models/%2e%2e%2f", b"/?" + b"a=b&" * 5_000, b"*", b"http://localhost/v1/models", b"http://[::1", b"a:1",
    b"/v1/models/" + b"%F0%9F%98%80" * 50, b"/<script>", b"/v1/models#x", b"/\\..\\", b"/;x",
    b"/v1/models;x=1", b"?", b"#",
)  # fmt: skip
NO_REQUESTS = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "http-0.9": b"GET /\r\n\r\n",
    "http-2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http-3.0": get(b"/", version=b"HTTP/3.0"),
    "http-1.11": get(b"/", version=b"HTTP/1.11"),
    "ftp": get(b"/", version=b"FTP/1.1"),
    "no-version": get(b"/", version=b""),
    "spaces": b"GET  /  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tab": b"GET\t/\tHTTP/1.1\r\nHost: localhost\r\n\r\n",
    "answer": b"HTTP/1.1 200 OK\r\n\r\n",
    "smtp": b"EHLO localhost\r\n\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n\r\n",
    "json": b'{"a": 1}\r\n\r\n',
    "zeros": b"\x00" * 200 + b"\r\n\r\n",
    "non-ascii": "GET /名 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "target-with-space": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no-host": b"GET / HTTP/1.1\r\n\r\n",
    "two-hosts": head(b"GET / HTTP/1.1", b"Host: localhost", b"Host: other"),
    "bad-method": b"G(T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space-before-colon": head(b"GET / HTTP/1.1", b"Host : localhost"),
    "space-in-name": get(b"/", b"A b: c"),
    "no-colon": get(b"/", b"Nothing"),
    "no-name": get(b"/", b": x"),
    "zero-in-value": get(b"/", b"A: b\x00c"),
    "bare-cr": get(b"/", b"A: b\rc: d"),
    "control-in-name": get(b"/", b"A\x01: b"),
    "first-line-folded": head(b"GET / HTTP/1.1", b" Host: localhost"),
    "negative-length": post(b"Content-Length: -1"),
    "plus-length": post(b"Content-Length: +5"),
    "hex-length": post(b"Content-Length: 0x10"),
    "two-lengths": post(LENGTH, b"Content-Length: 5"),
    "lengths-in-one": post(b"Content-Length: 5, 6"),
    "length-of-letters": post(b"Content-Length: five"),
    "float-length": post(b"Content-Length: 5.0"),
    "huge-length": post(b"Content-Length: " + b"9" * 400),
    "length-and-chunked": post(LENGTH, CHUNKED, body=CHUNKS),
    "chunked-and-length": post(CHUNKED, LENGTH, body=CHUNKS),
    "chunked-twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "chunked-in-two": post(CHUNKED, CHUNKED, body=CHUNKS),
    "chunked-misspelled": post(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "chunked-then-gzip": post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS),
    "gzip-encoding": post(b"Transfer-Encoding: gzip", body=CHUNKS),
    "chunk-of-letters": post(CHUNKED, body=b"xyz\r\n"),
    "negative-chunk": post(CHUNKED, body=b"-1\r\n\r\n"),
    "huge-chunk": post(CHUNKED, body=b"f" * 30 + b"\r\n"),
    "chunk-without-end": post(CHUNKED, body=b"2\r\n{}xx\r\n0\r\n\r\n"),
    "chunk-with-0x": post(CHUNKED, body=b"0x2\r\n{}\r\n0\r\n\r\n"),
}
RAW: list[Raw] = [
    *((f"no-request-{name}", data, ("400", "501", "505")) for name, data in NO_REQUESTS.items()),
    ("large-head", get(b"/", b"A: " + b"b" * 100_000), ("431",)),
    ("many-headers", get(b"/", *(b"A%d: b" % i for i in range(20_000))), ("431",)),
    ("long-name", get(b"/", b"A" * 100_000 + b": b"), ("431",)),
    ("long-target", get(b"/" + b"a" * 100_000), ("431",)),
    *((f"method-{one[:10].decode()}", get(b"/v1/models", method=one), ("200", "204", "404", "405")) for one in METHODS),
    *((f"target-{number}", get(target), ("200", "400", "403", "404")) for number, target in enumerate(TARGETS)),
    ("http-1.0", head(b"GET /health HTTP/1.0"), FINE),
    ("chunks", post(CHUNKED, body=CHUNKS), FINE),
    ("chunk-extension", post(CHUNKED, body=CHUNKS.replace(b"\r\n", b";x=y\r\n", 1)), FINE),
    ("trailers", post(CHUNKED, body=CHUNKS.removesuffix(b"\r\n") + b"A: b\r\n\r\n"), FINE),
    ("chunks-of-one", post(CHUNKED, body=b"".join(b"1\r\n%c\r\n" % byte for byte in CHAT_BODY) + b"0\r\n\r\n"), FINE),
    ("same-length-twice", post(LENGTH, LENGTH), ("200", "400")),
    ("length-0", post(b"Content-Length: 0", body=b""), BAD),
    ("no-length", post(body=b""), BAD),
    ("body-of-get", get(b"/v1/models", b"Content-Length: 5") + b"abcde", FINE),
    ("more-than-the-length", post(b"Connection: close", LENGTH) + b"GET /", FINE),
    ("expect", post(LENGTH, b"Expect: 100-continue"), ("100", "200")),
    ("expect-and-too-large", post(b"Content-Length: 99999999", b"Expect: 100-continue", body=b""), ("413",)),
    ("expect-something", post(LENGTH, b"Expect: something"), ("200", "417")),
    ("far-too-large", post(b"Content-Length: 9999999999", body=b"x"), ("413",)),
    ("upgrade", post(LENGTH, b"Connection: upgrade", b"Upgrade: websocket"), FINE),
    ("upgrade-h2c", post(LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"), FINE),
    ("bare-newlines", head(b"GET /health HTTP/1.1", b"Host: localhost", end=b"\n"), ("200", "400")),
    ("folded-header", get(b"/health", b"A: b\r\n c"), ("200", "400")),
    ("empty-lines-first", b"\r\n" + get(b"/health"), ("200", "400")),
    ("latin-1-header", get(b"/health", "A: ü".encode("latin-1")), FINE),
    ("utf-8-header", get(b"/health", "A: 你好".encode()), FINE),
    ("long-request-id", get(b"/health", b"X-Request-Id: " + b"a" * 5_000), FINE),
    ("odd-request-id", get(b"/health", b"X-Request-Id: a\tb"), FINE),
    ("odd-authorization", get(b"/health", b"Authorization: \xff\xfe"), FINE),
    ("odd-content-type", post(LENGTH).replace(b"application/json", b"application/json;;;=\xff"), FINE),
    ("odd-content-encoding", post(LENGTH, b"Content-Encoding: gzip, gzip"), ("415",)),
    ("no-gzip", post(LENGTH, b"Content-Encoding: gzip"), BAD),
    ("empty-host", get(b"/health").replace(b"Host: localhost", b"Host:"), FINE),
    ("foreign-host", get(b"/health").replace(b"localhost", b"evil.example"), ("403",)),
    ("host-with-user", get(b"/health").replace(b"localhost", b"localhost@evil.example"), ("403",)),
    ("host-with-path", get(b"/health").replace(b"localhost", b"localhost/evil.example"), ("403",)),
    ("odd-forwarded", get(b"/health", b"X-Forwarded-For: " + b"1.2.3.4, " * 1000), FINE),
    ("range", get(b"/health", b"Range: bytes=0-" + b"1-," * 5_000), FINE),
    ("cookie", get(b"/health", b"Cookie: " + b"a=b; " * 5_000), FINE),
    ("nothing-but-newlines", b"\r\n\r\n\r\n", ("400", CLOSED)),
]  # fmt: skip
