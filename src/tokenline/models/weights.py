"""The tensors of a checkpoint by their roles (`families.family`), whichever file they lie in, read one at a time.

Opening checks that every tensor the configuration asks for is there in the right shape, and that nothing is there that
the decoder would silently leave out. Reading gives raw blocks, in pieces where a tensor is large, so that a loader
needs little more memory than its own result.
"""

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tokenline.models.blocks import FLOAT_BYTES, Blocks, open_file
from tokenline.models.config import ModelConfig
from tokenline.models.errors import ModelError
from tokenline.models.families.family import TensorNames, layer_tensors
from tokenline.models.families.registry import config_from_gguf, config_from_hf, family_of
from tokenline.models.gguf_file import GGUFFile, GGUFTensor
from tokenline.models.progress import Progress, no_progress
from tokenline.models.safetensors_file import SafetensorsFile, SafetensorsTensor

log = logging.getLogger(__name__)

EMBEDDING, FINAL_NORM, HEAD = "embedding.weight", "final_norm.weight", "head.weight"
PIECE_ROWS = 64  # a panel of the CPU kernels
_MAX_JSON_BYTES = 64 << 20
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


class Checkpoint(ABC):
    """An opened checkpoint. Names and shapes are those of `expected_tensors(config)`, all checked to be there."""

    def __init__(self, path: Path, config: ModelConfig, names: TensorNames):
        self.path = path
        self.config = config
        self.family = family_of(config)
        self.names = names
        self.shapes = expected_tensors(config)
        self.progress: Progress = no_progress  # told of bytes of the file(s), as tensors are read
        self._done = 0

    @abstractmethod
    def stored_bytes(self, name: str) -> int:
        """Bytes of the tensor in the file."""

    @abstractmethod
    def stored_kind(self, name: str) -> str:
        """How the file stores the tensor: see `Blocks.kind`."""

    @abstractmethod
    def pieces(self, name: str) -> Iterator[tuple[int, Blocks]]:
        """The tensor as stored, rows in Hugging Face order, in pieces of consecutive rows, each (first row, rows). The
        first row is a multiple of `PIECE_ROWS`. A vector is one row.
        """

    def file_name(self, name: str) -> str:
        """What the file calls a tensor."""
        return self.names.name(name)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all tensors in the file(s)."""
        return sum(self.stored_bytes(name) for name in self.shapes)

    def read(self, name: str) -> np.ndarray:
        """The values of the whole tensor, float32 in its shape. Raises ModelError if they are not all finite."""
        parts = [blocks.floats() for _, blocks in self.pieces(name)]
        values = (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(self.shapes[name])
        self.require_finite(name, bool(np.isfinite(values).all()))
        return values

    def require_finite(self, name: str, is_finite: bool) -> None:
        """Raise ModelError unless a tensor's values are finite: with one that is not, every logit would be NaN."""
        if not is_finite:
            raise ModelError(f"{self.path.name}: tensor {self.file_name(name)} holds values that are not finite")

    def _count(self, num_bytes: int) -> None:
        self._done = min(self._done + num_bytes, self.total_bytes)  # a tensor may be read twice
        self.progress(f"loading {self.path.name}", self._done, self.total_bytes)

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


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a directory in Hugging Face layout or a .gguf file. Raises ModelError.

    Reads headers only, and the head where a file has one although the configuration says that it is the embedding.
    """
    check_path(path)
    return SafetensorsCheckpoint(path) if path.is_dir() else GGUFCheckpoint(GGUFFile(path))


def check_path(path: Path) -> None:
    """Raise ModelError unless a model may be at `path`."""
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if path.is_file() and path.suffix != ".gguf":
        raise ModelError(f"{path}: neither a directory in Hugging Face layout nor a .gguf file")
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelError(f"{path}: has no config.json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a ModelError."""
    try:
        with open_file(path) as file:
            data = file.read(_MAX_JSON_BYTES + 1)
        if len(data) > _MAX_JSON_BYTES:
            raise ModelError(f"{path}: more than {_MAX_JSON_BYTES >> 20} MiB")
        value = json.loads(data.decode())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must be a JSON object, not {type(value).__name__}")
    return value


