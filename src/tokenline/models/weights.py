"""The tensors of a checkpoint by their roles (`families.family`), whichever file they lie in, read one at a time.

Opening checks that every tensor the configuration asks for is there in the right shape, and that nothing is there that
the decoder would silently leave out. Reading gives float tensors on the CPU, in pieces where a tensor is large, so
that a loader needs little more memory than its own result. GGUF's quantised blocks can be had as they are.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from tokenline.models.config import ModelConfig
from tokenline.models.errors import ModelError
from tokenline.models.families.family import TensorNames, layer_tensors
from tokenline.models.families.registry import config_from_gguf, config_from_hf, family_of
from tokenline.models.gguf_file import GGUFFile, dequantize_blocks

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes that there are to read."""

EMBEDDING, FINAL_NORM, HEAD = "embedding.weight", "final_norm.weight", "head.weight"
PIECE_ROWS = 64  # a panel of the CPU kernels
_PIECE_VALUES = 4 * 1024 * 1024  # 16 MiB as float32


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Roles and shapes of all tensors of a decoder of this shape, in the order of use."""
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    one = layer_tensors(config)
    for layer in range(config.num_layers):
        tensors |= {f"layers.{layer}.{name}": shape for name, shape in one.items()}
    tensors[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        tensors[HEAD] = (config.vocab_size, config.hidden_size)
    return tensors


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantised matrix as the GGUF file stores it, rows in Hugging Face order."""

    kind: str  # "Q4_1", "Q8_0", ...: see gguf_file.SUPPORTED_TYPES
    data: np.ndarray  # uint8 [rows, bytes a row]
    columns: int  # values a row

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> "Blocks":
        return Blocks(self.kind, self.data[rows], self.columns)


