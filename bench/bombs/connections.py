"""What is done to connections: bodies that never end, answers that nobody reads, malformed HTTP."""

from bench.bombs.bomb import raw

BOMBS = [
    raw("no-http", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
]
