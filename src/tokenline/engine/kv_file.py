"""One block of keys and values as a file: the format, and how it is read.

A safetensors file of these tensors:

    kv        uint8 [bytes]       what `KVPool.export_block` gave
    ids       int32 [block size]  the ids of the block's tokens
    key       uint8 [32]          the name of the line up to the end of the block (`prefix_hashes`)
    parent    uint8 [32]          the name of the line up to its beginning
    model     uint8 [32]          what else the values depend on: see `disk_tier.model_key`
    checksum  uint8 [32]          SHA-256 of all these

Knows bytes and one path; not which files there are, nor what is done with a bad one.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

FORMAT = "tokenline kv block 2"
HEADER_BYTES = 4096  # more than a file has beside `kv` and `ids`


class BadBlock(Exception):
    """A file that is no complete block, or another one than was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class KVBlock:
    model: bytes
    parent: bytes
    key: bytes
    ids: np.ndarray  # int32 [block size]
    kv: np.ndarray  # uint8 [bytes]

    def is_for(self, model: bytes, parent: bytes, key: bytes, ids: np.ndarray) -> bool:
        return (self.model, self.parent, self.key) == (model, parent, key) and np.array_equal(self.ids, ids)


def encode(block: KVBlock) -> bytes:
    tensors = {
        "kv": block.kv,
        "ids": np.ascontiguousarray(block.ids, np.int32),
        "key": np.frombuffer(block.key, np.uint8),
        "parent": np.frombuffer(block.parent, np.uint8),
        "model": np.frombuffer(block.model, np.uint8),
        "checksum": np.frombuffer(_checksum(block), np.uint8),
    }
    return save(tensors, {"format": FORMAT})


def decode(data: bytes) -> KVBlock:
    """Raises BadBlock for anything that `encode` did not make, or that has changed since."""
    try:
        tensors = load(data)
        ids, kv = tensors["ids"], tensors["kv"]
        if ids.dtype != np.int32 or ids.ndim != 1 or kv.dtype != np.uint8 or kv.ndim != 1:
            raise BadBlock("tensors of another kind")
        model, parent, key, checksum = (tensors[name].tobytes() for name in ("model", "parent", "key", "checksum"))
        block = KVBlock(model, parent, key, ids, kv)
    except BadBlock:
        raise
    except Exception as error:  # whatever safetensors makes of bytes that are none of its own
        raise BadBlock(f"not a complete file: {type(error).__name__}: {error}") from error
    if checksum != _checksum(block):
        raise BadBlock("the checksum does not match")
    return block


def _checksum(block: KVBlock) -> bytes:
    digest = hashlib.sha256(block.model + block.parent + block.key)
    digest.update(np.ascontiguousarray(block.ids, np.int32).tobytes())
    digest.update(np.ascontiguousarray(block.kv).data)
    return digest.digest()


def read_file(path: Path, max_bytes: int) -> bytes:
    """The contents of a plain file. Raises OSError, and BadBlock for what is too large or no plain file.

    Reads rather than maps: a mapped file that somebody cuts short would kill the process.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        os.close(descriptor)
        raise BadBlock("not a plain file" if not stat.S_ISREG(status.st_mode) else f"{status.st_size:,} bytes")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(max_bytes)
