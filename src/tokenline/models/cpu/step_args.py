"""What a compiled step is given, as numbers and addresses: sizes of the model, its weights, a batch, memory to work in.

The kernels read these tuples as they are; `model.py` makes them.
"""

from typing import NamedTuple

import numpy as np

from tokenline.models.cpu.attention import SCRATCH_BYTES, UNIT_ROWS
from tokenline.models.cpu.rows import quantised_bytes
from tokenline.models.cpu.simd import kernel, read_i64

OWN_ROWS = 64  # rows that a thread has memory for: the most in a step by outputs, or at once in the head
GATE_PAD = 192  # bytes, so that rows of gate and up do not all fall on the same lines of the cache
LAYER_PHASES = 9  # by outputs: preparing and computing 4 products, and attention
LAYER_NORMS = 4  # rows of `Weights.norms` that a layer has:
ATTENTION_NORM, ATTENTION_POST_NORM, MLP_NORM, MLP_POST_NORM = 0, 1, 2, 3


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
    query_factor: float  # log2(e) times the scale of attention scores
    embedding_scale: float
    qk_norm: int
    post_norms: int
    geglu: int  # the MLP's activation is GELU, else SiLU
    panel_product: int  # addresses of the two kernels, each compiled on its own: see `Kernels`
    attend_span: int


class Weights(NamedTuple):
    """Where the weights are; all addresses. A product has parts.

    Products are numbered: `QKV` ... of layer l is 4 l + ...; then the head, then the embedding.
    """

    parts: int  # int64 [parts, 5]: address, format, panels, first column, address of the biases
    first_part: int  # int64 [products + 1]
    norms: int  # float32 [LAYER_NORMS layers + 1, hidden_columns]: those of each layer, then the final one
    head_norms: int  # float32 [2 layers, head_dim]: query, key; ones where the model has none
    windows: int  # int64 [layers]: attend to this many latest tokens; 0: all
    factors: int  # float32 [products]: powers of two; what `pack.Packed.shift` says of the weights
    ropes: int  # int64 [layers]: which of the step's rotations; -1: none


class StepArgs(NamedTuple):
    """One batch of T rows; all but the counts and strides are addresses."""

    rows: int  # T
    ids: int  # int64 [T]
    positions: int  # int64 [T]
    blocks: int  # int64 [T]: the block that the row's key and value go to
    cos: int  # float32 [rotary embeddings, T, head_dim / 2]
    sin: int
    tables: int  # int32: the block tables one after another
    num_items: int
    num_last_items: int  # by rows: further ones, for the last layer: the wanted rows alone
    items: int  # int64 [all of them, 5]: first row, rows, block table, span or -1 for all, first row of sequence
    row_parts: int  # int64 [T + 1]: by outputs: the first part of the row in Memory.parts
    num_wanted: int
    wanted: int  # int64 [num_wanted]: rows whose logits are asked for, ascending
    by_outputs: int  # whether the step is split over outputs, else over rows: see `step.py`
    keys: int  # the pool
    values: int
    layer_stride: int  # bytes, both for keys and values
    block_stride: int
    head_stride: int
    block_size: int


class Memory(NamedTuple):
    """Addresses of working memory; contents mean nothing between steps but for `logits`."""

    x: int  # float32 [>= T, hidden_columns]: the residual stream; with post_norms, before a layer's attention
    middle: int  # the same, with post_norms only: the residual stream before a layer's MLP
    branch: int  # the same, with post_norms only: what attention or MLP gave, before its norm
    qkv: int  # float32 [>= T, qkv_columns]
    attention: int  # float32 [>= T, attention_columns]
    parts: int  # uint8 [parts, heads, state_bytes]: by outputs: attention by span
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
        max(OWN_ROWS * (2 * shape.gate_columns * 4 + GATE_PAD), shape.hidden_columns * 4),  # also a row of the head's
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
def load_i64(address, index):  # type: ignore[no-untyped-def]
    """Element `index` of an int64 array."""
    return read_i64(address + index * 8)
