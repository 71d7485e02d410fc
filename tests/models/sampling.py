"""What `models.base.RowSampling` means, written down as plainly as possible with a full sort; and rows to try it on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tokenline.models.base import RowSampling

UNIT = 2.0**42  # of a weight


def expected(logits: np.ndarray, row: RowSampling) -> int:
    """The id of one row, float32 [vocab]. -1: the mask forbids all."""
    x = logits.astype(np.float64)
    if row.repeated is not None:
        for token in row.repeated:
            x[token] = np.float32(
                x[token] / row.repetition_penalty if x[token] > 0 else x[token] * row.repetition_penalty
            )
    for ids, values in row.added:
        for token, value in zip(ids, values, strict=True):
            x[token] = np.float32(np.float32(x[token]) + np.float32(value))
    if row.mask is not None:
        for token in range(len(x)):
            word = int(row.mask[token // 32]) if token // 32 < len(row.mask) else 0
            if not word >> (token % 32) & 1:
                x[token] = -np.inf
        if x.max() == -np.inf:
            return -1
    if row.held_back is not None:
        others = np.delete(x, row.held_back)
        if len(others) and others.max() > -np.inf:
            x[row.held_back] = -np.inf
    if row.temperature == 0:
        return int(np.argmax(x))
    with np.errstate(over="ignore"):
        weights = [int(weight) for weight in np.rint(UNIT * np.exp((x - x.max()) / row.temperature))]
    ids = list(range(len(x)))
    if 0 < row.top_k < len(x) or row.top_p < 1:
        ids.sort(key=lambda token: (-x[token], token))
        if row.top_k:
            ids = ids[: row.top_k]
        total, before, kept = sum(weights[token] for token in ids), 0, []
        for token in ids:
            if kept and not before < row.top_p * total:
                break
            kept.append(token)
            before += weights[token]
        ids = kept if row.top_p < 1 else ids
    most = max(weights[token] for token in ids)
    ids = [token for token in ids if weights[token] >= row.min_p * most]
    drawn, passed = row.uniform * sum(weights[token] for token in ids), 0
    for token in ids:
        passed += weights[token]
        if passed > drawn:
            return token
    return ids[-1]


def _logits(seed: int, vocab: int, kind: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = {
        "normal": random.normal(0, 3, vocab),
        "peaked": random.normal(0, 20, vocab),
        "nearly equal": random.normal(5, 1e-4, vocab),
        "equal": np.zeros(vocab) + (seed % 3 - 1),
        "many ties": random.integers(-3, 3, vocab) * 1.0,
        "zeros of both signs": np.where(random.random(vocab) < 0.5, 0.0, -0.0),
        "holes": np.where(random.random(vocab) < 0.5, -np.inf, random.normal(0, 3, vocab)),
    }[kind].astype(np.float32)
    values[seed % vocab] = max(values[seed % vocab], np.float32(0))  # one at least is finite
    return values


KINDS = ("normal", "peaked", "nearly equal", "equal", "many ties", "zeros of both signs", "holes")


@st.composite
def batches(draw: Any) -> tuple[np.ndarray, Sequence[RowSampling]]:
    """Logits float32 [R, vocab], and for some of their rows how an id is chosen."""
    vocab = draw(st.sampled_from([1, 2, 7, 33, 64, 300, 2000]))
    count = draw(st.integers(1, 4))
    logits = np.stack([_logits(draw(st.integers(0, 1000)), vocab, draw(st.sampled_from(KINDS))) for _ in range(count)])
    some_ids = st.lists(st.integers(0, vocab - 1), max_size=5, unique=True).map(lambda ids: np.array(ids, np.int64))

    def added() -> tuple[np.ndarray, np.ndarray]:
        ids = draw(some_ids)
        return ids, np.array(
            draw(st.lists(st.floats(-5, 5, width=32), min_size=len(ids), max_size=len(ids))), np.float32
        )

    def mask() -> np.ndarray:
        words = draw(st.sampled_from([-(-vocab // 32), max(1, vocab // 32), vocab // 32 + 2]))
        random = np.random.default_rng(draw(st.integers(0, 1000)))
        bits = random.integers(-(2**31), 2**31, words) & random.integers(-(2**31), 2**31, words)
        return (bits * draw(st.sampled_from([0, 1, 1, 1]))).astype(np.int32)

    rows = [
        RowSampling(
            row,
            temperature=draw(st.sampled_from([0.0, 1e-320, 1e-30, 0.1, 0.7, 1.0, 2.0, 1e30])),
            uniform=draw(st.floats(0, 1, exclude_max=True)),
            top_k=draw(st.sampled_from([0, 0, 1, 5, 50, 10_000])),
            top_p=draw(st.sampled_from([1.0, 1.0, 0.999, 0.95, 0.5, 0.0])),
            min_p=draw(st.sampled_from([0.0, 0.0, 1e-20, 0.05, 1.0])),
            repeated=draw(st.none() | some_ids),
            repetition_penalty=draw(st.sampled_from([1.1, 0.5])),
            added=tuple(added() for _ in range(draw(st.integers(0, 2)))),
            mask=mask() if draw(st.booleans()) else None,
            held_back=draw(st.none() | some_ids),
        )
        for row in draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    ]
    return logits, rows
