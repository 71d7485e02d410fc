"""Weights into panels: from blocks of a file, floats or GGUF's quantised ones, to the layout that `linear.py` reads.

GGUF's own values are kept where a panel can say them: those of Q4_0, Q4_1, Q5_0 and Q8_0 to the last bit; those of Q4_K
up to rounding each group's scale and minimum, products of two numbers there, to float16. Everything else becomes Q8:
int8 with one float16 scale per 32 inputs. Where float16 has too few digits left for a whole matrix's scales, its values
are multiplied by a power of two first, and its inputs divided by it.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tokenline.models.blocks import Blocks
from tokenline.models.cpu.linear import GROUP, GROUP_BYTES, PANEL, Q4, Q8
from tokenline.models.cpu.quantise import quantise_q8
from tokenline.models.errors import ModelError
from tokenline.models.threads import usable_threads
from tokenline.models.weights import Checkpoint

_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
_KEPT = (*_FOUR_BITS, "Q5_0", "Q8_0")  # their scales are float16 in the file already
_SMALLEST = float(np.finfo(np.float16).smallest_normal)  # smaller scales lose digits, down to none
_MOST_DOUBLINGS = 15  # 2.0 ** 15 is the largest power of two in float16
_MAX_SHIFT = 120
_CHUNK_VALUES = 128 * 1024  # packed at once by a thread: 512 kB as float32, which its second-level cache holds


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix, its values times 2 ** shift: `data` is uint8 [panels, bytes of a panel]."""

    kind: int  # Q8 or Q4
    data: np.ndarray
    rows: int  # outputs
    columns: int  # inputs
    largest: float  # of its scales and lowest values, by magnitude
    shift: int = 0

    @property
    def panels(self) -> int:
        return len(self.data)


class ScaleError(Exception):
    """A scale that float16 does not hold."""


def packed_bytes(checkpoint: Checkpoint) -> int:
    """What the weights will occupy once packed, vectors included; reads none of them."""
    total = 0
    for name, shape in checkpoint.shapes.items():
        if len(shape) == 2:
            total += _panels(shape[0]) * _panel_bytes(shape[1], _kinds(checkpoint, name)[0])
        else:
            total += 4 * shape[0]
    return total


