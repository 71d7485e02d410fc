"""The CPU model: weights packed for the kernels, and each batch turned into the arguments of the compiled step."""

from concurrent.futures import Executor, ThreadPoolExecutor
from importlib.metadata import version

import numpy as np

from tokenline.models.arithmetic import arithmetic_name
from tokenline.models.base import Backend, Batch, BatchSequence, KVPool
from tokenline.models.config import Activation, Feature, ModelConfig
from tokenline.models.cpu.arena import Arena
from tokenline.models.cpu.attention import SPAN, UNIT_ROWS
from tokenline.models.cpu.compile import Kernels, compile_kernels
from tokenline.models.cpu.linear import GROUP, PANEL, Q4, Q8
from tokenline.models.cpu.logits import NumpyLogits
from tokenline.models.cpu.pack import Packed, pack_tensor, pack_together
from tokenline.models.cpu.pool import CPUKVPool
from tokenline.models.cpu.rows import LOG2_E
from tokenline.models.cpu.simd import cpu_features
from tokenline.models.cpu.step_args import (
    ATTENTION_NORM,
    ATTENTION_POST_NORM,
    LAYER_NORMS,
    MLP_NORM,
    MLP_POST_NORM,
    OWN_ROWS,
    Memory,
    Shape,
    StepArgs,
    Weights,
    own_layout,
    sync_words,
)
from tokenline.models.cpu.thread_pool import ThreadPool
from tokenline.models.errors import ModelError
from tokenline.models.memory import available_memory
from tokenline.models.threads import usable_threads
from tokenline.models.weights import EMBEDDING, FINAL_NORM, HEAD, Checkpoint

QUERY_TILE = 16  # tokens whose queries attend together
FEW_ROWS_PER_THREAD = 16  # with fewer rows per thread, a step is split by outputs, else by rows


def _wrong_shape(config: ModelConfig) -> str | None:
    if config.head_dim % 16:
        return f"a head_dim of {config.head_dim}, which is not a multiple of 16"
    if config.num_heads // config.num_kv_heads > UNIT_ROWS // 4:
        return f"{config.num_heads} heads on {config.num_kv_heads} kv heads"
    return None


CPU_KERNELS = Backend(
    "the CPU kernels",
    frozenset(
        {
            Feature.SILU,
            Feature.GELU_TANH,
            Feature.ROPE,
            Feature.NO_ROPE,
            Feature.SEVERAL_ROPES,
            Feature.SLIDING_WINDOW,
            Feature.BIASES,
            Feature.QK_NORM,
            Feature.POST_NORMS,
            Feature.EMBEDDING_SCALE,
            Feature.QUERY_SCALE,
        }
    ),
    _wrong_shape,
)


