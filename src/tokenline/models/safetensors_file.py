"""A safetensors file whose header was read and checked before anything believes it.

Knows the file format (https://github.com/huggingface/safetensors#format); nothing of what a tensor is for. The library
of that name reads bfloat16 only into PyTorch, and maps the file, so that one that shrinks ends the process.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenline.models.blocks import FLOAT_BYTES, Blocks, open_file, read_bytes
from tokenline.models.errors import ModelError

_MAX_HEADER_BYTES = 100_000_000  # as in the reference implementation


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """Where a tensor lies and how it is stored."""

    name: str
    kind: str  # the format's name of the type: "BF16", "F32", "I8", "F8_E4M3", ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


class SafetensorsFile:
    """`tensors` maps names to `SafetensorsTensor`. Every failure is a ModelError that names the file."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                    raise self._error("its header does not end")
                header = file.read(length)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        try:
            entries = json.loads(header.decode())
        except (ValueError, RecursionError) as error:
            raise self._error(f"its header is not JSON: {error}") from error
        if not isinstance(entries, dict):
            raise self._error("its header is not a JSON object")
        entries.pop("__metadata__", None)
        self.tensors = {name: self._tensor(name, entry, 8 + length) for name, entry in entries.items()}
        self._check_places(8 + length, size)

    def _error(self, reason: str) -> ModelError:
        return ModelError(f"{self.path.name}: not a complete safetensors file: {reason}")

    def _tensor(self, name: str, entry: Any, start: int) -> SafetensorsTensor:
        if not isinstance(entry, dict) or not isinstance(kind := entry.get("dtype"), str):
            raise self._error(f"tensor {name} has no dtype")
        shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
        if shape is None:
            raise self._error(f"tensor {name} has no shape")
        if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(f"tensor {name} has no data_offsets")
        num_bytes, values = offsets[1] - offsets[0], 1
        for dimension in shape:
            values *= dimension
        if kind in FLOAT_BYTES and num_bytes != values * FLOAT_BYTES[kind]:
            raise self._error(f"tensor {name} of shape {list(shape)} in {kind} cannot lie in {num_bytes:,} bytes")
        return SafetensorsTensor(name, kind, shape, start + offsets[0], num_bytes)

    def _check_places(self, start: int, size: int) -> None:
        """The format wants tensors one behind the other, without gaps, up to the end of the file."""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
            if tensor.offset != start:
                raise self._error(f"tensor {tensor.name} begins at byte {tensor.offset:,}, not {start:,}")
            start += tensor.num_bytes
        if start != size:
            raise self._error(f"its tensors end at byte {start:,}, the file has {size:,}")

    def read(self, name: str, start: int, stop: int) -> Blocks:
        """Rows `start` to `stop` of a float matrix; a vector, all of it, is one row."""
        tensor = self.tensors[name]
        *rows, columns = tensor.shape
        row_bytes = columns * FLOAT_BYTES[tensor.kind]
        if not rows:
            start, stop = 0, 1
        data = read_bytes(
            self.path, tensor.offset + start * row_bytes, (stop - start) * row_bytes, f"tensor {name}", self._error
        )
        return Blocks(tensor.kind, data.reshape(stop - start, row_bytes), columns)


def _counts(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers, none below 0; anything else: None."""
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None
