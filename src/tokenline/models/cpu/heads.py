"""The attention of a step, around the kernel in `attention.py`: from rows of queries, keys and values to rows of
weighted values, for one kv head and the query heads that share it.
"""

from tokenline.models.cpu.attention import (
    SCRATCH_BYTES,
    SPAN,
    clear_state,
    finish_state,
    merge_state,
    state_bytes,
    store_key_value,
    store_query,
)
from tokenline.models.cpu.rows import norm_head, rotate_head, scale_head
from tokenline.models.cpu.simd import call_kernel, kernel, load_f32, noinline, store_f32
from tokenline.models.cpu.step_args import load_i64


@kernel
def _rotate(shape, weights, args, layer, row, x, factor, out):  # type: ignore[no-untyped-def]
    """The rotary embedding of a layer, if it has one, for one head of one row, times `factor`."""
    noinline()
    rope = load_i64(weights.ropes, layer)
    if rope < 0:
        scale_head(x, shape.head_dim, factor, out)
    else:
        half = (rope * args.rows + row) * shape.head_dim * 2
        rotate_head(x, args.cos + half, args.sin + half, shape.head_dim, factor, out)


@kernel
def write_keys(shape, weights, args, memory, layer, row, head, scratch):  # type: ignore[no-untyped-def]
    """Norm, rotate and store the key and the value of one row and one kv head."""
    noinline()
    dim = shape.head_dim
    qkv = memory.qkv + row * shape.qkv_columns * 4
    key = qkv + (shape.key_column + head * dim) * 4
    if shape.qk_norm:
        norm_head(key, weights.head_norms + (2 * layer + 1) * dim * 4, dim, shape.eps, scratch)
        key = scratch
    _rotate(shape, weights, args, layer, row, key, 1.0, scratch)
    place = layer * args.layer_stride + load_i64(args.blocks, row) * args.block_stride + head * args.head_stride
    store_key_value(
        scratch,
        qkv + (shape.value_column + head * dim) * 4,
        dim,
        args.block_size,
        load_i64(args.positions, row) % args.block_size,
        args.keys + place,
        args.values + place,
    )


@kernel
def _load_queries(shape, weights, args, memory, layer, row, rows, head, group, queries, scratch):  # type: ignore[no-untyped-def]
    """Norm, rotate, scale and round the queries of `rows` tokens and the heads of one kv head; token-major."""
    noinline()
    dim = shape.head_dim
    for token in range(rows):
        for k in range(group):
            query = memory.qkv + ((row + token) * shape.qkv_columns + (head * group + k) * dim) * 4
            if shape.qk_norm:
                norm_head(query, weights.head_norms + 2 * layer * dim * 4, dim, shape.eps, scratch)
                query = scratch
            _rotate(shape, weights, args, layer, row + token, query, shape.query_factor, scratch)
            store_query(scratch, dim, queries + (token * group + k) * dim * 2)


@kernel
def attend(shape, weights, args, memory, layer, item, head, own):  # type: ignore[no-untyped-def]
    """One item of attention for one kv head: one span into `parts` (by outputs), or all into `attention` (by rows)."""
    noinline()
    queries, states = own + memory.queries_at, own + memory.states_at
    totals, scratch = own + memory.totals_at, own + memory.scratch_at
    group = shape.heads // shape.kv_heads
    dim = shape.head_dim
    stride = state_bytes(dim)
    row, rows, table_at, span = (
        load_i64(args.items, 5 * item),
        load_i64(args.items, 5 * item + 1),
        load_i64(args.items, 5 * item + 2),
        load_i64(args.items, 5 * item + 3),
    )
    position = load_i64(args.positions, row)
    table = args.tables + table_at * 4
    keys = args.keys + layer * args.layer_stride + head * args.head_stride
    values = args.values + layer * args.layer_stride + head * args.head_stride
    window = load_i64(weights.windows, layer)
    if span >= 0 and window > 0 and (span + 1) * SPAN <= position + 1 - window:
        return  # behind the windows of all these rows
    _load_queries(shape, weights, args, memory, layer, row, rows, head, group, queries, scratch + SCRATCH_BYTES)
    units = rows * group
    if span >= 0:
        # every item that sees a new key writes it, the same bits each, so that none has to wait for another
        for k in range(load_i64(args.items, 5 * item + 4), row + rows):
            if load_i64(args.positions, k) // SPAN == span:
                write_keys(shape, weights, args, memory, layer, k, head, scratch + SCRATCH_BYTES)
        call_kernel(
            shape.attend_span, queries, units, group, position, window, span, table, keys, values,
            args.block_stride, args.block_size, dim, states, scratch,
        )  # fmt: skip
        for k in range(units):
            token = row + k // group
            if load_i64(args.positions, token) // SPAN >= span:
                part = (load_i64(args.row_parts, token) + span) * shape.heads + head * group + k % group
                target = memory.parts + part * stride
                for column in range(0, dim + 32, 16):
                    store_f32(target + column * 4, load_f32(states + k * stride + column * 4))
        return
    first = 0
    if window > 0:
        first = max(0, position + 1 - window) // SPAN
    call_kernel(
            shape.attend_span, queries, units, group, position, window, first, table, keys, values,
            args.block_stride, args.block_size, dim, totals, scratch,
        )  # fmt: skip
    for span in range(first + 1, (position + rows - 1) // SPAN + 1):
        call_kernel(
            shape.attend_span, queries, units, group, position, window, span, table, keys, values,
            args.block_stride, args.block_size, dim, states, scratch,
        )  # fmt: skip
        for k in range(units):
            merge_state(totals + k * stride, states + k * stride, dim)
    for k in range(units):
        out = (row + k // group) * shape.attention_columns + (head * group + k % group) * dim
        finish_state(totals + k * stride, dim, memory.attention + out * 4)


@kernel
def merge_row(shape, weights, args, memory, layer, row, total):  # type: ignore[no-untyped-def]
    """In a step by outputs: merge the parts of one row, all heads, into `attention`."""
    noinline()
    dim = shape.head_dim
    stride = state_bytes(dim)
    first = 0
    if load_i64(weights.windows, layer) > 0:
        first = max(0, load_i64(args.positions, row) + 1 - load_i64(weights.windows, layer)) // SPAN
    for head in range(shape.heads):
        clear_state(total, dim)
        for span in range(first, load_i64(args.positions, row) // SPAN + 1):
            part = (load_i64(args.row_parts, row) + span) * shape.heads + head
            merge_state(total, memory.parts + part * stride, dim)
        out = row * shape.attention_columns + head * dim
        finish_state(total, dim, memory.attention + out * 4)