def cpu_arithmetic() -> str:
    """What the kernels' results depend on: bfloat16 instructions round otherwise than their replacement, for one."""
    return arithmetic_name(
        sorted(cpu_features()), *(f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy"))
    )


class CPUModel:
    """See `models.base.Model`. Activations are int8 with a scale per 32 values, keys and values bfloat16."""

    def __init__(self, checkpoint: Checkpoint, threads: int | None = None) -> None:
        self.config = checkpoint.config
        self.device = "cpu"
        self._threads = ThreadPool(threads or usable_threads())
        self._kernels = compile_kernels()
        self._shape = _shape(self.config, self._kernels)
        ropes = self.config.ropes
        self._frequencies = np.array([rope.frequencies(self.config.head_dim) for rope in ropes], np.float32)
        self._kept: list[np.ndarray] = []  # what the addresses in `_weights` point to
        self._arena = Arena()
        self._kinds: set[int] = set()  # of the matrices
        with ThreadPoolExecutor(usable_threads()) as packing:
            self._weights = self._load(checkpoint, packing)
        self.weight_bytes = sum(array.nbytes for array in self._kept)
        kept = "/".join(bits for kind, bits in ((Q4, "4"), (Q8, "8")) if kind in self._kinds)
        self.precision = f"{kept}-bit weights, int8 arithmetic"
        self.arithmetic = cpu_arithmetic()
        self._workspace = _Workspace(self._shape, self._threads.size)

    def kv_bytes_per_token(self) -> int:
        return self.config.num_layers * self.config.num_kv_heads * self.config.head_dim * 2 * 2

    def new_kv_pool(self, num_blocks: int, block_size: int) -> CPUKVPool:
        config = self.config
        return CPUKVPool(config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim)

    def free_memory(self) -> int:
        return available_memory()

    def forward(self, batch: Batch, kv: KVPool) -> NumpyLogits:
        if not isinstance(kv, CPUKVPool):
            raise ModelError(f"a CPU model needs its own kind of pool, not {type(kv).__name__}")
        if len(batch.ids) and (batch.ids.min() < 0 or batch.ids.max() >= self.config.vocab_size):
            raise ValueError(f"a token id is outside the vocabulary of {self.config.vocab_size}")
        args, arrays = self._step_args(batch, kv)  # `arrays` holds what their addresses point to
        wanted = len(batch.logit_rows)
        memory = self._workspace.prepared(rows=args.rows, parts=int(arrays["row_parts"][-1]), logits=wanted)
        with kv.prefaulter.step(int(arrays["tables"].max()) + 1):
            self._threads.run(self._kernels.forward, self._shape, self._weights, args, memory)
        return NumpyLogits(self._workspace.logits[:wanted, : self.config.vocab_size])

    def _step_args(self, batch: Batch, kv: CPUKVPool) -> tuple[StepArgs, dict[str, np.ndarray]]:
        """The batch as the kernels want it."""
        config = self.config
        positions = batch.positions.astype(np.int64)
        by_outputs = len(batch.ids) < min(OWN_ROWS, FEW_ROWS_PER_THREAD * self._threads.size)
        tables, starts = [], []
        start = 0
        for sequence in batch.sequences:
            used = -(-(sequence.context + sequence.length) // kv.block_size)
            tables.append(sequence.block_table[:used])
            starts.append(start)
            start += used
        table = np.concatenate(tables).astype(np.int32, copy=False)
        lengths = np.array([sequence.length for sequence in batch.sequences])
        row_starts = np.repeat(np.array(starts, np.int64), lengths)
        sequence_first = np.repeat(np.array([s.start for s in batch.sequences], np.int64), lengths)
        blocks = table[row_starts + positions // kv.block_size].astype(np.int64)
        tile = max(1, min(QUERY_TILE, UNIT_ROWS // (config.num_heads // config.num_kv_heads)))
        first = np.array([row for s in batch.sequences for row in range(s.start, s.start + s.length, tile)], np.int64)
        end = np.array(
            [min(row + tile, s.start + s.length) for s in batch.sequences for row in _tiles(s, tile)], np.int64
        )
        spans = positions // SPAN + 1
        row_parts = np.zeros(len(positions) + 1, np.int64)
        wanted = batch.logit_rows.astype(np.int64)
        num_last_items = 0
        if by_outputs:
            row_parts[1:] = np.cumsum(spans)
            counts = spans[end - 1]
            span = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            first, end = np.repeat(first, counts), np.repeat(end, counts)
        else:
            wanted_from, wanted_to = np.searchsorted(wanted, first), np.searchsorted(wanted, end)
            needed = wanted_from < wanted_to
            first = np.append(first, wanted[wanted_from[needed]])
            end = np.append(end, wanted[wanted_to[needed] - 1] + 1)
            num_last_items = int(needed.sum())
            span = np.full(len(first), -1, np.int64)
        items = np.stack((first, end - first, row_starts[first], span, sequence_first[first]), axis=1)
        angles = batch.positions.astype(np.float32)[:, None] * self._frequencies[:, None]
        arrays = {
            "ids": batch.ids.astype(np.int64),
            "positions": positions,
            "blocks": blocks,
            "cos": np.cos(angles),
            "sin": np.sin(angles),
            "tables": table,
            "items": items,
            "row_parts": row_parts,
            "wanted": wanted,
        }
        args = StepArgs(
            rows=len(positions),
            num_items=len(items) - num_last_items,
            num_last_items=num_last_items,
            num_wanted=len(wanted),
            by_outputs=int(by_outputs),
            keys=kv.keys.ctypes.data,
            values=kv.values.ctypes.data,
            layer_stride=kv.keys.strides[0],
            block_stride=kv.keys.strides[1],
            head_stride=kv.keys.strides[2],
            block_size=kv.block_size,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        return args, arrays

    def _load(self, checkpoint: Checkpoint, packing: Executor) -> Weights:
        config, shape = self.config, self._shape
        zeros = np.zeros(max(shape.qkv_columns, 2 * shape.gate_columns, shape.vocab_columns), np.float32)
        self._kept.append(zeros)
        parts: list[tuple[int, int, int, int, int]] = []
        first_part = [0]
        factors = np.ones(4 * config.num_layers + 2, np.float32)  # of the layers' products, the head and the embedding

        def product(names: list[str], biased: bool = False) -> None:
            column = 0
            together = pack_together(checkpoint, [name + ".weight" for name in names], packing)
            factors[len(first_part) - 1] = 2.0 ** -together[0].shift
            for name, packed in zip(names, together, strict=True):
                bias = zeros
                if biased:
                    bias = np.zeros(packed.panels * PANEL, np.float32)
                    bias[: packed.rows] = checkpoint.read(name + ".bias")
                    self._kept.append(bias)
                parts.append(self._part(packed, column, bias))
                column += packed.panels * PANEL
            first_part.append(len(parts))

        norms = np.zeros((LAYER_NORMS * config.num_layers + 1, shape.hidden_columns), np.float32)
        head_norms = np.ones((2 * config.num_layers, config.head_dim), np.float32)
        packed = pack_tensor(checkpoint, EMBEDDING, packing)
        embedding = self._part(packed, 0, zeros)
        factors[-2:] = 2.0**-packed.shift
        for layer in range(config.num_layers):
            name = f"layers.{layer}."

            def norm(number: int, role: str, first: int = layer * LAYER_NORMS, name: str = name) -> None:
                norms[first + number, : config.hidden_size] = checkpoint.read(f"{name}{role}.weight")

            norm(ATTENTION_NORM, "attention_norm")
            product([name + part for part in "qkv"], config.qkv_bias)
            if config.qk_norm:
                for k, part in enumerate("qk"):
                    head_norms[2 * layer + k] = checkpoint.read(f"{name}{part}_norm.weight")
            product([name + "o"], config.o_bias)
            if config.post_norms:
                norm(ATTENTION_POST_NORM, "attention_post_norm")
            norm(MLP_NORM, "mlp_norm")
            product([name + "gate", name + "up"], config.mlp_bias)
            product([name + "down"], config.mlp_bias)
            if config.post_norms:
                norm(MLP_POST_NORM, "mlp_post_norm")
        norms[-1, : config.hidden_size] = checkpoint.read(FINAL_NORM)
        head = embedding
        if not config.tied_head:
            packed = pack_tensor(checkpoint, HEAD, packing)
            head = self._part(packed, 0, zeros)
            factors[-2] = 2.0**-packed.shift
        for part in (head, embedding):
            parts.append(part)
            first_part.append(len(parts))
        self._kept += [norms, head_norms, factors]
        windows = [layer.window or 0 for layer in config.layers]
        ropes = [-1 if layer.rope is None else config.ropes.index(layer.rope) for layer in config.layers]
        tables = [np.array(table, np.int64) for table in (parts, first_part, windows, ropes)]
        self._kept += tables
        return Weights(
            parts=tables[0].ctypes.data,
            first_part=tables[1].ctypes.data,
            norms=norms.ctypes.data,
            head_norms=head_norms.ctypes.data,
            factors=factors.ctypes.data,
            windows=tables[2].ctypes.data,
            ropes=tables[3].ctypes.data,
        )

    def _part(self, packed: Packed, column: int, bias: np.ndarray) -> tuple[int, int, int, int, int]:
        data = self._arena.put(packed.data)
        self._kept.append(data)
        self._kinds.add(packed.kind)
        return data.ctypes.data, packed.kind, packed.panels, column, bias.ctypes.data


class _Workspace:
    """The kernels' working memory, grown as batches ask for it."""

    def __init__(self, shape: Shape, threads: int) -> None:
        self._shape = shape
        self._layout = own_layout(shape)
        self._own = np.zeros((threads, self._layout[-1]), np.uint8)
        self._sync = np.zeros(sync_words(shape.layers), np.int64)
        self._steps = 0
        self._allocate(64, 64, 1)

    def _allocate(self, rows: int, parts: int, logits: int) -> None:
        shape = self._shape
        self._x = np.zeros((rows, shape.hidden_columns), np.float32)
        more = rows if shape.post_norms else 0
        self._middle = np.zeros((more, shape.hidden_columns), np.float32)
        self._branch = np.zeros((more, shape.hidden_columns), np.float32)
        self._qkv = np.zeros((rows, shape.qkv_columns), np.float32)
        self._attention = np.zeros((rows, shape.attention_columns), np.float32)
        self._parts = np.zeros((parts, shape.heads * (shape.head_dim * 4 + 128)), np.uint8)
        self.logits = np.zeros((logits, shape.vocab_columns), np.float32)

    def prepared(self, rows: int, parts: int, logits: int) -> Memory:
        """Addresses for a step of so many rows, attention parts and rows of logits."""
        have = (len(self._x), len(self._parts), len(self.logits))
        need = (rows, parts, logits)
        if any(n > h for n, h in zip(need, have, strict=True)):
            self._allocate(*(max(n, h) for n, h in zip(need, have, strict=True)))
        self._steps += 1
        self._sync[:] = self._steps << 32
        return Memory(
            self._x.ctypes.data,
            self._middle.ctypes.data,
            self._branch.ctypes.data,
            self._qkv.ctypes.data,
            self._attention.ctypes.data,
            self._parts.ctypes.data,
            self.logits.ctypes.data,
            self._sync.ctypes.data,
            self._steps << 32,
            self._own.ctypes.data,
            *self._layout,
        )


def _tiles(sequence: BatchSequence, tile: int) -> range:
    return range(sequence.start, sequence.start + sequence.length, tile)


def _shape(config: ModelConfig, kernels: Kernels) -> Shape:
    def columns(width: int) -> int:
        return -(-width // PANEL) * PANEL

    def inputs(width: int) -> int:
        return -(-width // GROUP) * GROUP

    heads = config.num_heads * config.head_dim
    key_column = columns(heads)
    value_column = key_column + columns(config.num_kv_heads * config.head_dim)
    return Shape(
        layers=config.num_layers,
        hidden=config.hidden_size,
        hidden_columns=columns(config.hidden_size),
        hidden_inputs=inputs(config.hidden_size),
        gate_columns=columns(config.intermediate_size),
        intermediate_inputs=inputs(config.intermediate_size),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        key_column=key_column,
        value_column=value_column,
        qkv_columns=value_column + columns(config.num_kv_heads * config.head_dim),
        attention_columns=inputs(heads),
        vocab=config.vocab_size,
        vocab_columns=columns(config.vocab_size),
        eps=config.rms_norm_eps,
        query_factor=LOG2_E * config.attention_scale,
        embedding_scale=config.embedding_scale,
        qk_norm=int(config.qk_norm),
        post_norms=int(config.post_norms),
        geglu=int(config.activation is Activation.GELU_TANH),
        panel_product=kernels.panel_product.address,
        attend_span=kernels.attend_span.address,
    )
