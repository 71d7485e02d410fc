"""The vector operations that not every CPU has an instruction for, run once: `python -m ... INPUTS.npz RESULTS.npz`.

Imports neither PyTorch nor the kernels, so that a test can start it for one CPU after another.
"""

import sys
from typing import Any

import numpy as np
from numba import njit, types

from tokenline.models.cpu import simd
from tokenline.models.cpu.simd import LANES, V16F, V16H, V16I, V16W, load, operation, store

LINE = 64  # bytes of a vector of 32-bit lanes
INPUTS = ("total", "unsigned", "signed", "sums", "x", "y", "halves", "floats")
RESULTS = ("dot_u8s8", "dot_bf16", "from_f16", "read_f16", "round_bf16", "roundeven", "exp2")  # bits, as int32


@operation(types.void, types.int64, types.int64, types.int64, types.int64)
def _dot_u8s8(builder: Any, total: Any, unsigned: Any, signed: Any, out: Any) -> None:
    store(builder, out, simd.build_dot_u8s8(builder, *(load(builder, at, V16I) for at in (total, unsigned, signed))))


@operation(types.void, types.int64, types.int64, types.int64, types.int64)
def _dot_bf16(builder: Any, total: Any, x: Any, y: Any, out: Any) -> None:
    result = simd.build_dot_bf16(builder, load(builder, total, V16F), load(builder, x, V16I), load(builder, y, V16I))
    store(builder, out, result)


@operation(types.void, types.int64, types.int64)
def _from_f16(builder: Any, values: Any, out: Any) -> None:
    store(builder, out, simd.build_from_f16(builder, load(builder, values, V16H)))


@operation(types.void, types.int64, types.int64)
def _round_bf16(builder: Any, values: Any, out: Any) -> None:
    rounded = simd.build_round_bf16(builder, load(builder, values, V16F))
    store(builder, out, builder.zext(builder.bitcast(rounded, V16W), V16I))


@njit
def _run(vectors, total, unsigned, signed, sums, x, y, halves, floats, results):  # type: ignore[no-untyped-def]
    """So many vectors of each operation; the other arguments are addresses, `results` that of one row for each."""
    row = vectors * LINE
    for at in range(0, row, LINE):
        out = results + at
        _dot_u8s8(total + at, unsigned + at, signed + at, out)
        _dot_bf16(sums + at, x + at, y + at, out + row)
        _from_f16(halves + at // 2, out + 2 * row)
        for lane in range(LANES):
            simd.write_f32(out + 3 * row + 4 * lane, simd.read_f16(halves + at // 2 + 2 * lane))
        _round_bf16(floats + at, out + 4 * row)
        simd.store_f32(out + 5 * row, simd.roundeven(simd.load_f32(floats + at)))
        simd.store_f32(out + 6 * row, simd.exp2(simd.load_f32(floats + at)))


def main(inputs: str, results: str) -> None:
    given = np.load(inputs)
    arrays = [given[name] for name in INPUTS]
    lanes = len(given["total"])
    out = np.empty((len(RESULTS), lanes), np.int32)
    addresses = [array.ctypes.data for array in (*arrays, out)]
    _run(lanes // LANES, *addresses)
    np.savez(results, **dict(zip(RESULTS, out, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
