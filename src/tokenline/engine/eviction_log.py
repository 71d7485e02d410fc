"""What the prefix cache once held and gave up, and when: so that a later miss can say "was held, evicted 42 s ago".

Remembers a chained hash for each evicted block's worth of a line, never ids or text, in bounded memory. Knows no tree:
the cache reports what it evicts, the engine asks about a line that missed.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tokenline.engine.request import Namespace


class Evicted(NamedTuple):
    """How much more of a line was held once, and when the first of it went."""

    tokens: int  # beyond what is held now, to a whole block
    ago_s: float


class EvictionLog:
    """At most `capacity` evicted blocks, the latest ones; about 150 bytes each."""

    def __init__(self, block_size: int, clock: Callable[[], float], capacity: int = 65_536):
        self._block_size = block_size
        self._clock = clock
        self._capacity = capacity
        self._evicted_s: OrderedDict[bytes, float] = OrderedDict()  # chained hash -> when

    def __len__(self) -> int:
        return len(self._evicted_s)

    def record(self, namespace: Namespace, ids: np.ndarray, kept: int) -> None:
        """The line `ids` (int32) was held and now only its first `kept` tokens are."""
        now = self._clock()
        for index, digest in enumerate(self._hashes(namespace, ids)):
            if (index + 1) * self._block_size > kept:
                self._evicted_s[digest] = now
                self._evicted_s.move_to_end(digest)
        while len(self._evicted_s) > self._capacity:
            self._evicted_s.popitem(last=False)

    def ask(self, namespace: Namespace, ids: np.ndarray, held: int) -> Evicted | None:
        """What more of the line `ids` (int32) than its first `held` tokens was held once; None: nothing known."""
        tokens, first_s = 0, None
        for index, digest in enumerate(self._hashes(namespace, ids)):
            end = (index + 1) * self._block_size
            if end <= held:
                continue
            evicted_s = self._evicted_s.get(digest)
            if evicted_s is None:
                break
            tokens = end - held
            first_s = evicted_s if first_s is None else min(first_s, evicted_s)
        return None if first_s is None else Evicted(tokens, self._clock() - first_s)

    def _hashes(self, namespace: Namespace, ids: np.ndarray) -> Iterator[bytes]:
        """A hash of each prefix of `ids` that is a whole number of blocks, each made from the one before."""
        # repr of a NamedTuple of strings tells its parts apart, as the namespace itself does.
        digest = hashlib.blake2b(repr(namespace).encode(), digest_size=16).digest()
        data = np.ascontiguousarray(ids, np.int32)
        for start in range(0, len(ids) - self._block_size + 1, self._block_size):
            block = data[start : start + self._block_size].tobytes()
            digest = hashlib.blake2b(digest + block, digest_size=16).digest()
            yield digest
