"""Matrix products over quantised weights: the tile kernels and the packed layout that they read.

Weights lie in panels of 64 outputs. A panel runs over the inputs in groups of 32; a group holds the weights of 32
inputs x 64 outputs followed by its scales, so one panel is one stream of memory, for one row and for hundreds alike:

    Q8: [8 steps][4 vectors][16 outputs x 4 inputs] uint8, w = scale * (u - 128);
        float16 scale[64]                                                                   2,176 bytes
    Q4: [4 steps][4 vectors][16 outputs x 4 inputs] uint8, two steps a byte (step j low, step j + 4 high),
        w = scale * u + low;  float16 scale[64], float16 low[64]                          1,280 bytes

Both are exact for GGUF's own formats (Q8_0; Q4_0 and Q4_1). Activations come as quantised rows (`rows.py`): int8 with
one float32 scale per 32 inputs. A group's products add up in int32, exactly, and join the float32 result in the order
of the groups; so an output depends on its own row only, whatever the batch and however rows were tiled.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenline.models.cpu import simd
from tokenline.models.cpu.simd import (
    F32,
    I32,
    V16F,
    V16H,
    V16I,
    i64,
    int_constant,
    kernel,
    load,
    splat,
)

PANEL = 64  # outputs
GROUP = 32  # inputs that share a scale
Q8, Q4 = 0, 1
GROUP_BYTES = (8 * 4 * 64 + 128, 4 * 4 * 64 + 256)  # by format
MAX_TILE_ROWS = 4
PREFETCH_BYTES = 192

_NIBBLE = int_constant(0x0F0F0F0F)


def _group_products(
    builder: Any, kind: int, rows: int, weights: Any, inputs: list[Any], totals: list[list[Any]]
) -> None:
    """Add the int32 products of one group of 32 inputs to `totals[row][vector]`."""

    def multiply(step: int, vectors: list[Any]) -> None:
        for row in range(rows):
            four = splat(builder, load(builder, inputs[row], I32, step * 4))
            for v in range(4):
                totals[row][v] = simd.build_dot_u8s8(builder, totals[row][v], vectors[v], four)

    if kind == Q8:
        for step in range(8):
            multiply(step, [load(builder, weights, V16I, (step * 4 + v) * 64) for v in range(4)])
        return
    for step in range(4):
        packed = [load(builder, weights, V16I, (step * 4 + v) * 64) for v in range(4)]
        multiply(step, [builder.and_(p, _NIBBLE) for p in packed])
        multiply(step + 4, [builder.and_(builder.lshr(p, int_constant(4)), _NIBBLE) for p in packed])


def _make_tile(kind: int, rows: int) -> Any:
    """The kernel for `rows` rows and one panel.

    Arguments: address of the first quantised row, bytes from row to row, groups, address of the panel, address of the
    64 float32 biases, address of the output (float32), bytes from output row to row, whether to add to the output, and
    the address to prefetch: full tiles prefetch `PREFETCH_BYTES` per group from there, a little at a time, so that
    nothing stalls.
    """

    @intrinsic
    def tile(context, a, a_stride, groups, panel, bias, out, out_stride, add, prefetch):  # type: ignore[no-untyped-def]
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            a, a_stride, groups, panel, bias, out, out_stride, add, prefetch = values
            start = [builder.add(a, builder.mul(a_stride, i64(row))) for row in range(rows)]
            k_bytes = builder.mul(groups, i64(GROUP))
            field = builder.mul(groups, i64(4))  # bytes of one float32 a group
            biases = [load(builder, bias, V16F, v * 64) for v in range(4)]
            results = [[cgutils.alloca_once_value(builder, biases[v]) for v in range(4)] for _ in range(rows)]
            with cgutils.for_range(builder, groups) as loop:
                weights = builder.add(panel, builder.mul(loop.index, i64(GROUP_BYTES[kind])))
                inputs = [builder.add(s, builder.mul(loop.index, i64(GROUP))) for s in start]
                if rows == MAX_TILE_ROWS:
                    line = builder.add(prefetch, builder.mul(loop.index, i64(PREFETCH_BYTES)))
                    for offset in range(0, PREFETCH_BYTES, 64):
                        simd.build_prefetch(builder, builder.add(line, i64(offset)))
                at = builder.add(k_bytes, builder.mul(loop.index, i64(4)))
                scale_at = [builder.add(s, at) for s in start]
                totals: list[list[Any]] = []
                for row in range(rows):
                    if kind == Q8:  # the 128 that was added to every weight, taken off in advance
                        zero = splat(builder, load(builder, builder.add(scale_at[row], field), I32))
                    else:
                        zero = int_constant(0)
                    totals.append([zero] * 4)
                _group_products(builder, kind, rows, weights, inputs, totals)
                scales = GROUP_BYTES[kind] - (128 if kind == Q8 else 256)
                for v in range(4):
                    scale = simd.build_from_f16(builder, load(builder, weights, V16H, scales + v * 32))
                    low = None
                    if kind == Q4:
                        low_at = scales + 128 + v * 32
                        low = simd.build_from_f16(builder, load(builder, weights, V16H, low_at))
                    for row in range(rows):
                        both = builder.fmul(scale, splat(builder, load(builder, scale_at[row], F32)))
                        result = simd.build_fma(
                            builder, builder.sitofp(totals[row][v], V16F), both, builder.load(results[row][v])
                        )
                        if kind == Q4:
                            sum_at = builder.add(scale_at[row], builder.shl(field, i64(1)))
                            result = simd.build_fma(builder, low, splat(builder, load(builder, sum_at, F32)), result)
                        builder.store(result, results[row][v])
            target = [builder.add(out, builder.mul(out_stride, i64(row))) for row in range(rows)]
            with builder.if_then(builder.icmp_signed("!=", add, i64(0))):
                for row in range(rows):
                    for v in range(4):
                        before = load(builder, target[row], V16F, v * 64)
                        builder.store(builder.fadd(before, builder.load(results[row][v])), results[row][v])
            for row in range(rows):
                for v in range(4):
                    simd.store(builder, target[row], builder.load(results[row][v]), v * 64)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), lower

    return tile


_q8_tile = simd.for_rows(lambda rows: _make_tile(Q8, rows))
_q4_tile = simd.for_rows(lambda rows: _make_tile(Q4, rows))


@kernel
def panel_product(kind, a, a_stride, rows, groups, panel, bias, out, out_stride, add, prefetch):  # type: ignore[no-untyped-def]
    """`rows` quantised rows times one panel: 64 float32 results a row at `out`.

    Meanwhile the memory from the address `prefetch` on is brought into the cache, unless that is 0: with many rows the
    memory would be idle otherwise.
    """
    row = 0
    while row < rows:
        ahead = panel if prefetch == 0 else prefetch + row // 4 * groups * PREFETCH_BYTES
        left = min(MAX_TILE_ROWS, rows - row)
        x = a + row * a_stride
        y = out + row * out_stride
        if kind == 0:
            _q8_tile(left, x, a_stride, groups, panel, bias, y, out_stride, add, ahead)
        else:
            _q4_tile(left, x, a_stride, groups, panel, bias, y, out_stride, add, ahead)
        row += 4
