"""Attention over the paged pool, for one token and for a whole prompt by the same arithmetic.

Keys are walked in tiles of 64 tokens; the softmax of a span of 512 tokens is worked out at once, and spans are merged
in order. Tiles and spans start at multiples of 64 and 512 of the position in the sequence, so a query's result
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
    kernel,
    load,
    load_f32,
    mul,
    noinline,
    read_f32,
    splat,
    store_bf16,
    store_f32,
    sum_lanes,
    write_f32,
    write_i32,
)

TILE = 64  # keys
SPAN = 512  # keys
NOTHING = -1.0e29  # what the largest score starts from
HIDDEN = -2.0e29  # the score of a masked key: far below any other, and below NOTHING, so that its weight is 0
UNIT_ROWS = 64  # query rows that a unit of work may have
# What `attend_span` works in: addresses of the span's keys and values, rows' limits, rows of scores
_ADDRESSES_BYTES = SPAN // 16 * 8
SCRATCH_BYTES = 2 * _ADDRESSES_BYTES + UNIT_ROWS * 8 + UNIT_ROWS * SPAN * 4


def _make_scores(rows: int) -> Any:
    """The kernel for the scores of `rows` query rows on one tile of 64 keys; what a row may not see becomes `HIDDEN`.

    Arguments: address of the queries (bfloat16, scaled, contiguous rows of `head_dim`), address of 4 addresses of the
    keys of 16 tokens each, bytes between pairs of dimensions of the keys, head_dim, address of each row's visible keys
    (int32 first, int32 end, in the span), number of the tile in the span, address of the scores (float32 [rows, SPAN]).
    """

    @intrinsic
    def scores(context, queries, tables, key_step, head_dim, limits, tile, out):  # type: ignore[no-untyped-def]
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            b = builder
            queries, tables, key_step, head_dim, limits, tile, out = values
            row_bytes = b.shl(head_dim, i64(1))
            query = [b.add(queries, b.mul(row_bytes, i64(row))) for row in range(rows)]
            keys = [load(b, tables, I64, 8 * n) for n in range(4)]
            scores = [[cgutils.alloca_once_value(b, constant(0.0)) for _ in range(4)] for _ in range(rows)]
            with cgutils.for_range(b, b.lshr(head_dim, i64(1))) as loop:
                key_at = b.mul(loop.index, key_step)
                query_at = b.shl(loop.index, i64(2))
                key = [load(b, b.add(keys[n], key_at), V16I) for n in range(4)]
                for row in range(rows):
                    pair = splat(b, load(b, b.add(query[row], query_at), I32))
                    for n in range(4):
                        b.store(simd.build_dot_bf16(b, b.load(scores[row][n]), pair, key[n]), scores[row][n])
            before = b.mul(b.trunc(tile, I32), i32(TILE))
            for row in range(rows):
                first = b.sub(load(b, limits, I32, row * 8), before)
                end = b.sub(load(b, limits, I32, row * 8 + 4), before)
                partial = b.or_(b.icmp_signed(">", first, i32(0)), b.icmp_signed("<", end, i32(TILE)))
                with b.if_then(partial):
                    for n in range(4):
                        lane = ir.Constant(V16I, [16 * n + k for k in range(16)])
                        mask = b.and_(
                            b.icmp_signed(">=", lane, splat(b, first)), b.icmp_signed("<", lane, splat(b, end))
                        )
                        b.store(b.select(mask, b.load(scores[row][n]), constant(HIDDEN)), scores[row][n])
            at = b.add(out, b.mul(tile, i64(TILE * 4)))
            for row in range(rows):
                for n in range(4):
                    simd.store(b, at, b.load(scores[row][n]), row * SPAN * 4 + n * 64)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), lower

    return scores


def _make_softmax(rows: int) -> Any:
    """The kernel that turns the scores of `rows` rows into weights.

    Arguments: address of the scores; the weights (bfloat16) take the place of each row's first half. Then the first
    and the last tile (exclusive) that were filled, address of the sums in the first row's state, bytes between states.
    """

    @intrinsic
    def softmax(context, scores, first, end, sums, stride):  # type: ignore[no-untyped-def]
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            b = builder
            scores, first, end, sums, stride = values
            count = b.sub(end, first)
            lines = [b.add(scores, b.add(b.mul(first, i64(TILE * 4)), i64(row * SPAN * 4))) for row in range(rows)]
            high = [[cgutils.alloca_once_value(b, constant(NOTHING)) for _ in range(2)] for _ in range(rows)]
            with cgutils.for_range(b, count) as loop:
                at = b.mul(loop.index, i64(TILE * 4))
                for row in range(rows):
                    for n in range(4):
                        score = load(b, b.add(lines[row], at), V16F, n * 64)
                        slot = high[row][n % 2]
                        b.store(simd.build_max(b, score, b.load(slot)), slot)
            largest = []
            for row in range(rows):
                both = simd.build_max(b, *(b.load(slot) for slot in high[row]))
                scalar = simd.build_reduce(b, simd.build_max, both)
                simd.store(b, b.add(sums, b.mul(stride, i64(row))), scalar, 64)
                largest.append(splat(b, scalar))
            totals = [cgutils.alloca_once_value(b, constant(0.0)) for row in range(rows)]
            starts = [b.add(scores, b.add(b.mul(first, i64(TILE * 2)), i64(row * SPAN * 4))) for row in range(rows)]
            with cgutils.for_range(b, count) as loop:
                at, to = b.mul(loop.index, i64(TILE * 4)), b.mul(loop.index, i64(TILE * 2))
                for row in range(rows):
                    line = [load(b, b.add(lines[row], at), V16F, n * 64) for n in range(4)]
                    for n in range(4):
                        weight = simd.build_exp2(b, b.fsub(line[n], largest[row]))
                        b.store(b.fadd(b.load(totals[row]), weight), totals[row])
                        simd.store(b, b.add(starts[row], to), simd.build_round_bf16(b, weight), n * 32)
            for row in range(rows):
                simd.store(b, b.add(sums, b.mul(stride, i64(row))), b.load(totals[row]))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), lower

    return softmax


def _make_values(rows: int) -> Any:
    """The kernel that adds the weighted values of one tile of 64 keys to the states of `rows` rows.

    Arguments: address of the weights of the tile (bfloat16, rows `SPAN` float32 words apart), address of 4 addresses of
    the values of 16 tokens each, head_dim, address of the first row's state, bytes between states.
    """

    @intrinsic
    def accumulate(context, weights, tables, head_dim, state, stride):  # type: ignore[no-untyped-def]
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            b = builder
            weights, tables, head_dim, state, stride = values
            vals = [load(b, tables, I64, 8 * n) for n in range(4)]
            states = [b.add(state, b.mul(stride, i64(row))) for row in range(rows)]
            pair_bytes = b.shl(head_dim, i64(2))

            def columns(at: Any, vectors: int) -> None:
                place = [b.add(states[row], b.shl(at, i64(2))) for row in range(rows)]
                out = [
                    [cgutils.alloca_once_value(b, load(b, place[row], V16F, v * 64)) for v in range(vectors)]
                    for row in range(rows)
                ]  # alloca_once_value stores at the place of the call, the slot itself is made once
                for n in range(4):
                    with cgutils.for_range(b, i64(8)) as loop:
                        value_at = b.add(vals[n], b.add(b.mul(loop.index, pair_bytes), b.shl(at, i64(2))))
                        value = [load(b, value_at, V16I, v * 64) for v in range(vectors)]
                        weight_at = b.add(weights, b.shl(loop.index, i64(2)))
                        for row in range(rows):
                            pair = splat(b, load(b, weight_at, I32, row * SPAN * 4 + n * 32))
                            for v in range(vectors):
                                slot = out[row][v]
                                b.store(simd.build_dot_bf16(b, b.load(slot), pair, value[v]), slot)
                for row in range(rows):
                    for v in range(vectors):
                        simd.store(b, place[row], b.load(out[row][v]), v * 64)

            wide = b.lshr(head_dim, i64(6))
            with cgutils.for_range(b, wide) as loop:
                columns(b.shl(loop.index, i64(6)), 4)
            done = b.shl(wide, i64(6))
            with cgutils.for_range(b, b.lshr(b.sub(head_dim, done), i64(4))) as loop:
                columns(b.add(done, b.shl(loop.index, i64(4))), 1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), lower

    return accumulate


_scores = simd.for_rows(_make_scores)
_softmax = simd.for_rows(_make_softmax)
_values = simd.for_rows(_make_values)


@kernel
def state_bytes(head_dim):  # type: ignore[no-untyped-def]
    return head_dim * 4 + 128


@kernel
def clear_state(state, head_dim):  # type: ignore[no-untyped-def]
    noinline()
    for column in range(0, head_dim + 16, 16):
        store_f32(state + column * 4, broadcast(0.0))
    store_f32(state + head_dim * 4 + 64, broadcast(NOTHING))


@kernel
def merge_state(total, part, head_dim):  # type: ignore[no-untyped-def]
    """Take the part of a later span into `total`."""
    noinline()
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
    noinline()
    total = broadcast(sum_lanes(load_f32(state + head_dim * 4)))
    for column in range(0, head_dim, 16):
        store_f32(out + column * 4, div(load_f32(state + column * 4), total))


@kernel
def attend_span(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size, head_dim,
                state, scratch):  # type: ignore[no-untyped-def]  # fmt: skip
    """The part of one span for `rows` query rows (token-major, `group` heads a token, the first token at `position`).

    `table` is the address of the sequence's int32 block numbers; `keys`, `values` are addresses of the layer's first
    block of the kv head; strides are in bytes. `state` gets the rows' parts. `scratch`: `SCRATCH_BYTES`.

    Scores, softmax and weighted values go over all rows one after another, so that a tile of keys or values is read
    into the first-level cache once for all rows, and the softmax of a whole span is worked out at once.
    """
    noinline()
    stride = state_bytes(head_dim)
    last = position + (rows - 1) // group
    begin = span * SPAN
    first_tile = 0
    if window > 0:
        first_tile = max(0, position + 1 - window - begin) // TILE
    end_tile = (min(last + 1 - begin, SPAN) + TILE - 1) // TILE
    limits = scratch + 2 * _ADDRESSES_BYTES
    scores = limits + UNIT_ROWS * 8
    for n in range(first_tile * 4, end_tile * 4):
        token = begin + 16 * n
        if token > last:
            token = begin + n // 4 * TILE  # any block that is ours; its lanes are masked
        block = np.int64(simd.read_i32(table + (token // block_size) * 4))
        inside = token % block_size
        simd.write_i64(scratch + 8 * n, keys + block * block_stride + inside * 4)
        simd.write_i64(scratch + _ADDRESSES_BYTES + 8 * n, values + block * block_stride + inside * head_dim * 2)
    for row in range(rows):
        clear_state(state + row * stride, head_dim)
        own = position + row // group
        first = 0
        if window > 0:
            first = max(0, own + 1 - window - begin)
        write_i32(limits + 8 * row, first)
        write_i32(limits + 8 * row + 4, own + 1 - begin)
    for tile in range(first_tile, end_tile):
        row = _first_row(position, group, begin + tile * TILE)
        while row < rows:
            count = min(4, rows - row)
            q, seen, s = queries + row * head_dim * 2, limits + row * 8, scores + row * SPAN * 4
            k = scratch + tile * 32
            _scores(count, q, k, block_size * 4, head_dim, seen, tile, s)
            row += 4
    row = _first_row(position, group, begin)
    while row < rows:
        count = min(4, rows - row)
        end = min(end_tile, (position + (row + count - 1) // group - begin) // TILE + 1)
        s, sums = scores + row * SPAN * 4, state + row * stride + head_dim * 4
        _softmax(count, s, first_tile, end, sums, stride)
        row += 4
    for tile in range(first_tile, end_tile):
        row = _first_row(position, group, begin + tile * TILE)
        v = scratch + _ADDRESSES_BYTES + tile * 32
        while row < rows:
            count = min(4, rows - row)
            w, s = scores + row * SPAN * 4 + tile * TILE * 2, state + row * stride
            _values(count, w, v, head_dim, s, stride)
            row += 4


@kernel
def _first_row(position, group, token):  # type: ignore[no-untyped-def]
    """The first row of the four-row groups that hold one that sees `token`: rows before it see none of it."""
    return max(0, token - position) * group // 4 * 4


@kernel
def store_key_value(key, value, head_dim, block_size, inside, key_block, value_block):  # type: ignore[no-untyped-def]
    """Write one token's key and value (float32 at `key`, `value`) to token number `inside` of a block."""
    noinline()
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
