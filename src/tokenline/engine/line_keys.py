"""Names for the beginnings of a line: a hash of the first n blocks' worth of ids, chained from block to block.

Two lines have a name in common exactly as far as they are equal from the start, in the same namespace and under the
same root. Ids and namespace cannot be read back from a name. Knows no pool, no tree and no file.
"""

import hashlib

import numpy as np

from tokenline.engine.request import Namespace


class LineKeys:
    """SHA-256 chains. `root` sets apart what must never be taken for one another, e.g. lines of different models."""

    def __init__(self, block_size: int, root: bytes = b""):
        self.block_size = block_size
        self.root = root

    def of(self, namespace: Namespace, ids: np.ndarray) -> list[bytes]:
        """`keys[n]` names the first n whole blocks of `ids` (int32); `keys[0]` is the namespace's empty line."""
        # repr of a NamedTuple of strings tells its parts apart, as the namespace itself does.
        keys = [hashlib.sha256(self.root + repr(namespace).encode()).digest()]
        data = np.asarray(ids, np.int32).tobytes()
        size = self.block_size * np.dtype(np.int32).itemsize
        for start in range(0, len(data) - size + 1, size):
            keys.append(hashlib.sha256(keys[-1] + data[start : start + size]).digest())
        return keys
