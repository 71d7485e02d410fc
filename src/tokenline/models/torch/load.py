"""Which device and dtype PyTorch is best at here, and a checkpoint as its decoder. Called by `models.load` alone."""

import torch

from tokenline.models.errors import ModelError
from tokenline.models.torch.decoder import TorchDecoder
from tokenline.models.torch.memory import free_memory
from tokenline.models.weights import Checkpoint

__all__ = ["free_memory", "load_decoder", "pick_device", "pick_dtype"]


def pick_device(name: str) -> str:
    """The device called `name`; "auto" is cuda, else mps, else cpu, whichever is there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(candidate for candidate in ("cuda", "mps", "cpu") if there[candidate])
    if not there[name]:
        works = ", ".join(candidate for candidate, is_there in there.items() if is_there)
        raise ModelError(f"device {name} was asked for, but PyTorch {torch.__version__} finds none; found: {works}")
    return name


def pick_dtype(name: str, device: str) -> str:
    """ "auto" is bfloat16 where the device multiplies it faster than float32, else float32."""
    if name != "auto":
        return name
    return "bfloat16" if _fast_dtype(torch.device(device)) is torch.bfloat16 else "float32"


def load_decoder(checkpoint: Checkpoint, device: str, dtype: str) -> TorchDecoder:
    """The decoder with its weights kept as `dtype` ("float32", "bfloat16" or "int8") on a device that is there."""
    target = torch.device(device)
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype) or _fast_dtype(target)
    try:
        return TorchDecoder(checkpoint, device=target, weight_dtype=getattr(torch, dtype), compute_dtype=compute)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(f"{checkpoint.path.name}: out of memory while loading as {dtype}") from error


def _fast_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        fast = able.get("avx512_bf16", False) or able.get("amx_bf16", False)
    else:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32
