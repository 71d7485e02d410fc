"""Rows of a tensor as a file stores them: what their bytes mean, and how they get into memory.

Knows the types of safetensors and GGUF; nothing of either file's header. Bytes are read, never mapped: the caller owns
what it gets, and a file that shrinks while it is read is an error instead of a SIGBUS.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from tokenline.models.errors import ModelError

FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive rows of a matrix, or a vector as one row."""

    kind: str  # one of FLOAT_BYTES, or one of GGUF's quantised types: "Q4_1", "Q8_0", ...
    data: np.ndarray  # uint8 [rows, bytes a row]
    columns: int  # values a row

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> "Blocks":
        return Blocks(self.kind, self.data[rows], self.columns)

    def floats(self) -> np.ndarray:
        """The values, float32 [rows, columns]."""
        return dequantize_blocks(self.data, self.kind)


def dequantize_blocks(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Float32 values of raw blocks (uint8, last dimension in bytes) of the type called `kind`."""
    match kind:
        case "F32":
            return blocks.view(np.float32)
        case "F64":
            with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is refused as that
                return blocks.view(np.float64).astype(np.float32)
        case "F16":
            return blocks.view(np.float16).astype(np.float32)
        case "BF16":  # the upper half of a float32
            return np.left_shift(blocks.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
        case _:
            return dequantize(blocks, GGMLQuantizationType[kind])


def open_file(path: Path) -> BinaryIO:
    """A plain file to read from. Raises OSError for anything else: opening a FIFO would wait for ever."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file")
    return file


def read_bytes(path: Path, offset: int, size: int, what: str, error: Callable[[str], ModelError]) -> np.ndarray:
    """`size` bytes of a file from `offset` on, a new uint8 array. `what` they are is for errors, made by `error`."""
    data = bytearray(size)
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            view, done = memoryview(data), 0
            while done < size:
                if not (count := file.readinto(view[done:])):
                    raise error(f"ends inside {what}; it was changed while it was read")
                done += count
    except OSError as failure:
        raise error(f"{what} cannot be read: {failure.strerror or failure}") from failure
    return np.frombuffer(data, dtype=np.uint8)
