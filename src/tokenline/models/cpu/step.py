"""One forward pass as one compiled function that all threads of a pool run together.

There are two ways to split the work, chosen by the number of rows. Both call the same row, product and attention
functions, so the results are the same bits:

- *by outputs*, for few rows (decode): the outputs of every product are divided among the threads, since each weight is
  read once for all rows. Small work on rows is repeated by every thread, which is cheaper than waiting for another.
  Long contexts are split into spans.
- *by rows*, for many rows (prefill): the rows are cut into tiles, and a thread takes a tile from one attention to the
  next, with everything in between in its own cache. Attention is split over tiles of queries and kv heads.

Both are sequences of phases, see `claims.py`. Knows shapes, addresses and threads; nothing of files, requests or Python
objects.
"""

import numpy as np

from tokenline.models.cpu.attention import SCRATCH_BYTES
from tokenline.models.cpu.claims import claim, finish
from tokenline.models.cpu.heads import attend, merge_row, write_keys
from tokenline.models.cpu.linear import GROUP, GROUP_BYTES, PANEL, Q8
from tokenline.models.cpu.rows import (
    geglu_quantise_row,
    norm_add_row,
    norm_quantise_row,
    quantise_row,
    swiglu_quantise_row,
)
from tokenline.models.cpu.simd import (
    call_kernel,
    kernel,
    load_f32,
    noinline,
    read_f16,
    read_f32,
    read_u8,
    store_f32,
    write_f32,
)
from tokenline.models.cpu.step_args import (
    ATTENTION_NORM,
    ATTENTION_POST_NORM,
    GATE_PAD,
    LAYER_NORMS,
    LAYER_PHASES,
    MLP_NORM,
    MLP_POST_NORM,
    OWN_ROWS,
    load_i64,
)

QKV, OUT, GATE_UP, DOWN = 0, 1, 2, 3  # the products of a layer, in order
TILE_ROWS = 32  # rows of a tile in a step by rows: its gate and up stay in the second-level cache
REDUNDANT_ROWS = 2  # up to here, every thread quantises all rows itself
PREFETCH_ROWS = 16  # with more rows a panel is computed slower than it is read, so the next one is prefetched
HEAD_PANELS = 8  # panels of the head that are claimed at once
Q8_GROUP_BYTES, Q4_GROUP_BYTES = GROUP_BYTES


@kernel
def _product(shape, weights, product, first, end, a, a_stride, rows, inputs, out, out_stride, accumulate):  # type: ignore[no-untyped-def]
    """Panels `first` to `end` of a product, for `rows` quantised rows."""
    noinline()
    groups = inputs // GROUP
    before = 0
    for part in range(load_i64(weights.first_part, product), load_i64(weights.first_part, product + 1)):
        address, kind, panels = (
            load_i64(weights.parts, 5 * part),
            load_i64(weights.parts, 5 * part + 1),
            load_i64(weights.parts, 5 * part + 2),
        )
        column, bias = load_i64(weights.parts, 5 * part + 3), load_i64(weights.parts, 5 * part + 4)
        size = groups * (Q8_GROUP_BYTES if kind == Q8 else Q4_GROUP_BYTES)
        for panel in range(max(0, first - before), min(panels, end - before)):
            y = out + (column + panel * PANEL) * 4
            weight, biases = address + panel * size, bias + panel * PANEL * 4
            prefetch = 0
            if rows > PREFETCH_ROWS:  # else a panel is computed as fast as it is read
                prefetch = weight + size if panel + 1 < panels else load_i64(weights.parts, 5 * (part + 1))
            call_kernel(
                shape.panel_product, kind, a, a_stride, rows, groups, weight, biases, y, out_stride, accumulate,
                prefetch,
            )  # fmt: skip
        before += panels


@kernel
def _panels(weights, product):  # type: ignore[no-untyped-def]
    total = 0
    for part in range(load_i64(weights.first_part, product), load_i64(weights.first_part, product + 1)):
        total += load_i64(weights.parts, 5 * part + 2)
    return total


