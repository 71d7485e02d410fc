"""What fewer bits cost: perplexity and equal greedy tokens against float32, for every dtype, on three kinds of text.

    python -m bench.quality [MODEL] [--text english --text code --text chinese] [--tokens 8192] [--window 1024]

english   Python's own language reference as the standard library carries it (`pydoc_data.topics`, PSF licence): prose
          with a little code, and not a text that small models know by heart as they do famous public domain books
code      modules of the standard library (PSF licence) that are long and not everyone's reading
chinese   `chinese.txt` beside this file: plain modern prose, some 1,700 tokens, written for this benchmark

Every text is cut into windows; each is prefilled at once, and every position predicts its next token.
"""

import importlib.util
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
from tokenline.models.fetch import resolve_model
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer

BLOCK = 16


BOUND_PERCENT = 1.0  # what the default mode may cost
DIVERGENCE_ROWS = 256  # of the first window: whole distributions are large
CODE = ("mailbox", "imaplib", "tarfile", "plistlib", "ftplib", "pickletools")


@dataclass(frozen=True)
class Reading:
    """What a model made of a text, position by position."""

    loss: torch.Tensor  # float32 [n]: -log p(next token)
    best: torch.Tensor  # int64 [n]: the greedy token
    log_p: torch.Tensor  # float32 [DIVERGENCE_ROWS, vocab]


def english() -> str:
    """Some 600,000 characters, the longest topics in alphabetical order."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics) if len(topics[name]) > 3000)


def code() -> str:
    """Some 400,000 characters of Python."""
    specs = [importlib.util.find_spec(name) for name in CODE]
    return "\n".join(Path(spec.origin).read_text("utf-8") for spec in specs if spec is not None and spec.origin)


def chinese() -> str:
    return (Path(__file__).parent / "chinese.txt").read_text("utf-8")


TEXTS = {"english": english, "code": code, "chinese": chinese}


def read(model: Model, ids: np.ndarray, window: int) -> Reading:
    """Prefill window after window; keep what each position predicts for the next."""
    blocks = math.ceil(window / BLOCK)
    kv = model.new_kv_pool(blocks, BLOCK)
    losses, best, log_ps = [], [], []
    for start in range(0, len(ids) - 1, window):
        part = np.ascontiguousarray(ids[start : start + window], np.int32)
        rows = np.arange(len(part), dtype=np.int32)
        batch = Batch(part, rows, (BatchSequence(0, len(part), 0, np.arange(blocks, dtype=np.int32)),), rows)
        log_p = torch.from_numpy(model.forward(batch, kv).to_numpy()).log_softmax(-1)
        losses.append(-log_p[:-1].gather(1, torch.from_numpy(part[1:]).long()[:, None])[:, 0])
        best.append(log_p.argmax(-1))
        if not log_ps:
            log_ps.append(log_p[:DIVERGENCE_ROWS].clone())
    return Reading(torch.cat(losses), torch.cat(best), log_ps[0])


def change(reading: Reading, reference: Reading) -> tuple[float, float]:
    """How much higher the perplexity is, and the standard error of that, in percent."""
    losses = reading.loss - reference.loss
    return math.expm1(losses.mean()) * 100, losses.std().item() / math.sqrt(len(losses)) * 100


def main(
    model: Annotated[
        str | None, typer.Argument(help="A .gguf file, a directory or a hub id; the default model.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help=f"One or more of {', '.join(TEXTS)}; all.")] = None,
    tokens: Annotated[int, typer.Option(help="How much of each text to read.")] = 8192,
    window: Annotated[int, typer.Option(help="Tokens that are read with nothing before them.")] = 1024,
) -> None:
    path = resolve_model(model)
    tokenizer = Renderer.from_model(path).tokenizer
    if unknown := set(text or ()) - TEXTS.keys():
        raise typer.BadParameter(f"--text: {unknown.pop()!r} is none of {', '.join(TEXTS)}")
    texts = {name: np.array(tokenizer.encode(TEXTS[name]()[: tokens * 8]))[:tokens] for name in text or TEXTS}
    ways: dict[str, Callable[[], Model]] = {
        "float32": lambda: load_model(path, device="cpu", dtype="float32"),
        "bfloat16": lambda: load_model(path, device="cpu", dtype="bfloat16"),
        "CPU kernels (auto)": lambda: load_model(path, device="cpu"),
    }
    print(f"{Path(path).name}, windows of {window} tokens\n")
    print(
        "| dtype | text | tokens | perplexity | against float32 | equal greedy tokens | divergence (nats) | weights |"
    )
    print("|---|---|---|---|---|---|---|---|")
    references: dict[str, Reading] = {}
    beyond: list[str] = []
    for name, load in ways.items():
        loaded = load()
        for kind, ids in texts.items():
            reading = read(loaded, ids, window)
            reference = references.setdefault(kind, reading)
            percent, error = change(reading, reference)
            if percent > BOUND_PERCENT:
                beyond.append(f"{name} on {kind}")
            p, q = reference.log_p, reading.log_p
            divergence = torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean").item()
            print(
                f"| {name} | {kind} | {len(ids)} | {reading.loss.mean().exp():.3f} | {percent:+.2f} ± {error:.2f} % "
                f"| {(reading.best == reference.best).float().mean() * 100:.1f} % | {divergence:.4f} "
                f"| {loaded.weight_bytes / 1e6:.0f} MB |",
                flush=True,
            )
        del loaded
    print(f"\nMore than {BOUND_PERCENT:g} % above float32: {', '.join(beyond) or 'none'}")


if __name__ == "__main__":
    typer.run(main)
