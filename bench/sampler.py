"""`python -m bench.sampler [--repeats N]`: choosing the next ids, beside what was done before.

Before: one `torch.max` for all greedy rows; every other row by itself, with NumPy's partition for the 512 most likely
ids and a full sort where these do not hold top_p. That algorithm lives on here only, as `choose_by_sorting`, and each
id that it draws must be the one that `NumpyLogits` draws. The two are timed in turns.

Logits fall with a token's rank as its share in text does: p ~ rank^-s. With s = 2 some ids hold 0.95 of the mass, with
s = 1.05 the nucleus is most of the vocabulary.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tokenline.models.base import RowSampling
from tokenline.models.cpu.draw import compile_draw
from tokenline.models.cpu.logits import NumpyLogits, most_likely

VOCABULARIES = (49_152, 151_936)
ROWS = 32
PEAKED, FLAT = 2.0, 1.05


def choose_by_sorting(logits: np.ndarray, row: RowSampling) -> int:
    """One id of float32 [vocab], as the sampler drew it up to commit 68cbf9a."""
    vocab = len(logits)
    scores = (logits.astype(np.float64) - logits.max()) / row.temperature
    limited = 0 < row.top_k < vocab
    if limited:
        candidates = most_likely(scores, row.top_k)
    elif row.top_p < 1:
        candidates = most_likely(scores, 512)
        if np.exp(scores[candidates]).sum() < row.top_p * np.exp(scores).sum():
            candidates = most_likely(scores, vocab)
    else:
        candidates = np.arange(vocab)
    probabilities = np.exp(scores[candidates])
    probabilities /= probabilities.sum() if limited or row.top_p == 1 else np.exp(scores).sum()
    if row.top_p < 1:
        keep = np.cumsum(probabilities) - probabilities < row.top_p
        keep[0] = True
        candidates, probabilities = candidates[keep], probabilities[keep]
    mass = np.cumsum(probabilities)
    return int(candidates[min(int(np.searchsorted(mass, row.uniform * mass[-1], side="right")), len(mass) - 1)])


def logits_of(vocab: int, exponent: float) -> np.ndarray:
    """float32 [ROWS, vocab]."""
    random = np.random.default_rng(0)
    one = -exponent * np.log(np.arange(1, vocab + 1)) + random.normal(0, 0.3, vocab)
    return np.stack([random.permutation(one) for _ in range(ROWS)]).astype(np.float32)


def timed(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median microseconds of each, measured in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) * 1e6 for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    compile_draw()
    print("| rows x vocabulary | how | before, us | now, us | ratio |\n|---|---|---|---|---|")
    for vocab in VOCABULARIES:
        peaked, flat = logits_of(vocab, PEAKED), logits_of(vocab, FLAT)
        tensor, logits = torch.from_numpy(peaked), NumpyLogits(peaked)

        def show(
            rows: int, how: str, before: Callable[[], object], now: Callable[[], object], vocab: int = vocab
        ) -> None:
            found = timed({"before": before, "now": now}, repeats)
            ratio = found["now"] / found["before"]
            print(
                f"| {rows} x {vocab:,} | {how} | {found['before']:,.0f} | {found['now']:,.0f} | {ratio:.2f}x |",
                flush=True,
            )

        show(ROWS, "greedy", lambda tensor=tensor: [part.tolist() for part in torch.max(tensor, dim=-1)], logits.best)
        cases: list[tuple[str, np.ndarray, dict[str, Any]]] = [
            ("temperature", peaked, {}),
            ("top_k 50", peaked, {"top_k": 50}),
            ("top_p 0.95, in 512 ids", peaked, {"top_p": 0.95}),
            ("top_p 0.95, not in 512 ids", flat, {"top_p": 0.95}),
        ]
        for how, values, options in cases:
            draws = np.random.default_rng(1).random(ROWS).tolist()
            rows = [RowSampling(row, 1.0, draws[row], **options) for row in range(ROWS)]
            ours = NumpyLogits(values)
            assert ours.choose(rows).tolist() == [choose_by_sorting(values[row.row], row) for row in rows]
            for some in (rows[:1], rows):
                show(
                    len(some),
                    how,
                    lambda values=values, some=some: [choose_by_sorting(values[row.row], row) for row in some],
                    lambda ours=ours, some=some: ours.choose(some),
                )


if __name__ == "__main__":
    main()
