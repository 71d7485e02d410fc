"""Bodies that are dear to read, to check, to tokenize or to answer."""

from bench.bombs.bomb import CHAT, post

BOMBS = [
    post("nested-arrays", CHAT, lambda: b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400),
    post("unknown-fields", CHAT, lambda: {"messages": []} | {f"field{i}": i for i in range(500_000)}, 400, 413),
]
