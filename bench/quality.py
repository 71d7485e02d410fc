"""What fewer bits cost: perplexity and equal greedy tokens against float32, for every dtype.

    python -m bench.quality [MODEL] [--tokens 8192] [--window 1024]

The text is Python's own language reference as the standard library carries it (`pydoc_data.topics`, PSF licence):
English prose with a little code, on every machine, and not a text that small models know by heart as they do famous
public domain books. It is cut into windows; each is prefilled at once, and every position predicts its next token.
"""

import math
import pydoc_data.topics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.cpu.model import load_cpu_model
from tokenline.models.fetch import resolve_model
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer

BLOCK = 16


@dataclass(frozen=True)
class Reading:
    """What a model made of the text, position by position."""

    loss: torch.Tensor  # float32 [n]: -log p(next token)
    best: torch.Tensor  # int64 [n]: the greedy token
    log_p: list[torch.Tensor]  # float32 [window, vocab] for the first window: for the divergence


def text() -> str:
    """Some 600,000 characters, the longest topics in alphabetical order."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics) if len(topics[name]) > 3000)


def read(model: Model, ids: np.ndarray, window: int) -> Reading:
    """Prefill window after window, keeping what each position says of the next."""
    blocks = math.ceil(window / BLOCK)
    kv = model.new_kv_pool(blocks, BLOCK)
    losses, best, log_ps = [], [], []
    for start in range(0, len(ids) - window + 1, window):
        part = np.ascontiguousarray(ids[start : start + window], np.int32)
        rows = np.arange(window, dtype=np.int32)
        batch = Batch(part, rows, (BatchSequence(0, window, 0, np.arange(blocks, dtype=np.int32)),), rows)
        log_p = model.forward(batch, kv).float().log_softmax(-1).cpu()
        losses.append(-log_p[:-1].gather(1, torch.from_numpy(part[1:]).long()[:, None])[:, 0])
        best.append(log_p.argmax(-1))
        if not log_ps:
            log_ps.append(log_p.clone())
    return Reading(torch.cat(losses), torch.cat(best), log_ps)


def main(
    model: Annotated[
        str | None, typer.Argument(help="A .gguf file, a directory or a hub id; the default model.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How much of the text to read.")] = 8192,
    window: Annotated[int, typer.Option(help="Tokens that are read with nothing before them.")] = 1024,
) -> None:
    path = resolve_model(model)
    ids = np.array(Renderer.from_model(path).tokenizer.encode(text()[: tokens * 8]))[:tokens]
    ways: dict[str, Callable[[], Model]] = {
        "float32": lambda: load_model(path, device="cpu", dtype="float32"),
        "bfloat16": lambda: load_model(path, device="cpu", dtype="bfloat16"),
        "CPU kernels (auto)": lambda: load_cpu_model(path),
    }
    print(f"{Path(path).name}, {len(ids) // window} windows of {window} tokens of the Python language reference\n")
    print("| dtype | perplexity | against float32 | equal greedy tokens | divergence (nats) | weights |")
    print("|---|---|---|---|---|---|")
    reference: Reading | None = None
    for name, load in ways.items():
        loaded = load()
        reading = read(loaded, ids, window)
        reference = reference or reading
        change = reading.loss - reference.loss
        error = change.std() / math.sqrt(len(change)) * 100
        percent = math.expm1(change.mean()) * 100
        p, q = reference.log_p[0], reading.log_p[0]
        divergence = torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean").item()
        print(
            f"| {name} | {reading.loss.mean().exp():.3f} | {percent:+.2f} ± {error:.2f} % "
            f"| {(reading.best == reference.best).float().mean() * 100:.1f} % | {divergence:.4f} "
            f"| {loaded.weight_bytes / 1e6:.0f} MB |",
            flush=True,
        )
        del loaded


if __name__ == "__main__":
    typer.run(main)
