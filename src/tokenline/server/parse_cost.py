"""What it would cost to parse a JSON body, estimated from its bytes as they come.

Parsing and checking hold the interpreter's lock, on whatever thread they run, so nothing else runs meanwhile: not the
engine, not the event loop. A text of 8 MB is parsed in 10 ms; the same number of brackets takes seconds. So what is
bounded is not only bytes but also what the bytes are.
"""

# Nanoseconds, measured with pydantic-core's `from_json` and a body's validation; upper ends, since the kinds overlap.
_BYTE_NS = 2
_KINDS_NS = {b",": 80, b'"': 45, b"[": 300, b"{": 120, b":": 450, b"\\": 20}
MAX_NS = 40_000_000
NS_PER_TOKEN = 160  # of the context: an id with its comma and a space, and as much again


class ParseCost:
    """Counts one body. `limit_ns`: what it may cost."""

    def __init__(self, max_model_len: int):
        self.limit_ns = MAX_NS + NS_PER_TOKEN * max_model_len
        self.ns = 0

    def add(self, data: bytes) -> bool:
        """Count more of the body. Whether it is still within the limit."""
        self.ns += _BYTE_NS * len(data) + sum(data.count(kind) * ns for kind, ns in _KINDS_NS.items())
        return self.ns <= self.limit_ns