@kernel
def _embed(shape, weights, token, out):  # type: ignore[no-untyped-def]
    """The scaled embedding of a token, float32, taken out of its panel."""
    noinline()
    part = load_i64(weights.first_part, shape.layers * 4 + 1)
    groups = shape.hidden_inputs // GROUP
    kind = load_i64(weights.parts, 5 * part + 1)
    group_bytes = Q8_GROUP_BYTES if kind == Q8 else Q4_GROUP_BYTES
    output = token % PANEL
    panel = load_i64(weights.parts, 5 * part) + (token // PANEL) * groups * group_bytes
    lane = (output // 16) * 64 + (output % 16) * 4
    by = np.float32(shape.embedding_scale) * _factor(weights, shape.layers * 4 + 1)
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
            write_f32(out + (group * GROUP + k) * 4, value * by)
    for column in range(shape.hidden_inputs, shape.hidden_columns):
        write_f32(out + column * 4, np.float32(0.0))


@kernel
def _quantise_for(shape, weights, args, memory, layer, product, row, by_outputs, gate, out, scratch):  # type: ignore[no-untyped-def]
    """Make the quantised input of `product` for one row; `gate` is the address of that row's gate and up.

    With post_norms, what attention or MLP gave is added to the residual stream here, from one of its two buffers into
    the other: so threads that do the same row at once read what none of them writes, and write the same bits.
    """
    at = row * shape.hidden_columns * 4
    x, width, size, eps = memory.x + at, shape.hidden_inputs, shape.hidden, shape.eps
    factor = _factor(weights, layer * 4 + product)
    if product == QKV:
        if shape.post_norms and layer > 0:
            _add_branch(shape, weights, memory, layer - 1, MLP_POST_NORM, row, memory.middle, x)
        norm_quantise_row(x, _norm(shape, weights, layer, ATTENTION_NORM), width, size, eps, out, factor)
    elif product == OUT:
        if by_outputs:
            merge_row(shape, weights, args, memory, layer, row, scratch)
        quantise_row(memory.attention + row * shape.attention_columns * 4, shape.attention_columns, out, factor)
    elif product == GATE_UP:
        if shape.post_norms:
            _add_branch(shape, weights, memory, layer, ATTENTION_POST_NORM, row, memory.x, memory.middle + at)
            x = memory.middle + at
        norm_quantise_row(x, _norm(shape, weights, layer, MLP_NORM), width, size, eps, out, factor)
    elif shape.geglu:
        geglu_quantise_row(gate, gate + shape.gate_columns * 4, shape.intermediate_inputs, out, factor)
    else:
        swiglu_quantise_row(gate, gate + shape.gate_columns * 4, shape.intermediate_inputs, out, factor)


@kernel
def _factor(weights, product):  # type: ignore[no-untyped-def]
    """What the input of a product is multiplied by; the weights are divided by it."""
    return read_f32(weights.factors + product * 4)


@kernel
def _norm(shape, weights, layer, norm):  # type: ignore[no-untyped-def]
    """Address of the weights of one of a layer's norms."""
    return weights.norms + (layer * LAYER_NORMS + norm) * shape.hidden_columns * 4


@kernel
def _add_branch(shape, weights, memory, layer, norm, row, residual, out):  # type: ignore[no-untyped-def]
    """The row of the residual stream at `residual`, plus what attention or MLP gave, normed, to `out`."""
    at = row * shape.hidden_columns * 4
    weight = _norm(shape, weights, layer, norm)
    norm_add_row(residual + at, memory.branch + at, weight, shape.hidden_columns, shape.hidden, shape.eps, out)


@kernel
def _branch_output(shape, memory):  # type: ignore[no-untyped-def]
    """Where the outputs of attention and MLP go: (address, whether they are added to what is there)."""
    if shape.post_norms:
        return memory.branch, 0
    return memory.x, 1


@kernel
def _inputs(shape, product):  # type: ignore[no-untyped-def]
    if product == OUT:
        return shape.attention_columns
    if product == DOWN:
        return shape.intermediate_inputs
    return shape.hidden_inputs


@kernel
def _product_by_outputs(shape, weights, args, memory, thread, threads, layer, product, phase):  # type: ignore[no-untyped-def]
    """Quantise all rows and do shares of one product; phases `phase` and `phase + 1`."""
    noinline()
    own = memory.own + thread * memory.own_bytes
    shared = memory.own  # the first thread's
    inputs = _inputs(shape, product)
    a_stride = inputs + 12 * (inputs // GROUP)
    gate_stride = 2 * shape.gate_columns * 4 + GATE_PAD
    gate = shared + memory.gate_at
    together = args.rows > REDUNDANT_ROWS and threads > 1
    a = shared if together else own
    if together:
        done = 0
        row = claim(memory, phase, args.rows)
        while row >= 0:
            _quantise_for(
                shape, weights, args, memory, layer, product, row, True, gate + row * gate_stride,
                a + row * a_stride, own + memory.totals_at,
            )  # fmt: skip
            done += 1
            row = claim(memory, phase, args.rows)
        finish(memory, phase, done, args.rows)
    if product == QKV:
        out, out_stride, accumulate = memory.qkv, shape.qkv_columns * 4, 0
    elif product == GATE_UP:
        out, out_stride, accumulate = gate, gate_stride, 0
    else:
        out, accumulate = _branch_output(shape, memory)
        out_stride = shape.hidden_columns * 4
    number = layer * 4 + product
    panels = _panels(weights, number)
    done = 0
    panel = claim(memory, phase + 1, panels)
    while panel >= 0:
        if done == 0 and not together:
            for row in range(args.rows):
                _quantise_for(
                    shape, weights, args, memory, layer, product, row, True, gate + row * gate_stride,
                    a + row * a_stride, own + memory.totals_at,
                )  # fmt: skip
        _product(shape, weights, number, panel, panel + 1, a, a_stride, args.rows, inputs, out, out_stride, accumulate)
        done += 1
        panel = claim(memory, phase + 1, panels)
    finish(memory, phase + 1, done, panels)


@kernel
def _attention(shape, weights, args, memory, thread, layer, phase, first, items):  # type: ignore[no-untyped-def]
    """Shares of a layer's attention: `items` of them from `first` on."""
    own = memory.own + thread * memory.own_bytes
    tasks = items * shape.kv_heads
    done = 0
    task = claim(memory, phase, tasks)
    while task >= 0:
        turn = tasks - 1 - task  # the last ones see the most keys: begin with them
        attend(shape, weights, args, memory, layer, first + turn // shape.kv_heads, turn % shape.kv_heads, own)
        done += 1
        task = claim(memory, phase, tasks)
    finish(memory, phase, done, tasks)


@kernel
def _layers_by_outputs(shape, weights, args, memory, thread, threads):  # type: ignore[no-untyped-def]
    """All layers, few rows."""
    noinline()
    for layer in range(shape.layers):
        phase = layer * LAYER_PHASES
        _product_by_outputs(shape, weights, args, memory, thread, threads, layer, QKV, phase)
        _attention(shape, weights, args, memory, thread, layer, phase + 2, 0, args.num_items)
        _product_by_outputs(shape, weights, args, memory, thread, threads, layer, OUT, phase + 3)
        _product_by_outputs(shape, weights, args, memory, thread, threads, layer, GATE_UP, phase + 5)
        _product_by_outputs(shape, weights, args, memory, thread, threads, layer, DOWN, phase + 7)


@kernel
def _product_by_rows(shape, weights, args, memory, own, layer, product, first, end):  # type: ignore[no-untyped-def]
    """One whole product for the rows `first` to `end`."""
    noinline()
    gate = own + memory.gate_at
    rows = end - first
    inputs = _inputs(shape, product)
    a_stride = inputs + 12 * (inputs // GROUP)
    gate_stride = 2 * shape.gate_columns * 4 + GATE_PAD
    for row in range(rows):
        _quantise_for(
            shape, weights, args, memory, layer, product, first + row, False, gate + row * gate_stride,
            own + row * a_stride, own,
        )  # fmt: skip
    if product == QKV:
        out, out_stride, accumulate = memory.qkv + first * shape.qkv_columns * 4, shape.qkv_columns * 4, 0
    elif product == GATE_UP:
        out, out_stride, accumulate = gate, gate_stride, 0
    else:
        out, accumulate = _branch_output(shape, memory)
        out_stride = shape.hidden_columns * 4
        out += first * out_stride
    number = layer * 4 + product
    _product(
        shape, weights, number, 0, _panels(weights, number), own, a_stride, rows, inputs, out, out_stride, accumulate
    )  # fmt: skip


@kernel
def _gather_wanted(shape, args, memory, phase):  # type: ignore[no-untyped-def]
    """Move the rows whose logits are asked for to the front: nothing after the last attention needs the others."""
    done = 0
    if claim(memory, phase, 1) >= 0:
        for k in range(args.num_wanted):
            row = load_i64(args.wanted, k)  # not before k: none is overwritten that is still to be moved
            _move_row(memory.x, shape.hidden_columns * 4, row, k)
            _move_row(memory.attention, shape.attention_columns * 4, row, k)
        done = 1
    finish(memory, phase, done, 1)


@kernel
def _move_row(rows, row_bytes, source, target):  # type: ignore[no-untyped-def]
    for at in range(0, row_bytes, 64):
        store_f32(rows + target * row_bytes + at, load_f32(rows + source * row_bytes + at))


@kernel
def _layers_by_rows(shape, weights, args, memory, thread, threads):  # type: ignore[no-untyped-def]
    """All layers, many rows. What follows the last layer's keys and values is done for the wanted rows alone."""
    noinline()
    own = memory.own + thread * memory.own_bytes
    rows = args.rows
    for layer in range(shape.layers + 1):
        phase = layer * LAYER_PHASES
        if layer == shape.layers:
            rows = args.num_wanted
            _gather_wanted(shape, args, memory, phase + 2)
        pairs = (rows + 1) // 2  # tiles have an even number of rows: the tail of one is no slower than the rest
        tiles = min(pairs, threads * ((rows + threads * TILE_ROWS - 1) // (threads * TILE_ROWS)))
        done = 0
        tile = claim(memory, phase, tiles)
        while tile >= 0:
            first = pairs * tile // tiles * 2
            end = min(rows, pairs * (tile + 1) // tiles * 2)
            if layer > 0:
                for product in (OUT, GATE_UP, DOWN):
                    _product_by_rows(shape, weights, args, memory, own, layer - 1, product, first, end)
            if layer < shape.layers:
                _product_by_rows(shape, weights, args, memory, own, layer, QKV, first, end)
                for row in range(first, end):
                    for head in range(shape.kv_heads):
                        write_keys(
                            shape, weights, args, memory, layer, row, head, own + memory.scratch_at + SCRATCH_BYTES
                        )
            done += 1
            tile = claim(memory, phase, tiles)
        finish(memory, phase, done, tiles)
        if layer < shape.layers:
            last = layer == shape.layers - 1
            first_item, items = (args.num_items, args.num_last_items) if last else (0, args.num_items)
            _attention(shape, weights, args, memory, thread, layer, phase + 1, first_item, items)


@kernel
def _head(shape, weights, args, memory, thread, phase):  # type: ignore[no-untyped-def]
    """Final norm and logits of the rows that are asked for, in tiles; the outputs are shared out."""
    noinline()
    own = memory.own + thread * memory.own_bytes
    inputs = shape.hidden_inputs
    a_stride = inputs + 12 * (inputs // GROUP)
    number = shape.layers * 4
    panels = _panels(weights, number)
    final = _norm(shape, weights, shape.layers, 0)
    sums = own + memory.gate_at
    chunks = (panels + HEAD_PANELS - 1) // HEAD_PANELS
    tasks = chunks * ((args.num_wanted + OWN_ROWS - 1) // OWN_ROWS)
    ready = -1
    done = 0
    task = claim(memory, phase, tasks)
    while task >= 0:
        first = task // chunks * OWN_ROWS
        rows = min(OWN_ROWS, args.num_wanted - first)
        if ready != first:
            for k in range(rows):
                row = load_i64(args.wanted, first + k) if args.by_outputs else first + k
                x = memory.x + row * shape.hidden_columns * 4
                if shape.post_norms:
                    _add_branch(shape, weights, memory, shape.layers - 1, MLP_POST_NORM, row, memory.middle, sums)
                    x = sums
                norm_quantise_row(
                    x, final, inputs, shape.hidden, shape.eps, own + k * a_stride, _factor(weights, number)
                )
            ready = first
        panel = task % chunks * HEAD_PANELS
        end = min(panels, panel + HEAD_PANELS)
        out = memory.logits + first * shape.vocab_columns * 4
        _product(shape, weights, number, panel, end, own, a_stride, rows, inputs, out, shape.vocab_columns * 4, 0)
        done += 1
        task = claim(memory, phase, tasks)
    finish(memory, phase, done, tasks)


@kernel
def forward_step(thread, threads, shape, weights, args, memory):  # type: ignore[no-untyped-def]
    start = (shape.layers + 1) * LAYER_PHASES  # phases of what comes before and after the layers
    done = 0
    row = claim(memory, start, args.rows)
    while row >= 0:
        _embed(shape, weights, load_i64(args.ids, row), memory.x + row * shape.hidden_columns * 4)
        done += 1
        row = claim(memory, start, args.rows)
    finish(memory, start, done, args.rows)
    if args.by_outputs:
        _layers_by_outputs(shape, weights, args, memory, thread, threads)
    else:
        _layers_by_rows(shape, weights, args, memory, thread, threads)
    _head(shape, weights, args, memory, thread, start + 1)
