"""Logits in main memory. See `base.Logits`."""

import numpy as np


class NumpyLogits:
    """`values`: float32 [R, vocab]."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        ids = np.argmax(self.values, axis=1)
        return self.values[np.arange(len(ids)), ids], ids

    def to_numpy(self) -> np.ndarray:
        return self.values
