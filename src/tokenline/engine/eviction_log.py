"""What the prefix cache once held and gave up, and when: so that a later miss can say "was held, evicted 42 s ago".

Remembers the key (see `prefix_hashes`) of each evicted block's worth of a line, never ids or text, in bounded memory.
Knows no tree: the cache reports what it evicts, the engine asks about a line that missed.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Evicted(NamedTuple):
    """How much more of a line was held once, and when the first of it went."""

    tokens: int  # beyond what is held now, to a whole block
    ago_s: float


class EvictionLog:
    """At most `capacity` evicted blocks, the latest ones; about 170 bytes each."""

    def __init__(self, block_size: int, clock: Callable[[], float], capacity: int):
        self._block_size = block_size
        self._clock = clock
        self._capacity = capacity
        self._evicted_s: OrderedDict[bytes, float] = OrderedDict()  # key -> when

    def __len__(self) -> int:
        return len(self._evicted_s)

    def record(self, keys: Sequence[bytes], kept: int) -> None:
        """The line with these keys was held and now only its first `kept` tokens are."""
        now = self._clock()
        for key in keys[kept // self._block_size + 1 :]:
            self._evicted_s[key] = now
            self._evicted_s.move_to_end(key)
        while len(self._evicted_s) > self._capacity:
            self._evicted_s.popitem(last=False)

    def ask(self, keys: Sequence[bytes], held: int) -> Evicted | None:
        """What more of a line than its first `held` tokens was held once; None: nothing known."""
        tokens, first_s = 0, None
        for blocks in range(held // self._block_size + 1, len(keys)):
            evicted_s = self._evicted_s.get(keys[blocks])
            if evicted_s is None:
                break
            tokens = blocks * self._block_size - held
            first_s = evicted_s if first_s is None else min(first_s, evicted_s)
        return None if first_s is None else Evicted(tokens, self._clock() - first_s)
