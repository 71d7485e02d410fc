"""How fast the CPU model is, and how far from what the machine can do; no server, no scheduler.

    python -m bench.kernels [MODEL] [--repeats 15] [--threads 2]

Measured in one run, medians and bests: the machine (memory read, oneDNN's int8 and bfloat16 products of the model's own
shapes), prefill, hit, decode and batches. On a machine that others use, hold them against the machine's figures.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer

from tokenline.models.base import Batch, BatchSequence
from tokenline.models.config import ModelConfig
from tokenline.models.cpu.model import CPUModel
from tokenline.models.cpu.pack import pack_tensor
from tokenline.models.fetch import resolve_model
from tokenline.models.weights import EMBEDDING, open_checkpoint

BLOCK = 32


def measure(function: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and best seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def sequences(lengths: list[int], contexts: list[int], vocab: int, seed: int = 0) -> tuple[Batch, int]:
    """A batch of new tokens, each sequence with blocks of its own; and the number of blocks."""
    rng = np.random.default_rng(seed)
    parts, positions, row, block = [], [], 0, 0
    for length, context in zip(lengths, contexts, strict=True):
        need = -(-(context + length) // BLOCK)
        parts.append(BatchSequence(row, length, context, np.arange(block, block + need, dtype=np.int32)))
        positions.append(np.arange(context, context + length, dtype=np.int32))
        row += length
        block += need
    last = np.cumsum(lengths, dtype=np.int32) - 1
    ids = rng.integers(0, vocab, row, dtype=np.int32)
    return Batch(ids, np.concatenate(positions), tuple(parts), last.astype(np.int32)), block


def machine(config: ModelConfig, repeats: int) -> None:
    """The machine's own limits, to compare the model with."""
    data = torch.ones(64 * 1024 * 1024)
    median, best = measure(data.sum, repeats)
    print(f"| memory read | {data.nbytes / median / 1e9:.1f} GB/s | {data.nbytes / best / 1e9:.1f} GB/s |")
    rows, k, n = 768, config.hidden_size, 2 * config.intermediate_size
    work = 2 * rows * k * n / 1e9
    x, w = torch.randn(rows, k).bfloat16(), torch.randn(n, k).bfloat16()
    median, best = measure(lambda: torch.nn.functional.linear(x, w), repeats)
    print(f"| oneDNN bfloat16, {rows} x {k} x {n} | {work / median:.0f} GFLOP/s | {work / best:.0f} GFLOP/s |")
    u, s = torch.randint(0, 255, (rows, k), dtype=torch.uint8), torch.randint(-127, 127, (n, k), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(s, [rows, k])
    ones, zeros = torch.ones(n), torch.zeros(n, dtype=torch.long)
    median, best = measure(
        lambda: torch.ops.onednn.qlinear_pointwise(
            u, 1.0, 0, packed, ones, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        ),
        repeats,
    )
    print(f"| oneDNN int8, the same | {work / median:.0f} GFLOP/s | {work / best:.0f} GFLOP/s |")


def main(
    model: Annotated[
        str | None, typer.Argument(help="A .gguf file, a directory or a hub id; the default model.")
    ] = None,
    repeats: int = 15,
    threads: int | None = None,
) -> None:
    started = time.perf_counter()
    path = resolve_model(model)
    loaded = CPUModel(open_checkpoint(path), threads=threads)
    config = loaded.config
    ready = time.perf_counter() - started
    kv = loaded.new_kv_pool(4096, BLOCK)
    warm, _ = sequences([1], [0], config.vocab_size)
    started = time.perf_counter()
    loaded.forward(warm, kv)
    first = time.perf_counter() - started
    print(
        f"loaded in {ready:.2f} s (kernels from the disk cache if they were there), first step {first:.2f} s, ", end=""
    )
    print(f"weights {loaded.weight_bytes / 1e6:.1f} MB, {loaded.kv_bytes_per_token()} bytes a held token\n")
    weights_read = loaded.weight_bytes  # by a step of one row
    if not config.tied_head:  # of the embedding it reads one row
        weights_read -= pack_tensor(open_checkpoint(path), EMBEDDING).data.nbytes
    print("| what | median | best |\n|---|---|---|")
    machine(config, repeats)

    def run(lengths: list[int], contexts: list[int], times: int) -> tuple[float, float]:
        batch, blocks = sequences(lengths, contexts, config.vocab_size)
        assert blocks <= kv.num_blocks
        return measure(lambda: loaded.forward(batch, kv), times)

    for length in (32, 64, 256, 800):
        median, best = run([length], [0], repeats)
        print(f"| prefill {length} | {length / median:.0f} tokens/s | {length / best:.0f} tokens/s |")
    median, best = run([60], [1800], repeats)
    print(f"| 60 new tokens after 1,800 held | {median * 1e3:.1f} ms | {best * 1e3:.1f} ms |")
    for context in (20, 900, 2048):
        median, best = run([1], [context], 5 * repeats)
        read = weights_read + context * loaded.kv_bytes_per_token()
        print(
            f"| decode at {context} | {1 / median:.0f} tokens/s, {read / median / 1e9:.1f} GB/s "
            f"| {1 / best:.0f} tokens/s, {read / best / 1e9:.1f} GB/s |"
        )
    for streams in (1, 2, 4, 8, 16, 32):
        median, best = run([1] * streams, [500] * streams, 2 * repeats)
        print(f"| decode {streams} streams at 500 | {streams / median:.0f} tokens/s | {streams / best:.0f} tokens/s |")


if __name__ == "__main__":
    typer.run(main)
