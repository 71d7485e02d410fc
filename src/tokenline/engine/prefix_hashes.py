"""Prefix block hashes: names for the first n blocks' worth of a line's ids, each chained to the one before.

Two lines have a name in common exactly as far as they are equal from the start, in the same namespace and under the
same root. Ids and namespace cannot be read back from a name, but all names of one caller begin with the same bytes, so
that its lines can be told from others'. Knows no pool, no tree and no file.
"""

import hashlib

import numpy as np

from tokenline.engine.request import Namespace
from tokenline.ids import common_prefix

MARK_BYTES = 8  # of the 32 of a name; the other 192 bits tell lines apart


def mark_of(caller: str | None) -> bytes:
    """What all names of a caller's lines begin with."""
    return hashlib.sha256(b"caller " + repr(caller).encode()).digest()[:MARK_BYTES]


class PrefixHashes:
    """SHA-256 chains. `root` sets apart what must never be taken for one another, e.g. lines of different models.

    The last line is remembered with its keys, and the next one hashed only from where the two part: a line that gives
    up its blocks one by one is hashed once, and chats on one system prompt share the keys of that.
    """

    def __init__(self, block_size: int, root: bytes = b""):
        self.block_size = block_size
        self.root = root
        self._last_namespace: Namespace | None = None
        self._last_ids = np.empty(0, np.int32)
        self._last_keys: list[bytes] = []

    def of(self, namespace: Namespace, ids: np.ndarray) -> list[bytes]:
        """`keys[n]` names the first n whole blocks of `ids` (int32); `keys[0]` is the namespace's empty line."""
        data = np.asarray(ids, np.int32).tobytes()
        ids = np.frombuffer(data, np.int32)  # nobody can change these
        mark = mark_of(namespace.caller)
        if namespace == self._last_namespace:
            keys = self._last_keys[: common_prefix(self._last_ids, ids) // self.block_size + 1]
        else:
            # repr of a NamedTuple of strings tells its parts apart, as the namespace itself does.
            keys = [mark + hashlib.sha256(self.root + repr(namespace).encode()).digest()[MARK_BYTES:]]
        size = self.block_size * ids.itemsize
        for start in range((len(keys) - 1) * size, len(data) - size + 1, size):
            keys.append(mark + hashlib.sha256(keys[-1] + data[start : start + size]).digest()[MARK_BYTES:])
        self._last_namespace, self._last_ids, self._last_keys = namespace, ids, keys
        return keys
