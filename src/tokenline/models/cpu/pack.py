"""Weights into panels: from float tensors and from GGUF's quantised blocks to the layout that `linear.py` reads.

Q4_0, Q4_1 and Q8_0 are taken as they are, only moved; everything else becomes Q8: int8 with one float16 scale per 32
inputs.
"""

from dataclasses import dataclass

import numpy as np

from tokenline.models.cpu.linear import GROUP, GROUP_BYTES, PANEL, Q4, Q8
from tokenline.models.gguf_file import dequantize_blocks
from tokenline.models.weights import Blocks, Weights


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix: `data` is uint8 [panels, bytes of a panel]."""

    kind: int  # Q8 or Q4
    data: np.ndarray
    rows: int  # outputs
    columns: int  # inputs

    @property
    def panels(self) -> int:
        return len(self.data)


def pack_tensor(weights: Weights, name: str) -> Packed:
    """Read one matrix and pack it."""
    if (blocks := weights.blocks(name)) is not None:
        return pack_blocks(blocks)
    rows, columns = weights.shapes[name]
    groups = -(-columns // GROUP)
    q = np.empty((rows, groups * GROUP), np.int8)
    scale = np.empty((rows, groups), np.float16)
    for start, values in weights.pieces(name):
        stop = start + len(values)
        q[start:stop], scale[start:stop] = quantise_q8(values.float().numpy())
    return pack_q8(q, scale, columns)


def pack_blocks(blocks: Blocks) -> Packed:
    """Pack GGUF blocks."""
    raw = blocks.data
    if blocks.kind == "Q8_0":
        parts = raw.reshape(len(raw), -1, 34)
        scale = np.ascontiguousarray(parts[:, :, :2]).view(np.float16)[:, :, 0]
        q = np.ascontiguousarray(parts[:, :, 2:]).view(np.int8).reshape(len(raw), -1)
        return pack_q8(q, scale, blocks.columns)
    if blocks.kind in ("Q4_0", "Q4_1"):
        head = 2 if blocks.kind == "Q4_0" else 4
        parts = raw.reshape(len(raw), -1, head + 16)
        scales = np.ascontiguousarray(parts[:, :, :head]).view(np.float16)
        scale = scales[:, :, 0]
        low = scale * np.float16(-8) if blocks.kind == "Q4_0" else scales[:, :, 1]
        return pack_q4(np.ascontiguousarray(parts[:, :, head:]), scale, low, blocks.columns)
    q, scale = quantise_q8(dequantize_blocks(raw, blocks.kind))
    return pack_q8(q, scale, blocks.columns)


def quantise_q8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [rows, columns] -> int8 [rows, columns padded to 32] and float16 scales [rows, groups]."""
    rows, columns = values.shape
    if columns % GROUP:
        values = np.pad(values, ((0, 0), (0, GROUP - columns % GROUP)))
    groups = values.reshape(rows, -1, GROUP)
    scale = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    inverse = np.divide(1, scale, out=np.zeros(scale.shape, np.float32), where=scale > 0, dtype=np.float32)
    q = np.clip(np.rint(groups * inverse[:, :, None]), -127, 127).astype(np.int8)
    return q.reshape(rows, -1), scale


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
    return Packed(Q8, data.reshape(panels, -1), rows, columns)


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
    return Packed(Q4, data.reshape(panels, -1), rows, columns)


def _put_scales(data: np.ndarray, offset: int, scale: np.ndarray) -> None:
    padded = _pad_rows(scale, 0)
    panels, groups = len(data), scale.shape[1]
    data[:, :, offset : offset + 128].view(np.float16)[:] = padded.reshape(panels, PANEL, groups).transpose(0, 2, 1)


def _pad_rows(values: np.ndarray, fill: int) -> np.ndarray:
    missing = -len(values) % PANEL
    return np.pad(values, ((0, missing), (0, 0)), constant_values=fill) if missing else np.ascontiguousarray(values)