def _kinds(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    """The kinds of panels that a matrix may become, the one to try first first."""
    return (Q4, Q8) if checkpoint.stored_kind(name) in _FOUR_BITS else (Q8,)


def _panels(rows: int) -> int:
    return -(-rows // PANEL)


def _panel_bytes(columns: int, kind: int) -> int:
    return -(-columns // GROUP) * GROUP_BYTES[kind]


def pack_tensor(checkpoint: Checkpoint, name: str, threads: Executor | None = None) -> Packed:
    """Read one matrix and pack it, a piece at a time and each piece on all threads; None: on threads of its own.

    Raises ModelError for values that int8 with a float16 scale cannot carry.
    """
    if threads is None:
        with ThreadPoolExecutor(usable_threads()) as own_threads:
            return pack_tensor(checkpoint, name, own_threads)
    packed = _pack_shifted(checkpoint, name, 0, threads)
    if packed.largest < _SMALLEST and checkpoint.stored_kind(name) not in _KEPT:
        largest = max(float(np.abs(piece.floats()).max()) for _, piece in checkpoint.pieces(name)) / 127
        if largest > 0:
            return _pack_shifted(checkpoint, name, min(-math.frexp(largest)[1], _MAX_SHIFT), threads)
    return packed


def pack_together(checkpoint: Checkpoint, names: Sequence[str], threads: Executor) -> list[Packed]:
    """Pack matrices that share their inputs: with one shift, as large as the smallest needs and the largest bears."""
    packed = [pack_tensor(checkpoint, name, threads) for name in names]
    wanted = max(one.shift for one in packed)
    room = [_MOST_DOUBLINGS - math.frexp(one.largest)[1] + one.shift for one in packed if one.largest]
    shift = max(0, min(wanted, *room))
    return [
        one if one.shift == shift else _pack_shifted(checkpoint, name, shift, threads)
        for one, name in zip(packed, names, strict=True)
    ]


def _pack_shifted(checkpoint: Checkpoint, name: str, shift: int, threads: Executor) -> Packed:
    for kind in _kinds(checkpoint, name):
        try:
            return _pack_tensor(checkpoint, name, kind, shift, threads)
        except ScaleError:
            continue
    raise ModelError(
        f"{checkpoint.path.name}: tensor {checkpoint.file_name(name)} holds values that are not finite or beyond "
        "8 million, which int8 cannot carry; large ones can be kept with --dtype float32"
    )


def _pack_tensor(checkpoint: Checkpoint, name: str, kind: int, shift: int, threads: Executor) -> Packed:
    rows, columns = checkpoint.shapes[name]
    data = np.empty((_panels(rows), _panel_bytes(columns, kind)), np.uint8)
    step = max(1, _CHUNK_VALUES // (columns * PANEL)) * PANEL
    largest = 0.0

    def pack(chunk: Blocks, start: int) -> float:
        packed = pack_rows(chunk, kind, shift)
        data[start // PANEL :][: packed.panels] = packed.data
        return packed.largest

    for start, piece in checkpoint.pieces(name):
        places = range(0, len(piece), step)
        done = threads.map(pack, (piece[at : at + step] for at in places), (start + at for at in places))
        largest = max(largest, *done)  # raises what a thread raised
    return Packed(kind, data, rows, columns, largest, shift)


def pack_rows(rows: Blocks, kind: int, shift: int = 0) -> Packed:
    """Pack rows of a matrix, times 2 ** shift, into panels of that kind (Q4: only the types of 4 bits).

    Raises ScaleError where a scale or lowest value does not fit float16.
    """
    if kind == Q4:
        nibbles, scale, low = _q4_k(rows.data) if rows.kind == "Q4_K" else _q4_0_or_1(rows.data, rows.kind)
        return pack_q4(nibbles, _shifted(scale, shift), _shifted(low, shift), rows.columns)
    if rows.kind == "Q8_0":
        q, scale = _q8_0(rows.data)
    elif rows.kind == "Q5_0":
        q, scale = _q5_0(rows.data)
    else:
        q, scale = quantise_q8(np.ldexp(rows.floats(), shift) if shift else rows.floats())
        shift = 0
    return pack_q8(q, _shifted(scale, shift), rows.columns)


def _shifted(values: np.ndarray, shift: int) -> np.ndarray:
    """Float16 times 2 ** shift."""
    if shift:
        with np.errstate(over="ignore"):
            values = np.ldexp(values, shift)
    if not np.isfinite(values).all():
        raise ScaleError
    return values


# GGUF's blocks (ggml-common.h, ggml-quants.c): uint8 [rows, bytes] -> integers, float16 scales and lowest values ----


def _q8_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 32: float16 d, 32 int8; w = d * q."""
    parts = raw.reshape(len(raw), -1, 34)
    q = np.ascontiguousarray(parts[:, :, 2:]).view(np.int8)
    return q.reshape(len(raw), -1), _halves(parts, 0)


def _q5_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 32: float16 d, 32 fifth bits, 16 bytes of two values (i and i + 16); w = d * (q - 16)."""
    parts = raw.reshape(len(raw), -1, 22)
    fifth = np.unpackbits(parts[:, :, 2:6], axis=2, bitorder="little")
    four = np.concatenate((parts[:, :, 6:] & 15, parts[:, :, 6:] >> 4), axis=2)
    q = (four | fifth << 4).view(np.int8) - np.int8(16)
    return q.reshape(len(raw), -1), _halves(parts, 0)


def _q4_0_or_1(raw: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of 32: float16 d, in Q4_1 float16 m, 16 bytes of two values (i and i + 16); w = d * (q - 8), d * q + m."""
    head = 2 if kind == "Q4_0" else 4
    parts = raw.reshape(len(raw), -1, head + 16)
    scale = _halves(parts, 0)
    with np.errstate(over="ignore"):
        low = scale * np.float16(-8) if kind == "Q4_0" else _halves(parts, 2)
    return np.ascontiguousarray(parts[:, :, head:]), scale, low


def _q4_k(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of 256 in 8 groups: float16 d and dmin, 12 bytes of 6-bit s and m for the groups, 4 x 32 bytes of two
    values (i of groups 2j and 2j + 1); w = d * s * q - dmin * m.
    """
    rows = len(raw)
    parts = raw.reshape(rows, -1, 144)
    six, top = parts[:, :, 4:16] & 63, parts[:, :, 4:16] >> 6
    last = parts[:, :, 12:16]  # the lower 4 bits of groups 4 to 7; their upper 2 are on top of groups 0 to 3
    s = np.concatenate((six[:, :, :4], last & 15 | top[:, :, :4] << 4), axis=2)
    m = np.concatenate((six[:, :, 4:8], last >> 4 | top[:, :, 4:8] << 4), axis=2)
    with np.errstate(over="ignore"):
        scale = (_halves(parts, 0).astype(np.float32)[:, :, None] * s).astype(np.float16)
        low = (_halves(parts, 2).astype(np.float32)[:, :, None] * m).astype(np.float16)
    pairs = parts[:, :, 16:].reshape(rows, -1, 4, 2, 16)
    first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]  # inputs 0 to 15 and 16 to 31 of two groups
    nibbles = np.empty((rows, pairs.shape[1], 4, 2, 16), np.uint8)
    nibbles[:, :, :, 0] = first & 15 | second << 4
    nibbles[:, :, :, 1] = first >> 4 | second & 0xF0
    return nibbles.reshape(rows, -1, 16), scale.reshape(rows, -1), -low.reshape(rows, -1)


def _halves(parts: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block."""
    return np.ascontiguousarray(parts[:, :, at : at + 2]).view(np.float16)[:, :, 0]


# The layout -----------------------------------------------------------------------------------------------------------


def pack_q8(q: np.ndarray, scale: np.ndarray, columns: int) -> Packed:
    """int8 [rows, k], float16 [rows, k / 32] -> panels."""
    rows, k = q.shape
    groups = k // GROUP
    unsigned = _pad_rows((q.view(np.uint8) ^ 0x80).view(np.uint32), 0x80808080)  # + 128; words of 4 inputs
    panels = len(unsigned) // PANEL
    data = np.empty((panels, groups, GROUP_BYTES[Q8]), np.uint8)
    words = unsigned.reshape(panels, 4, 16, groups, 8).transpose(0, 3, 4, 1, 2)
    data[:, :, :2048].view(np.uint32).reshape(panels, groups, 8, 4, 16)[:] = words
    _put_scales(data, 2048, scale)
    return Packed(Q8, data.reshape(panels, -1), rows, columns, float(np.abs(scale).max()))


def pack_q4(nibbles: np.ndarray, scale: np.ndarray, low: np.ndarray, columns: int) -> Packed:
    """uint8 [rows, groups, 16] (input i in the low half of byte i, input 16 + i in the high one), float16 scales and
    lowest values [rows, groups] -> panels."""
    rows, groups, _ = nibbles.shape
    words = _pad_rows(nibbles.reshape(rows, -1).view(np.uint32), 0)
    panels = len(words) // PANEL
    data = np.empty((panels, groups, GROUP_BYTES[Q4]), np.uint8)
    moved = words.reshape(panels, 4, 16, groups, 4).transpose(0, 3, 4, 1, 2)
    data[:, :, :1024].view(np.uint32).reshape(panels, groups, 4, 4, 16)[:] = moved
    _put_scales(data, 1024, scale)
    _put_scales(data, 1152, low)
    largest = max(np.abs(scale).max(), np.abs(low).max())
    return Packed(Q4, data.reshape(panels, -1), rows, columns, float(largest))


def _put_scales(data: np.ndarray, offset: int, scale: np.ndarray) -> None:
    padded = _pad_rows(scale, 0)
    panels, groups = len(data), scale.shape[1]
    data[:, :, offset : offset + 128].view(np.float16)[:] = padded.reshape(panels, PANEL, groups).transpose(0, 2, 1)


def _pad_rows(values: np.ndarray, fill: int) -> np.ndarray:
    missing = -len(values) % PANEL
    return np.pad(values, ((0, missing), (0, 0)), constant_values=fill) if missing else np.ascontiguousarray(values)