# safetensors ---------------------------------------------------------------------------------------------------------


class SafetensorsCheckpoint(Checkpoint):
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path):
        config = config_from_hf(read_json(folder / "config.json"))
        names = family_of(config).hf_names
        self._files = _find_files(folder)
        if config.tied_head and self._differ(names.name(EMBEDDING), names.name(HEAD)):
            log.warning(
                "%s: config.json says tie_word_embeddings, but the file has another %s: that one is used",
                *(folder.name, names.name(HEAD)),
            )
            config = replace(config, tied_head=False)
        super().__init__(folder, config, names)
        expected = {self.file_name(name) for name in self.shapes}
        for name, file in self._files.items():
            if name not in file.tensors:
                raise ModelError(f"{folder.name}: {file.path.name} lacks tensor {name}, which the index says it has")
            if name in expected and file.tensors[name].kind not in FLOAT_BYTES:
                raise ModelError(
                    f"{file.path.name}: tensor {name} is stored as {file.tensors[name].kind}; "
                    f"supported: {', '.join(FLOAT_BYTES)}"
                )
        found = {name: file.tensors[name].shape for name, file in self._files.items()}
        head = self.file_name(HEAD)  # there are files that store a tied one all the same
        self._check(found, lambda name: name == head or name.endswith("rotary_emb.inv_freq"))

    def _differ(self, *names: str) -> bool:
        """Whether both tensors are there and hold other values, as transformers compares them (tie_weights)."""
        if not all(name in self._files and name in self._files[name].tensors for name in names):
            return False
        one, other = (self._files[name].tensors[name] for name in names)
        if one.shape != other.shape or not {one.kind, other.kind} <= FLOAT_BYTES.keys():
            return True
        for start, stop in _row_ranges(one.shape):
            a, b = (self._files[name].read(name, start, stop) for name in names)
            if not np.array_equal(*((a.data, b.data) if a.kind == b.kind else (a.floats(), b.floats()))):
                return True
        return False

    def _stored(self, name: str) -> SafetensorsTensor:
        stored = self.file_name(name)
        return self._files[stored].tensors[stored]

    def stored_bytes(self, name: str) -> int:
        return self._stored(name).num_bytes

    def stored_kind(self, name: str) -> str:
        return self._stored(name).kind

    def pieces(self, name: str) -> Iterator[tuple[int, Blocks]]:
        shape, stored = self.shapes[name], self.file_name(name)
        rows = shape[0]
        for start, stop in _row_ranges(shape) if len(shape) > 1 else ((0, rows),):
            blocks = self._files[stored].read(stored, start, stop)
            if name.endswith("norm.weight") and (offset := self.family.norm_offset):
                blocks = Blocks("F32", (blocks.floats() + np.float32(offset)).view(np.uint8), blocks.columns)
            yield start, blocks
            self._count(self.stored_bytes(name) * (stop - start) // rows)


def _find_files(folder: Path) -> dict[str, SafetensorsFile]:
    """The file of each tensor."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.exists():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.tensors, file)
    if not index.exists():
        found = [file.name for file in folder.glob("*.bin")]
        hint = f"; {found[0]} is a pickle, which is not read" if found else ""
        raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there{hint}")
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{index}: weight_map must map tensor names to files")
    files: dict[str, SafetensorsFile] = {}
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{index}: {file!r} is not the name of a file in the same folder")
        if file not in files and not (folder / file).is_file():
            raise ModelError(f"{folder}: {file} is missing, which the index names for tensor {name}")
        files[file] = files.get(file) or SafetensorsFile(folder / file)
    return {name: files[file] for name, file in places.items()}


def _row_ranges(shape: tuple[int, ...], together: int = PIECE_ROWS) -> Iterable[tuple[int, int]]:
    """Ranges of rows of at most `_PIECE_VALUES` values each, or of `together` rows if those are more; all but the last
    are multiples of `together` rows.
    """
    step = max(1, _PIECE_VALUES // (int(np.prod(shape[1:])) * together)) * together
    return ((start, min(start + step, shape[0])) for start in range(0, shape[0], step))


# GGUF ----------------------------------------------------------------------------------------------------------------


class GGUFCheckpoint(Checkpoint):
    """One GGUF file. Some families' rows of q and k lie in llama.cpp's rotary order. q, k and v may be one tensor."""

    def __init__(self, file: GGUFFile):
        config = config_from_gguf(file)
        super().__init__(file.path, config, family_of(config).gguf_names)
        self.file = file
        self._fused = self._find_fused()
        found = {name: tensor.shape for name, tensor in file.tensors.items()}
        for role, (tensor, _) in self._fused.items():
            found.pop(tensor.name, None)
            found[self.file_name(role)] = self.shapes[role]
        self._check(found, lambda name: name == "rope_freqs.weight")

    def _find_fused(self) -> dict[str, tuple[GGUFTensor, int]]:
        """Where the rows of q, k and v begin in blk.N.attn_qkv, by role: one part behind the other, each as if alone.

        `convert_hf_to_gguf.py --fuse-qkv` writes them so; llama-model.cpp (create_tensor_qkv) reads them.
        """
        places: dict[str, tuple[GGUFTensor, int]] = {}
        for layer in range(self.config.num_layers):
            for leaf in ("weight", "bias"):
                roles = [f"layers.{layer}.{part}.{leaf}" for part in "qkv"]
                fused = self.file.tensors.get(self.file_name(f"layers.{layer}.qkv.{leaf}"))
                alone = any(self.file_name(role) in self.file.tensors for role in roles)
                if fused is None or alone or not all(role in self.shapes for role in roles):
                    continue  # what is too much or missing is found by `_check`
                rows = [self.shapes[role][0] for role in roles]
                if fused.shape != (shape := (sum(rows), *self.shapes[roles[0]][1:])):
                    raise ModelError(
                        f"{self.path.name}: tensor {fused.name} has shape {list(fused.shape)}, "
                        f"the configuration asks for {list(shape)}"
                    )
                places |= {role: (fused, sum(rows[:part])) for part, role in enumerate(roles)}
        return places

    def _place(self, name: str) -> tuple[GGUFTensor, int]:
        """The tensor of the file that holds this one, and at which row."""
        return self._fused[name] if name in self._fused else (self.file.tensors[self.file_name(name)], 0)

    def stored_bytes(self, name: str) -> int:
        tensor, _ = self._place(name)
        return tensor.num_bytes * self.shapes[name][0] // tensor.shape[0]

    def stored_kind(self, name: str) -> str:
        return self._place(name)[0].kind

    def pieces(self, name: str) -> Iterator[tuple[int, Blocks]]:
        (tensor, first), order, shape = self._place(name), self._row_order(name), self.shapes[name]
        if len(shape) == 1:
            values = self.file.read(tensor.name)[first : first + shape[0]]
            yield 0, Blocks("F32", (values if order is None else values[order]).view(np.uint8)[None], len(values))
            self._count(self.stored_bytes(name))
            return
        together = PIECE_ROWS if order is None else math.lcm(PIECE_ROWS, self.config.head_dim)
        for start, stop in _row_ranges(shape, together):
            data = self.file.read_blocks(tensor.name, first + start, first + stop)
            if order is not None:  # rows change places within a head only
                data = data[order[start:stop] - start]
            yield start, Blocks(tensor.kind, data, shape[-1])
            self._count(self.stored_bytes(name) * (stop - start) // shape[0])

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
