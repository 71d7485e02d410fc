"""A GGUF file, checked before anything believes it: metadata as plain Python values, tensors as raw blocks.

Knows the file format (version 2 and 3, little-endian) and its quantised block types; knows nothing of architectures
(see `config`) or of what a tensor is for (see `weights`). `render` reads the tokenizer from `.metadata`.

The header is parsed here and not by `gguf.GGUFReader`, which keeps a NumPy object per metadata value (2 s and some
100 MB for a vocabulary of 49,000 tokens) and cuts what lies past the end of the file silently. Block types, their
sizes and dequantisation are the `gguf` library's.
"""

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tokenline.models.blocks import dequantize_blocks, open_file, read_bytes
from tokenline.models.errors import ModelError

SUPPORTED_TYPES = (
    *("F32", "F16", "BF16"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)

# Value types of the format (gguf.md): number -> struct code. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
# Far beyond any model, so that no file costs more memory than a large vocabulary does
_MAX_HEADER_BYTES = 256 << 20
_MAX_ENTRIES = 1 << 16  # of the metadata, and tensors
_MAX_ARRAY_VALUES = 1 << 22  # of all arrays together


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies and how it is stored. `shape` is in row-major order, as PyTorch says it: rows first."""

    name: str
    kind: str  # a name from GGMLQuantizationType: "F32", "Q4_1", ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the stored bytes: like `shape`, with the last dimension in bytes instead of values."""
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return (*self.shape[:-1], self.shape[-1] // values * size)


class GGUFFile:
    """A GGUF file whose header was read and checked; every failure is a ModelError that names the file.

    `metadata` maps keys to int, float, bool, str or lists of them. `tensors` maps names to `GGUFTensor`.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        try:
            with open_file(self.path) as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size < 24:
                    raise self._error(f"only {self.size} bytes long, not a GGUF file")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read_header(data)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from error

    def _error(self, reason: str) -> ModelError:
        return ModelError(f"{self.path.name}: {reason}")

    def _read_header(self, data: mmap.mmap) -> None:
        if data[:4] != b"GGUF":
            raise self._error(f"not a GGUF file (starts with {data[:4]!r} instead of b'GGUF')")
        self.version: int = struct.unpack_from("<I", data, 4)[0]
        if self.version not in (2, 3):
            hint = " (big-endian?)" if self.version & 0xFFFF == 0 else ""
            raise self._error(f"GGUF version {self.version}{hint} is not supported; 2 and 3 are, little-endian")
        num_tensors, num_values = struct.unpack_from("<QQ", data, 8)
        for count, what in ((num_tensors, "tensors"), (num_values, "metadata keys")):
            if _MAX_ENTRIES < count < self.size:  # what is more is truncated
                raise self._error(f"claims to have {count:,} {what}; at most {_MAX_ENTRIES:,} are read")
        cursor = _Cursor(data, 24, self._error)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = cursor.string("a metadata key")
            if key in self.metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            self.metadata[key] = cursor.value(cursor.scalar("I", key), key)
        stored = [self._read_tensor_info(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}, not a power of two")
        start = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for tensor in stored:
            offset = start + tensor.offset
            if tensor.offset % alignment:
                raise self._error(f"tensor {tensor.name} is not aligned to {alignment} bytes")
            if offset + tensor.num_bytes > self.size:
                raise self._error(
                    f"truncated: tensor {tensor.name} ends at byte {offset + tensor.num_bytes:,}, "
                    f"the file has {self.size:,}"
                )
            if tensor.name in self.tensors:
                raise self._error(f"tensor {tensor.name} appears twice")
            self.tensors[tensor.name] = GGUFTensor(tensor.name, tensor.kind, tensor.shape, offset, tensor.num_bytes)
        in_order = sorted(self.tensors.values(), key=lambda tensor: tensor.offset)
        for tensor, following in pairwise(in_order):
            if tensor.offset + tensor.num_bytes > following.offset:
                raise self._error(f"tensors {tensor.name} and {following.name} overlap")

    def _read_tensor_info(self, cursor: "_Cursor") -> GGUFTensor:
        name = cursor.string("a tensor name")
        dimensions = cursor.scalar("I", name)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"tensor {name} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
        shape = tuple(cursor.scalar("Q", name) for _ in range(dimensions))[::-1]
        number = cursor.scalar("I", name)
        offset = cursor.scalar("Q", name)
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise self._error(
                f"tensor {name} has unknown quantisation type {number}; supported: {', '.join(SUPPORTED_TYPES)}"
            ) from None
        if kind.name not in SUPPORTED_TYPES:
            raise self._error(
                f"tensor {name} is quantised as {kind.name}, which is not supported; "
                f"supported: {', '.join(SUPPORTED_TYPES)}"
            )
        values, size = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % values:
            raise self._error(f"tensor {name} has shape {list(shape)}, which {kind.name} cannot store")
        count = 1
        for dimension in shape:
            count *= dimension
        return GGUFTensor(name, kind.name, shape, offset, count // values * size)

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The stored bytes of rows `start` to `stop` of a tensor: a new uint8 array shaped as `block_shape` says."""
        tensor = self.tensors[name]
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1  # a vector is one row
        stop = rows if stop is None else stop
        row_bytes = tensor.num_bytes // rows
        offset, size = tensor.offset + start * row_bytes, (stop - start) * row_bytes
        blocks = read_bytes(self.path, offset, size, f"tensor {name}", self._error)
        return blocks.reshape(-1, *tensor.block_shape[1:])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Values of rows `start` to `stop` as float32, dequantised if need be; a new array."""
        return dequantize_blocks(self.read_blocks(name, start, stop), self.tensors[name].kind)


class _Cursor:
    """A place in the header. Refuses to read past the end of the file, however large a length claims to be."""

    def __init__(self, data: mmap.mmap, position: int, error: Callable[[str], ModelError]):
        self.data = data
        self.position = position
        self.error = error
        self.array_values = 0

    def take(self, size: int, what: str) -> int:
        """Move on by `size` bytes; return where they start."""
        start = self.position
        if start + size > len(self.data):
            raise self.error(f"truncated: the header ends inside {what}")
        if start + size > _MAX_HEADER_BYTES:
            raise self.error(f"the header has more than {_MAX_HEADER_BYTES >> 20} MiB up to {what}")
        self.position = start + size
        return start

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        size = self.scalar("Q", what)
        start = self.take(size, what)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not valid UTF-8") from None

    def value(self, number: int, key: str, depth: int = 0) -> Any:
        if code := _SCALARS.get(number):
            return self.scalar(code, key)
        if number == _STRING:
            return self.string(key)
        if number != _ARRAY or depth == _MAX_ARRAY_DEPTH:
            raise self.error(f"metadata key {key!r} has unknown value type {number}")
        inner, count = self.scalar("I", key), self.scalar("Q", key)
        if count > len(self.data) - self.position:
            raise self.error(f"truncated: the header ends inside {key}")
        self.array_values += count
        if self.array_values > _MAX_ARRAY_VALUES:
            raise self.error(f"metadata key {key!r}: its arrays have more than {_MAX_ARRAY_VALUES:,} values")
        if code := _SCALARS.get(inner):
            size = struct.calcsize("<" + code)
            start = self.take(count * size, key)
            return np.frombuffer(
                self.data[start : start + count * size], dtype=np.dtype(code).newbyteorder("<")
            ).tolist()
        if inner == _STRING:
            return self._strings(count, key)
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        """`count` strings; the loop that vocabularies of 150,000 tokens and their merges go through."""
        data, position, end = self.data, self.position, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        if count * 8 > end - position:
            raise self.error(f"truncated: the header ends inside {key}")
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    break
                strings.append(data[start:position].decode())
        except struct.error:
            position = end + 1
        except UnicodeDecodeError:
            raise self.error(f"string {len(strings)} of {key} is not valid UTF-8") from None
        if position > end:
            raise self.error(f"truncated: the header ends inside {key}")
        self.take(position - self.position, key)
        return strings
