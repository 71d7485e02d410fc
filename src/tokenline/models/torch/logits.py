"""Logits on a device of PyTorch's. See `base.Logits`."""

import numpy as np
import torch


class TorchLogits:
    """`values`: float32 [R, vocab]."""

    def __init__(self, values: torch.Tensor):
        self.values = values

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        values, ids = torch.max(self.values, dim=-1)
        return values.cpu().numpy(), ids.cpu().numpy()

    def to_numpy(self) -> np.ndarray:
        return self.values.cpu().numpy()
