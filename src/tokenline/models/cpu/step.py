"""One forward pass as one compiled function that a team of threads runs together.

Two ways to share the work, chosen by the number of rows; both call the same row, product and attention functions, so
the numbers are the same bits:

- *wide*, few rows (decoding): every product is split over its outputs, since each weight is read once for all rows.
  Small row work is done by every thread for itself, which is cheaper than waiting for another. Long contexts are
  split into spans.
- *tall*, many rows (prefilling): the rows are cut into tiles, and a thread takes a tile from one attention to the
  next, with all that lies between in its own cache. Attention is split over tiles of queries and kv heads.

A step is a fixed row of phases. Threads claim the tasks of a phase one by one from a counter in shared memory, and go
on when all its tasks are done. They wait for work, never for each other: a thread that the operating system has put
aside holds nobody up unless it sleeps in the middle of a task, and when it comes back it finds the phases closed.
Knows shapes, addresses and threads; nothing of files, requests or Python objects.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit, types

from tokenline.models.cpu.attention import (
    SCRATCH_BYTES,
    SPAN,
    UNIT_ROWS,
    attend_span,
    clear_state,
    finish_state,
    merge_state,
    state_bytes,
    store_key_value,
    store_query,
)
from tokenline.models.cpu.linear import GROUP, GROUP_BYTES, PANEL, Q8, panel_product
from tokenline.models.cpu.rows import (
    norm_head,
    norm_quantise_row,
    quantise_row,
    quantised_bytes,
    rotate_head,
    swiglu_quantise_row,
)
from tokenline.models.cpu.simd import (
    atomic_add,
    atomic_load,
    call_kernel,
    compare_and_set,
    cpu_features,
    keep_apart,
    kernel,
    load_f32,
    read_f16,
    read_i64,
    read_u8,
    spin_pause,
    store_f32,
    write_f32,
)

QKV, OUT, GATE_UP, DOWN = 0, 1, 2, 3  # the products of a layer, in order
OWN_ROWS = 64  # rows that a thread has memory for: at most as many in a wide step, or at once in the head
TILE_ROWS = 32  # rows of a tall tile: its gate and up stay in the second-level cache
GATE_PAD = 192  # bytes, so that rows of gate and up do not all fall on the same lines of the cache
REDUNDANT_ROWS = 2  # up to here, every thread quantises all rows itself
LAYER_PHASES = 9  # wide: preparing and computing 4 products, and attention
PREFETCH_ROWS = 16  # with more rows a panel is computed slower than it is read, so the next one is asked for
HEAD_PANELS = 8  # panels of the head that are claimed at once
Q8_GROUP_BYTES, Q4_GROUP_BYTES = GROUP_BYTES

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


class Shape(NamedTuple):
    """Sizes of the model. "Columns" are widths in memory: outputs padded to 64; "inputs" are padded to 32."""

    layers: int
    hidden: int
    hidden_columns: int
    hidden_inputs: int
    gate_columns: int  # the up projection starts here
    intermediate_inputs: int
    heads: int
    kv_heads: int
    head_dim: int
    key_column: int
    value_column: int
    qkv_columns: int
    attention_columns: int
    vocab: int
    vocab_columns: int
    eps: float
    query_factor: float  # log2(e) / sqrt(head_dim)
    qk_norm: int
    panel_product: int  # addresses of the two kernels, each compiled on its own: see `Kernels`
    attend_span: int


class Weights(NamedTuple):
    """Where the weights are; all addresses. A product has parts.

    Products are numbered: `QKV` ... of layer l is 4 l + ...; then the head, then the embedding.
    """

    parts: int  # int64 [parts, 5]: address, format, panels, first column, address of the biases
    first_part: int  # int64 [products + 1]
    norms: int  # float32 [2 layers + 1, hidden_columns]: attention, MLP, ..., final
    head_norms: int  # float32 [2 layers, head_dim]: query, key; ones where the model has none
    windows: int  # int64 [layers]: attend to this many latest tokens; 0: all


class Job(NamedTuple):
    """One batch of T rows; all but the counts and strides are addresses."""

    rows: int  # T
    ids: int  # int64 [T]
    positions: int  # int64 [T]
    blocks: int  # int64 [T]: the block that the row's key and value go to
    cos: int  # float32 [T, head_dim / 2]
    sin: int
    tables: int  # int32: the block tables one after another
    num_items: int
    items: int  # int64 [num_items, 5]: first row, rows, block table, span or -1 for all, first row of sequence
    row_parts: int  # int64 [T + 1]: wide: the first part of the row in Memory.parts
    num_wanted: int
    wanted: int  # int64 [num_wanted]: rows whose logits are asked for
    wide: int
    keys: int  # the pool
    values: int
    layer_stride: int  # bytes, both for keys and values
    block_stride: int
    head_stride: int
    block_size: int


class Memory(NamedTuple):
    """Addresses of working memory; contents mean nothing between steps but for `logits`."""

    x: int  # float32 [>= T, hidden_columns]: the residual stream
    qkv: int  # float32 [>= T, qkv_columns]
    attention: int  # float32 [>= T, attention_columns]
    parts: int  # uint8 [parts, heads, state_bytes]: wide: attention by span
    logits: int  # float32 [>= R, vocab_columns]
    sync: int  # int64 [phases, 2]: tasks claimed and tasks done, each on top of `epoch`
    epoch: int  # number of the step times 2**32: what a late thread finds of a later step looks like a closed phase
    own: int  # uint8 [threads, own_bytes]: each thread's; quantised rows at 0, then at these offsets:
    gate_at: int  # gate and up, float32
    queries_at: int
    states_at: int
    totals_at: int
    scratch_at: int
    own_bytes: int


def own_layout(shape: Shape) -> tuple[int, ...]:
    """Where things lie in a thread's own memory: the last six fields of `Memory`."""
    width = max(shape.hidden_inputs, shape.intermediate_inputs, shape.attention_columns)
    states = UNIT_ROWS * (shape.head_dim * 4 + 128)
    sizes = (
        OWN_ROWS * quantised_bytes(width),
        OWN_ROWS * (2 * shape.gate_columns * 4 + GATE_PAD),
        UNIT_ROWS * shape.head_dim * 2,
        states,
        states,
        SCRATCH_BYTES + shape.head_dim * 4,
    )
    return tuple(np.cumsum([-(-size // 64) * 64 for size in sizes]).tolist())


def sync_words(layers: int) -> int:
    """Words of `Memory.sync`."""
    return 2 * (LAYER_PHASES * (layers + 1) + 2)


@kernel
def word(address, index):  # type: ignore[no-untyped-def]
    """Element `index` of an int64 array."""
    return read_i64(address + index * 8)


@kernel
def _claim(memory, phase, tasks):  # type: ignore[no-untyped-def]
    """The number of a task of this phase that is now the caller's to do; -1: none is left."""
    address = memory.sync + phase * 16
    while True:
        value = atomic_load(address)
        task = value - memory.epoch
        if task >= tasks:
            return -1
        if compare_and_set(address, value, value + 1):
            return task


@kernel
def _finish(memory, phase, done, tasks):  # type: ignore[no-untyped-def]
    """Report `done` tasks of this phase as done, and wait until all are."""
    address = memory.sync + phase * 16 + 8
    if done > 0:
        atomic_add(address, done)
    spins = 0
    while atomic_load(address) - memory.epoch < tasks:
        spin_pause()
        spins += 1
        if spins % 1024 == 0:
            _sched_yield()  # somebody else may need this core to get done


@kernel
def _product(shape, weights, product, first, end, a, a_stride, rows, inputs, out, out_stride, accumulate):  # type: ignore[no-untyped-def]
    """Panels `first` to `end` of a product, for `rows` quantised rows."""
    keep_apart()
    groups = inputs // GROUP
    before = 0
    for part in range(word(weights.first_part, product), word(weights.first_part, product + 1)):
        address, kind, panels = (
            word(weights.parts, 5 * part),
            word(weights.parts, 5 * part + 1),
            word(weights.parts, 5 * part + 2),
        )
        column, bias = word(weights.parts, 5 * part + 3), word(weights.parts, 5 * part + 4)
        size = groups * (Q8_GROUP_BYTES if kind == Q8 else Q4_GROUP_BYTES)
        for panel in range(max(0, first - before), min(panels, end - before)):
            y = out + (column + panel * PANEL) * 4
            weight, biases = address + panel * size, bias + panel * PANEL * 4
            following = 0
            if rows > PREFETCH_ROWS:  # else a panel is computed as fast as it is read
                following = weight + size if panel + 1 < panels else word(weights.parts, 5 * (part + 1))
            call_kernel(
                shape.panel_product, kind, a, a_stride, rows, groups, weight, biases, y, out_stride, accumulate,
                following,
            )  # fmt: skip
        before += panels


@kernel
def _panels(weights, product):  # type: ignore[no-untyped-def]
    total = 0
    for part in range(word(weights.first_part, product), word(weights.first_part, product + 1)):
        total += word(weights.parts, 5 * part + 2)
    return total


@kernel
def _embed(shape, weights, token, out):  # type: ignore[no-untyped-def]
    """The embedding of a token, float32, taken out of its panel."""
    keep_apart()
    part = word(weights.first_part, shape.layers * 4 + 1)
    groups = shape.hidden_inputs // GROUP
    kind = word(weights.parts, 5 * part + 1)
    group_bytes = Q8_GROUP_BYTES if kind == Q8 else Q4_GROUP_BYTES
    output = token % PANEL
    panel = word(weights.parts, 5 * part) + (token // PANEL) * groups * group_bytes
    lane = (output // 16) * 64 + (output % 16) * 4
    for group in range(groups):
        at = panel + group * group_bytes
        scales = at + (2048 if kind == Q8 else 1024) + output * 2
        scale = read_f16(scales)
        for k in range(GROUP):
            if kind == Q8:
                value = scale * np.float32(read_u8(at + (k // 4) * 256 + lane + k % 4) - 128)
            else:
                byte = read_u8(at + ((k // 4) % 4) * 256 + lane + k % 4)
                nibble = (byte >> 4) if k >= 16 else (byte & 15)
                value = scale * np.float32(nibble) + read_f16(scales + 128)
            write_f32(out + (group * GROUP + k) * 4, value)
    for column in range(shape.hidden_inputs, shape.hidden_columns):
        write_f32(out + column * 4, np.float32(0.0))


@kernel
def _write_keys(shape, weights, job, memory, layer, row, head, scratch):  # type: ignore[no-untyped-def]
    """Norm, rotate and store the key and the value of one row and one kv head."""
    keep_apart()
    dim = shape.head_dim
    qkv = memory.qkv + row * shape.qkv_columns * 4
    key = qkv + (shape.key_column + head * dim) * 4
    if shape.qk_norm:
        norm_head(key, weights.head_norms + (2 * layer + 1) * dim * 4, dim, shape.eps, scratch)
        key = scratch
    half = row * dim * 2
    rotate_head(key, job.cos + half, job.sin + half, dim, 1.0, scratch)
    place = layer * job.layer_stride + word(job.blocks, row) * job.block_stride + head * job.head_stride
    store_key_value(
        scratch,
        qkv + (shape.value_column + head * dim) * 4,
        dim,
        job.block_size,
        word(job.positions, row) % job.block_size,
        job.keys + place,
        job.values + place,
    )


@kernel
def _load_queries(shape, weights, job, memory, layer, row, rows, head, group, queries, scratch):  # type: ignore[no-untyped-def]
    """Norm, rotate, scale and round the queries of `rows` tokens and the heads of one kv head; token-major."""
    keep_apart()
    dim = shape.head_dim
    for token in range(rows):
        half = (row + token) * dim * 2
        for k in range(group):
            query = memory.qkv + ((row + token) * shape.qkv_columns + (head * group + k) * dim) * 4
            if shape.qk_norm:
                norm_head(query, weights.head_norms + 2 * layer * dim * 4, dim, shape.eps, scratch)
                query = scratch
            rotate_head(query, job.cos + half, job.sin + half, dim, shape.query_factor, scratch)
            store_query(scratch, dim, queries + (token * group + k) * dim * 2)


@kernel
def _attend(shape, weights, job, memory, layer, item, head, own):  # type: ignore[no-untyped-def]
    """One item of attention for one kv head: one span into `parts` (wide), or all spans into `attention` (tall)."""
    keep_apart()
    queries, states = own + memory.queries_at, own + memory.states_at
    totals, scratch = own + memory.totals_at, own + memory.scratch_at
    group = shape.heads // shape.kv_heads
    dim = shape.head_dim
    stride = state_bytes(dim)
    row, rows, table_at, span = (
        word(job.items, 5 * item),
        word(job.items, 5 * item + 1),
        word(job.items, 5 * item + 2),
        word(job.items, 5 * item + 3),
    )
    position = word(job.positions, row)
    table = job.tables + table_at * 4
    keys = job.keys + layer * job.layer_stride + head * job.head_stride
    values = job.values + layer * job.layer_stride + head * job.head_stride
    window = word(weights.windows, layer)
    _load_queries(shape, weights, job, memory, layer, row, rows, head, group, queries, scratch + SCRATCH_BYTES)
    units = rows * group
    if span >= 0:
        # every item that sees a new key writes it, the same bits each, so that none has to wait for another
        for k in range(word(job.items, 5 * item + 4), row + rows):
            if word(job.positions, k) // SPAN == span:
                _write_keys(shape, weights, job, memory, layer, k, head, scratch + SCRATCH_BYTES)
        call_kernel(
            shape.attend_span, queries, units, group, position, window, span, table, keys, values,
            job.block_stride, job.block_size, dim, states, scratch,
        )  # fmt: skip
        for k in range(units):
            token = row + k // group
            if word(job.positions, token) // SPAN >= span:
                part = (word(job.row_parts, token) + span) * shape.heads + head * group + k % group
                target = memory.parts + part * stride
                for column in range(0, dim + 32, 16):
                    store_f32(target + column * 4, load_f32(states + k * stride + column * 4))
        return
    first = 0
    if window > 0:
        first = max(0, position + 1 - window) // SPAN
    call_kernel(
            shape.attend_span, queries, units, group, position, window, first, table, keys, values,
            job.block_stride, job.block_size, dim, totals, scratch,
        )  # fmt: skip
    for span in range(first + 1, (position + rows - 1) // SPAN + 1):
        call_kernel(
            shape.attend_span, queries, units, group, position, window, span, table, keys, values,
            job.block_stride, job.block_size, dim, states, scratch,
        )  # fmt: skip
        for k in range(units):
            merge_state(totals + k * stride, states + k * stride, dim)
    for k in range(units):
        out = (row + k // group) * shape.attention_columns + (head * group + k % group) * dim
        finish_state(totals + k * stride, dim, memory.attention + out * 4)


@kernel
def _merge_row(shape, weights, job, memory, layer, row, total):  # type: ignore[no-untyped-def]
    """Wide: merge the parts of one row, all heads, into `attention`."""
    keep_apart()
    dim = shape.head_dim
    stride = state_bytes(dim)
    first = 0
    if word(weights.windows, layer) > 0:
        first = max(0, word(job.positions, row) + 1 - word(weights.windows, layer)) // SPAN
    for head in range(shape.heads):
        clear_state(total, dim)
        for span in range(first, word(job.positions, row) // SPAN + 1):
            part = (word(job.row_parts, row) + span) * shape.heads + head
            merge_state(total, memory.parts + part * stride, dim)
        out = row * shape.attention_columns + head * dim
        finish_state(total, dim, memory.attention + out * 4)


@kernel
def _quantise_for(shape, weights, job, memory, layer, product, row, wide, gate, out, scratch):  # type: ignore[no-untyped-def]
    """Make the quantised input of `product` for one row; `gate` is the address of that row's gate and up."""
    x = memory.x + row * shape.hidden_columns * 4
    norms = weights.norms
    norm_bytes = shape.hidden_columns * 4
    if product == QKV:
        norm_quantise_row(x, norms + 2 * layer * norm_bytes, shape.hidden_inputs, shape.hidden, shape.eps, out)
    elif product == OUT:
        if wide:
            _merge_row(shape, weights, job, memory, layer, row, scratch)
        quantise_row(memory.attention + row * shape.attention_columns * 4, shape.attention_columns, out)
    elif product == GATE_UP:
        norm_quantise_row(x, norms + (2 * layer + 1) * norm_bytes, shape.hidden_inputs, shape.hidden, shape.eps, out)
    else:
        swiglu_quantise_row(gate, gate + shape.gate_columns * 4, shape.intermediate_inputs, out)


@kernel
def _inputs(shape, product):  # type: ignore[no-untyped-def]
    if product == OUT:
        return shape.attention_columns
    if product == DOWN:
        return shape.intermediate_inputs
    return shape.hidden_inputs


@kernel
def _wide_product(shape, weights, job, memory, thread, threads, layer, product, phase):  # type: ignore[no-untyped-def]
    """Quantise all rows and do shares of one product; phases `phase` and `phase + 1`."""
    keep_apart()
    own = memory.own + thread * memory.own_bytes
    shared = memory.own  # the first thread's
    inputs = _inputs(shape, product)
    a_stride = inputs + 12 * (inputs // GROUP)
    gate_stride = 2 * shape.gate_columns * 4 + GATE_PAD
    gate = shared + memory.gate_at
    together = job.rows > REDUNDANT_ROWS and threads > 1
    a = shared if together else own
    if together:
        done = 0
        row = _claim(memory, phase, job.rows)
        while row >= 0:
            _quantise_for(
                shape, weights, job, memory, layer, product, row, True, gate + row * gate_stride,
                a + row * a_stride, own + memory.totals_at,
            )  # fmt: skip
            done += 1
            row = _claim(memory, phase, job.rows)
        _finish(memory, phase, done, job.rows)
    if product == QKV:
        out, out_stride, accumulate = memory.qkv, shape.qkv_columns * 4, 0
    elif product == GATE_UP:
        out, out_stride, accumulate = gate, gate_stride, 0
    else:
        out, out_stride, accumulate = memory.x, shape.hidden_columns * 4, 1
    number = layer * 4 + product
    panels = _panels(weights, number)
    done = 0
    panel = _claim(memory, phase + 1, panels)
    while panel >= 0:
        if done == 0 and not together:
            for row in range(job.rows):
                _quantise_for(
                    shape, weights, job, memory, layer, product, row, True, gate + row * gate_stride,
                    a + row * a_stride, own + memory.totals_at,
                )  # fmt: skip
        _product(shape, weights, number, panel, panel + 1, a, a_stride, job.rows, inputs, out, out_stride, accumulate)
        done += 1
        panel = _claim(memory, phase + 1, panels)
    _finish(memory, phase + 1, done, panels)


@kernel
def _attention(shape, weights, job, memory, thread, layer, phase):  # type: ignore[no-untyped-def]
    """Shares of a layer's attention."""
    own = memory.own + thread * memory.own_bytes
    tasks = job.num_items * shape.kv_heads
    done = 0
    task = _claim(memory, phase, tasks)
    while task >= 0:
        turn = tasks - 1 - task  # the last ones see the most keys: begin with them
        _attend(shape, weights, job, memory, layer, turn // shape.kv_heads, turn % shape.kv_heads, own)
        done += 1
        task = _claim(memory, phase, tasks)
    _finish(memory, phase, done, tasks)


@kernel
def _wide(shape, weights, job, memory, thread, threads):  # type: ignore[no-untyped-def]
    """All layers, few rows."""
    keep_apart()
    for layer in range(shape.layers):
        phase = layer * LAYER_PHASES
        _wide_product(shape, weights, job, memory, thread, threads, layer, QKV, phase)
        _attention(shape, weights, job, memory, thread, layer, phase + 2)
        _wide_product(shape, weights, job, memory, thread, threads, layer, OUT, phase + 3)
        _wide_product(shape, weights, job, memory, thread, threads, layer, GATE_UP, phase + 5)
        _wide_product(shape, weights, job, memory, thread, threads, layer, DOWN, phase + 7)


@kernel
def _tall_product(shape, weights, job, memory, own, layer, product, first, end):  # type: ignore[no-untyped-def]
    """One whole product for the rows `first` to `end`."""
    keep_apart()
    gate = own + memory.gate_at
    rows = end - first
    inputs = _inputs(shape, product)
    a_stride = inputs + 12 * (inputs // GROUP)
    gate_stride = 2 * shape.gate_columns * 4 + GATE_PAD
    for row in range(rows):
        _quantise_for(
            shape, weights, job, memory, layer, product, first + row, False, gate + row * gate_stride,
            own + row * a_stride, own,
        )  # fmt: skip
    if product == QKV:
        out, out_stride, accumulate = memory.qkv + first * shape.qkv_columns * 4, shape.qkv_columns * 4, 0
    elif product == GATE_UP:
        out, out_stride, accumulate = gate, gate_stride, 0
    else:
        out = memory.x + first * shape.hidden_columns * 4
        out_stride, accumulate = shape.hidden_columns * 4, 1
    number = layer * 4 + product
    _product(
        shape, weights, number, 0, _panels(weights, number), own, a_stride, rows, inputs, out, out_stride, accumulate
    )  # fmt: skip


@kernel
def _tall(shape, weights, job, memory, thread, threads):  # type: ignore[no-untyped-def]
    """All layers, many rows."""
    keep_apart()
    own = memory.own + thread * memory.own_bytes
    pairs = (job.rows + 1) // 2  # tiles have an even number of rows: the tail of one is no slower than the rest
    tiles = min(pairs, threads * ((job.rows + threads * TILE_ROWS - 1) // (threads * TILE_ROWS)))
    for layer in range(shape.layers + 1):
        phase = layer * LAYER_PHASES
        done = 0
        tile = _claim(memory, phase, tiles)
        while tile >= 0:
            first = pairs * tile // tiles * 2
            end = min(job.rows, pairs * (tile + 1) // tiles * 2)
            if layer > 0:
                for product in (OUT, GATE_UP, DOWN):
                    _tall_product(shape, weights, job, memory, own, layer - 1, product, first, end)
            if layer < shape.layers:
                _tall_product(shape, weights, job, memory, own, layer, QKV, first, end)
                for row in range(first, end):
                    for head in range(shape.kv_heads):
                        _write_keys(
                            shape, weights, job, memory, layer, row, head, own + memory.scratch_at + SCRATCH_BYTES
                        )
            done += 1
            tile = _claim(memory, phase, tiles)
        _finish(memory, phase, done, tiles)
        if layer < shape.layers:
            _attention(shape, weights, job, memory, thread, layer, phase + 1)


@kernel
def _head(shape, weights, job, memory, thread, phase):  # type: ignore[no-untyped-def]
    """Final norm and logits of the rows that are asked for, in tiles; the outputs are shared out."""
    keep_apart()
    own = memory.own + thread * memory.own_bytes
    inputs = shape.hidden_inputs
    a_stride = inputs + 12 * (inputs // GROUP)
    number = shape.layers * 4
    panels = _panels(weights, number)
    final = weights.norms + 2 * shape.layers * shape.hidden_columns * 4
    chunks = (panels + HEAD_PANELS - 1) // HEAD_PANELS
    tasks = chunks * ((job.num_wanted + OWN_ROWS - 1) // OWN_ROWS)
    ready = -1
    done = 0
    task = _claim(memory, phase, tasks)
    while task >= 0:
        first = task // chunks * OWN_ROWS
        rows = min(OWN_ROWS, job.num_wanted - first)
        if ready != first:
            for k in range(rows):
                x = memory.x + word(job.wanted, first + k) * shape.hidden_columns * 4
                norm_quantise_row(x, final, inputs, shape.hidden, shape.eps, own + k * a_stride)
            ready = first
        panel = task % chunks * HEAD_PANELS
        end = min(panels, panel + HEAD_PANELS)
        out = memory.logits + first * shape.vocab_columns * 4
        _product(shape, weights, number, panel, end, own, a_stride, rows, inputs, out, shape.vocab_columns * 4, 0)
        done += 1
        task = _claim(memory, phase, tasks)
    _finish(memory, phase, done, tasks)


@kernel
def _forward(thread, threads, shape, weights, job, memory):  # type: ignore[no-untyped-def]
    start = (shape.layers + 1) * LAYER_PHASES  # phases of what comes before and after the layers
    done = 0
    row = _claim(memory, start, job.rows)
    while row >= 0:
        _embed(shape, weights, word(job.ids, row), memory.x + row * shape.hidden_columns * 4)
        done += 1
        row = _claim(memory, start, job.rows)
    _finish(memory, start, done, job.rows)
    if job.wide:
        _wide(shape, weights, job, memory, thread, threads)
    else:
        _tall(shape, weights, job, memory, thread, threads)
    _head(shape, weights, job, memory, thread, start + 1)


class Kernels(NamedTuple):
    """The compiled code. The two heavy kernels stand apart, so that LLVM works on each of them once."""

    forward: Any  # forward(thread, threads, shape, weights, job, memory): every thread of a team calls it alike
    panel_product: Any
    attend_span: Any


def compile_kernels() -> Kernels:
    """Compile what is not in Numba's cache on disk; `forward` waits for its first call."""
    # Numba's cache looks at this file and at what a function closes over: so each mentions the stamp of all the files
    stamp = _stamp()

    @cfunc(types.void(*[types.int64] * 11), cache=True, error_model="numpy")
    def product(kind, a, a_stride, rows, groups, panel, bias, out, out_stride, add, following):  # type: ignore[no-untyped-def]
        if len(stamp) > 0:
            panel_product(kind, a, a_stride, rows, groups, panel, bias, out, out_stride, add, following)

    @cfunc(types.void(*[types.int64] * 14), cache=True, error_model="numpy")
    def attend(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size, head_dim,
               state, scratch):  # type: ignore[no-untyped-def]  # fmt: skip
        if len(stamp) > 0:
            attend_span(queries, rows, group, position, window, span, table, keys, values, block_stride, block_size,
                        head_dim, state, scratch)  # fmt: skip

    @njit(nogil=True, error_model="numpy", cache=True)
    def forward(thread, threads, shape, weights, job, memory):  # type: ignore[no-untyped-def]
        if len(stamp) > 0:
            _forward(thread, threads, shape, weights, job, memory)

    return Kernels(forward, product, attend)


def _stamp() -> str:
    """Names the version of everything that the kernels are compiled from: their files, and the compiler."""
    digest = hashlib.sha256()
    for name in ("simd", "linear", "rows", "attention", "step"):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    digest.update(f"{version('numba')} {version('llvmlite')} {sorted(cpu_features())}".encode())
    return digest.hexdigest()
