"""Attention over the paged pool, for one token and for a whole prompt by the same arithmetic.

Keys are walked in tiles of 64 tokens; softmax runs online over the tiles of a span of 256 tokens, and spans are
merged in order. Tiles and spans start at multiples of 64 and 256 of the position in the sequence, so a query's result
is the same bits whether it was decoded alone, prefilled in any chunk, or had its spans computed by different threads.

A query row here is one token and one query head. The rows of the heads that share a kv head are handled together, so
that keys and values are read once for all of them. State of a row, in float32 words: [head_dim] weighted values, [16]
partial sums of the weights, [16] of which the first is the largest score so far (base 2). A part (the result of one
span) has the same form.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenline.models.cpu import simd
from tokenline.models.cpu.simd import (
    F32,
    I8,
    I32,
    I64,
    V16F,
    V16I,
    add,
    broadcast,
    constant,
    div,
    exp2,
    finite,
    fma,
    i32,
    i64,
    keep_apart,
    kernel,
    load,
    load_f32,
    mul,
    read_f32,
    splat,
    store_bf16,
    store_f32,
    sum_lanes,
    write_f32,
    write_i32,
)

TILE = 64  # keys
SPAN = 256  # keys
NOTHING = -1.0e29  # the largest score of no scores
HIDDEN = (
    -2.0e29
)  # the score of a key that a query may not see: far below any score, and below NOTHING, so its weight is 0
UNIT_ROWS = 64  # query rows that a unit of work may have


def _make_tile(rows: int) -> Any:
    """The kernel for `rows` query rows and one tile of 64 keys.

    Arguments: address of the queries (bfloat16, scaled, contiguous rows of `head_dim`), address of 4 + 4 addresses of
    the keys and values of 16 tokens each, bytes between pairs of dimensions of the keys, head_dim, address of each
    row's visible keys in the tile (int32 first, int32 end), address of the first row's state, bytes between states.
    """

    @intrinsic
    def tile(context, queries, tables, key_step, head_dim, limits, state, state_stride):  # type: ignore[no-untyped-def]
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            b = builder
            queries, tables, key_step, head_dim, limits, state, state_stride = values
            row_bytes = b.shl(head_dim, i64(1))
            query = [b.add(queries, b.mul(row_bytes, i64(row))) for row in range(rows)]
            keys = [load(b, tables, I64, 8 * n) for n in range(4)]
            vals = [load(b, tables, I64, 32 + 8 * n) for n in range(4)]
            # bfloat16 weights of this tile: [rows][64]
            weights = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, rows * TILE * 2)), I64)

            # scores
            scores = [[cgutils.alloca_once_value(b, constant(0.0)) for _ in range(4)] for _ in range(rows)]
            with cgutils.for_range(b, b.lshr(head_dim, i64(1))) as loop:
                key_at = b.mul(loop.index, key_step)
                query_at = b.shl(loop.index, i64(2))
                key = [load(b, b.add(keys[n], key_at), V16I) for n in range(4)]
                for row in range(rows):
                    pair = splat(b, load(b, b.add(query[row], query_at), I32))
                    for n in range(4):
                        b.store(simd.build_dot_bf16(b, b.load(scores[row][n]), pair, key[n]), scores[row][n])

            # softmax of the tile
            rescale = []
            states = [b.add(state, b.mul(state_stride, i64(row))) for row in range(rows)]
            sums = [b.add(s, b.shl(head_dim, i64(2))) for s in states]
            for row in range(rows):
                first, end = load(b, limits, I32, row * 8), load(b, limits, I32, row * 8 + 4)
                partial = b.or_(b.icmp_signed(">", first, i32(0)), b.icmp_signed("<", end, i32(TILE)))
                with b.if_then(partial):
                    for n in range(4):
                        lane = ir.Constant(V16I, [16 * n + k for k in range(16)])
                        mask = b.and_(
                            b.icmp_signed(">=", lane, splat(b, first)), b.icmp_signed("<", lane, splat(b, end))
                        )
                        b.store(b.select(mask, b.load(scores[row][n]), constant(HIDDEN)), scores[row][n])
                seen = [b.load(scores[row][n]) for n in range(4)]
                high = simd.build_max(b, simd.build_max(b, seen[0], seen[1]), simd.build_max(b, seen[2], seen[3]))
                high = simd.build_reduce(b, simd.build_max, high)
                before = load(b, sums[row], F32, 64)
                largest = b.select(b.fcmp_ordered(">", high, before), high, before)
                simd.store(b, sums[row], largest, 64)
                largest = splat(b, largest)
                factor = simd.build_exp2(b, b.fsub(splat(b, before), largest))
                rescale.append(factor)
                total = b.fmul(load(b, sums[row], V16F), factor)
                for n in range(4):
                    weight = simd.build_exp2(b, b.fsub(seen[n], largest))
                    total = b.fadd(total, weight)
                    simd.store(b, weights, simd.build_to_bf16(b, weight), row * TILE * 2 + n * 32)
                simd.store(b, sums[row], total)

            # weighted values: columns in groups of 4 vectors, then single ones
            def columns(at: Any, vectors: int) -> None:
                out = []
                for row in range(rows):
                    row_at = b.add(states[row], b.shl(at, i64(2)))
                    out.append(
                        [
                            cgutils.alloca_once_value(b, b.fmul(load(b, row_at, V16F, v * 64), rescale[row]))
                            for v in range(vectors)
                        ]
                    )
                    # alloca_once_value stores at the place of the call, the slot itself is made once
                pair_bytes = b.shl(head_dim, i64(2))
                for n in range(4):
                    with cgutils.for_range(b, i64(8)) as loop:
                        value_at = b.add(vals[n], b.add(b.mul(loop.index, pair_bytes), b.shl(at, i64(2))))
                        value = [load(b, value_at, V16I, v * 64) for v in range(vectors)]
                        weight_at = b.add(weights, b.shl(loop.index, i64(2)))
                        for row in range(rows):
                            pair = splat(b, load(b, weight_at, I32, row * TILE * 2 + n * 32))
                            for v in range(vectors):
                                slot = out[row][v]
                                b.store(simd.build_dot_bf16(b, b.load(slot), pair, value[v]), slot)
                for row in range(rows):
                    row_at = b.add(states[row], b.shl(at, i64(2)))
                    for v in range(vectors):
                        simd.store(b, row_at, b.load(out[row][v]), v * 64)

            wide = b.lshr(head_dim, i64(6))
            with cgutils.for_range(b, wide) as loop:
                columns(b.shl(loop.index, i64(6)), 4)
            done = b.shl(wide, i64(6))
            with cgutils.for_range(b, b.lshr(b.sub(head_dim, done), i64(4))) as loop:
                columns(b.add(done, b.shl(loop.index, i64(4))), 1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), lower

    return tile


_tile_1, _tile_2, _tile_3, _tile_4 = (_make_tile(rows) for rows in (1, 2, 3, 4))


@kernel
def state_bytes(head_dim):  # type: ignore[no-untyped-def]
    return head_dim * 4 + 128


@kernel
def clear_state(state, head_dim):  # type: ignore[no-untyped-def]
    keep_apart()
    for column in range(0, head_dim + 16, 16):
        store_f32(state + column * 4, broadcast(0.0))
    store_f32(state + head_dim * 4 + 64, broadcast(NOTHING))


@kernel
def merge_state(total, part, head_dim):  # type: ignore[no-untyped-def]
    """Take the part of a later span into `total`."""
    keep_apart()
    sums = head_dim * 4
    a = load_f32(total + sums + 64)
    b = load_f32(part + sums + 64)
    high = max(read_f32(total + sums + 64), read_f32(part + sums + 64))
    largest = broadcast(high)
    a = exp2(add(a, mul(largest, broadcast(-1.0))))
    b = exp2(add(b, mul(largest, broadcast(-1.0))))
    # only lane 0 of the largest scores is kept up to date
    a = broadcast_first(a)
    b = broadcast_first(b)
    for column in range(0, head_dim + 16, 16):
        at = column * 4
        store_f32(total + at, fma(load_f32(part + at), b, mul(load_f32(total + at), a)))
    write_f32(total + sums + 64, high)


@simd.operation(simd.f32x16, simd.f32x16)
def broadcast_first(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(V16F, ir.Undefined)
    return builder.shuffle_vector(value, undefined, ir.Constant(V16I, [0] * 16))


@kernel
def finish_state(state, head_dim, out):  # type: ignore[no-untyped-def]
    """Weighted values over the sum of the weights, float32 at `out`."""
    keep_apart()
    total = broadcast(sum_lanes(load_f32(state + head_dim * 4)))
    for column in range(0, head_dim, 16):
        store_f32(out + column * 4, div(load_f32(state + column * 4), total))


@kernel
def attend_span(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size, head_dim,
                state, scratch):  # type: ignore[no-untyped-def]  # fmt: skip
    """The part of one span for `rows` query rows (token-major, `group` heads a token, the first token at `position`).

    `table` is the address of the sequence's int32 block numbers; `keys`, `values` are addresses of the layer's first
    block of the kv head; strides are in bytes. `state` gets the rows' parts. `scratch`: 64 bytes of addresses, then
    limits.
    """
    keep_apart()
    stride = state_bytes(head_dim)
    for row in range(rows):
        clear_state(state + row * stride, head_dim)
    last = position + (rows - 1) // group
    limits = scratch + 64
    for start in range(span * SPAN, min(last + 1, span * SPAN + SPAN), TILE):
        if window > 0 and start + TILE <= position + 1 - window:
            continue
        for n in range(4):
            token = start + 16 * n
            if token > last:
                token = start  # any block that is ours; its lanes are masked
            block = np.int64(simd.read_i32(table + (token // block_size) * 4))
            inside = token % block_size
            simd.write_i64(scratch + 8 * n, keys + block * block_stride + inside * 4)
            simd.write_i64(scratch + 32 + 8 * n, values + block * block_stride + inside * head_dim * 2)
        row = 0
        while row < rows:
            count = min(4, rows - row)
            if position + (row + count - 1) // group >= start:
                for k in range(count):
                    own = position + (row + k) // group
                    first = 0
                    if window > 0:
                        first = max(0, own + 1 - window - start)
                    write_i32(limits + 8 * k, first)
                    write_i32(limits + 8 * k + 4, own + 1 - start)
                q = queries + row * head_dim * 2
                s = state + row * stride
                if count == 4:
                    _tile_4(q, scratch, block_size * 4, head_dim, limits, s, stride)
                elif count == 3:
                    _tile_3(q, scratch, block_size * 4, head_dim, limits, s, stride)
                elif count == 2:
                    _tile_2(q, scratch, block_size * 4, head_dim, limits, s, stride)
                else:
                    _tile_1(q, scratch, block_size * 4, head_dim, limits, s, stride)
            row += 4


@kernel
def store_key_value(key, value, head_dim, block_size, inside, key_block, value_block):  # type: ignore[no-untyped-def]
    """Write one token's key and value (float32 at `key`, `value`) to token number `inside` of a block."""
    keep_apart()
    for column in range(0, head_dim, 16):
        simd.store_bf16_pairs(
            key_block + (column // 2) * block_size * 4 + inside * 4, block_size * 4, finite(load_f32(key + column * 4))
        )
        simd.store_bf16_strided(
            value_block + ((inside // 2) * head_dim + column) * 4 + (inside % 2) * 2,
            finite(load_f32(value + column * 4)),
        )


@kernel
def store_query(query, head_dim, out):  # type: ignore[no-untyped-def]
    """Round one head's scaled query to bfloat16."""
    for column in range(0, head_dim, 16):
        store_bf16(out + column * 2, load_f32(query + column * 4))