class Weights(ABC):
    """An opened checkpoint. Names and shapes are those of `expected_tensors(config)`, all checked to be there."""

    def __init__(self, path: Path, config: ModelConfig, names: TensorNames, progress: Progress | None):
        self.path = path
        self.config = config
        self.family = family_of(config)
        self.names = names
        self.shapes = expected_tensors(config)
        self.progress = progress
        self._done = 0

    @abstractmethod
    def stored_bytes(self, name: str) -> int:
        """Bytes of the tensor in the file."""

    @abstractmethod
    def stored_kind(self, name: str) -> str:
        """How the file stores the tensor: "BF16", "F32", "Q4_K", ..."""

    @abstractmethod
    def pieces(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensor in pieces of consecutive rows, each (first row, values); dtypes as `read` has them. The first row
        is a multiple of `PIECE_ROWS`.
        """

    def stored_pieces(self, name: str) -> Iterator[tuple[int, torch.Tensor | Blocks]]:
        """Like `pieces`, with quantised blocks as the file has them."""
        return self.pieces(name)

    def file_name(self, name: str) -> str:
        """What the file calls a tensor."""
        return self.names.name(name)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all tensors in the file(s)."""
        return sum(self.stored_bytes(name) for name in self.shapes)

    def read(self, name: str) -> torch.Tensor:
        """The whole tensor, float32 or, if stored so, bfloat16 or float16."""
        parts = [piece for _, piece in self.pieces(name)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors, one after another, in the order of use."""
        for name in self.shapes:
            yield name, self.read(name)

    def _count(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self.progress is not None:
            self.progress(self._done, self.total_bytes)

    def _check(self, found: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]) -> None:
        """Compare the tensors that are there, by the file's names, with those that should be."""
        expected = {self.file_name(name): shape for name, shape in self.shapes.items()}
        for name, shape in expected.items():
            if name not in found:
                raise ModelError(f"{self.path.name}: tensor {name} (shape {list(shape)}) is missing")
            if found[name] != shape:
                raise ModelError(
                    f"{self.path.name}: tensor {name} has shape {list(found[name])}, "
                    f"the configuration asks for {list(shape)}"
                )
        if extra := [name for name in found if name not in expected and not ignored(name)]:
            more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            raise ModelError(
                f"{self.path.name}: tensor {extra[0]}{more} has no place in a {self.config.family} "
                "decoder of this configuration; leaving it out would give wrong answers"
            )


def open_weights(path: Path, progress: Progress | None = None) -> Weights:
    """Open a directory in Hugging Face layout or a .gguf file. Reads headers only."""
    if path.is_dir():
        return SafetensorsWeights(path, progress)
    return GGUFWeights(GGUFFile(path), progress)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must be a JSON object, not {type(value).__name__}")
    return value


# safetensors ---------------------------------------------------------------------------------------------------------

_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsWeights(Weights):
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists.

    A file is opened anew for each tensor: that takes well under a millisecond and lets go of the mapped pages.
    """

    def __init__(self, folder: Path, progress: Progress | None = None):
        config = config_from_hf(read_json(folder / "config.json"))
        super().__init__(folder, config, family_of(config).hf_names, progress)
        self._files = self._find_files()
        self._found: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        for file in sorted(set(self._files.values())):
            self._read_header(file)
        for name in self._files:
            if name not in self._found:
                raise ModelError(
                    f"{folder.name}: {self._files[name].name} lacks tensor {name}, which the index says it has"
                )
        head = self.file_name(HEAD)  # tied, and stored all the same
        self._check(self._found, lambda name: name == head or name.endswith("rotary_emb.inv_freq"))

    def _find_files(self) -> dict[str, Path]:
        index = self.path / "model.safetensors.index.json"
        single = self.path / "model.safetensors"
        if single.exists():
            return dict.fromkeys(_safe_names(single), single)
        if not index.exists():
            found = [file.name for file in self.path.glob("*.bin")]
            hint = f"; {found[0]} is a pickle, which is not read" if found else ""
            raise ModelError(f"{self.path}: neither model.safetensors nor model.safetensors.index.json is there{hint}")
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ModelError(f"{index}: weight_map must map tensor names to files")
        files: dict[str, Path] = {}
        for name, file in places.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(f"{index}: {file!r} is not the name of a file in the same folder")
            files[name] = self.path / file
            if not files[name].is_file():
                raise ModelError(f"{self.path}: {file} is missing, which the index names for tensor {name}")
        return files

    def _read_header(self, file: Path) -> None:
        expected = set(map(self.file_name, self.shapes))
        with _OpenSafetensors(file) as data:
            for name in data.keys():  # noqa: SIM118 (not a dict)
                if self._files.get(name) != file:
                    continue
                part = data.get_slice(name)
                self._found[name] = tuple(part.get_shape())
                self._dtypes[name] = part.get_dtype()
                if name in expected and self._dtypes[name] not in _FLOAT_BYTES:
                    raise ModelError(
                        f"{file.name}: tensor {name} is stored as {self._dtypes[name]}; "
                        f"supported: {', '.join(_FLOAT_BYTES)}"
                    )

    def stored_bytes(self, name: str) -> int:
        return int(np.prod(self.shapes[name])) * _FLOAT_BYTES[self.stored_kind(name)]

    def stored_kind(self, name: str) -> str:
        return self._dtypes[self.file_name(name)]

    def pieces(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        stored = self.file_name(name)
        for start, stop in _row_ranges(self.shapes[name]):
            with _OpenSafetensors(self._files[stored]) as data:
                values = data.get_slice(stored)[start:stop]
                if self.family.norm_offset and name.endswith("norm.weight"):
                    values = values.float() + self.family.norm_offset
                yield start, values.float() if values.dtype is torch.float64 else values
            self._count(self.stored_bytes(name) * (stop - start) // self.shapes[name][0])


class _OpenSafetensors:
    """`safetensors.safe_open` whose failures, on opening and on reading, are ModelErrors that name the file."""

    def __init__(self, file: Path):
        self.file = file

    def __enter__(self) -> Any:
        try:
            self.handle = safe_open(self.file, framework="pt")
            return self.handle.__enter__()
        except (SafetensorError, OSError) as error:
            raise self._error(error) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.handle.__exit__(kind, error, trace)
        if isinstance(error, SafetensorError | OSError):
            raise self._error(error) from error

    def _error(self, error: Exception) -> ModelError:
        return ModelError(f"{self.file.name}: not a complete safetensors file: {error}")


def _safe_names(file: Path) -> list[str]:
    with _OpenSafetensors(file) as data:
        return list(data.keys())


def _row_ranges(shape: tuple[int, ...], together: int = PIECE_ROWS) -> Iterable[tuple[int, int]]:
    """Ranges of rows of at most `_PIECE_VALUES` values each, or of `together` rows if those are more; all but the last
    are multiples of `together` rows.
    """
    step = max(1, _PIECE_VALUES // (int(np.prod(shape[1:])) * together)) * together
    return ((start, min(start + step, shape[0])) for start in range(0, shape[0], step))


# GGUF ----------------------------------------------------------------------------------------------------------------


class GGUFWeights(Weights):
    """One GGUF file. Some families' rows of q and k lie in llama.cpp's rotary order."""

    def __init__(self, file: GGUFFile, progress: Progress | None = None):
        config = config_from_gguf(file)
        super().__init__(file.path, config, family_of(config).gguf_names, progress)
        self.file = file
        found = {name: tensor.shape for name, tensor in file.tensors.items()}
        self._check(found, lambda name: name == "rope_freqs.weight")

    def stored_bytes(self, name: str) -> int:
        return self.file.tensors[self.file_name(name)].num_bytes

    def stored_kind(self, name: str) -> str:
        return self.file.tensors[self.file_name(name)].kind

    def pieces(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        if len(self.shapes[name]) == 1:
            values, order = self.file.read(self.file_name(name)), self._row_order(name)
            yield 0, torch.from_numpy(values if order is None else values[order])
            self._count(self.stored_bytes(name))
            return
        for start, blocks in self._block_pieces(name):
            yield start, torch.from_numpy(dequantize_blocks(blocks.data, blocks.kind))

    def stored_pieces(self, name: str) -> Iterator[tuple[int, torch.Tensor | Blocks]]:
        return self.pieces(name) if self.stored_kind(name) in ("F32", "F16", "BF16") else self._block_pieces(name)

    def _block_pieces(self, name: str) -> Iterator[tuple[int, Blocks]]:
        """A matrix in pieces, rows in Hugging Face order."""
        tensor, order = self.file.tensors[self.file_name(name)], self._row_order(name)
        together = PIECE_ROWS if order is None else math.lcm(PIECE_ROWS, self.config.head_dim)
        for start, stop in _row_ranges(tensor.shape, together):
            data = self.file.read_blocks(tensor.name, start, stop)
            if order is not None:  # rows change places within a head only
                data = data[order[start:stop] - start]
            yield start, Blocks(tensor.kind, data, tensor.shape[-1])
            self._count(tensor.num_bytes * (stop - start) // tensor.shape[0])

    def _row_order(self, name: str) -> np.ndarray | None:
        """Where each Hugging Face row lies in the file, or None if rows lie in that order.

        llama.cpp rotates neighbouring channels (2i, 2i + 1), Hugging Face channels (i, i + head_dim / 2), so the
        converter interleaved the two halves of each head (convert_hf_to_gguf.py, LlamaModel.permute).
        """
        role = name.split(".")[-2]
        if not self.family.gguf_interleaves_rope or role not in ("q", "k"):
            return None
        heads = self.config.num_heads if role == "q" else self.config.num_kv_heads
        half = self.config.head_dim // 2
        return np.arange(heads * half * 2).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)
