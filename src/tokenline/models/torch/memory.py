"""How much memory is free on a device of PyTorch's."""

import torch

from tokenline.models.memory import available_memory


def free_memory(device: str) -> int:
    """Bytes that can still be allocated on `device`: "cpu", "cuda", "cuda:0", "mps" (which shares the main memory)."""
    target = torch.device(device)
    return int(torch.cuda.mem_get_info(target)[0]) if target.type == "cuda" else available_memory()
