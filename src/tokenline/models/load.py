"""From a path to a loaded model: which device, which dtype, whether it fits, and then the weights."""

from pathlib import Path

import torch

from tokenline.models.base import Model
from tokenline.models.config import ModelConfig
from tokenline.models.cpu.model import CPU_KERNELS, CPUModel
from tokenline.models.cpu.pack import packed_bytes
from tokenline.models.decoder import TORCH, TorchDecoder
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_gguf, config_from_hf
from tokenline.models.gguf_file import GGUFFile
from tokenline.models.memory import available_memory, format_bytes
from tokenline.models.weights import Progress, expected_tensors, open_weights, read_json

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "int8")


def read_config(path: Path) -> ModelConfig:
    """The shape of the model at `path` (a directory in Hugging Face layout, or a .gguf file); reads no weights."""
    _check_path(path)
    if path.is_dir():
        return config_from_hf(read_json(path / "config.json"))
    return config_from_gguf(GGUFFile(path))


def load_model(path: Path, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None) -> Model:
    """Load the model at `path`. What can be wrong with it is a ModelError, nearly always before weights are read.

    On a CPU, "auto" and "int8" mean the compiled kernels of `models.cpu`, where they can run a model of this shape;
    everything else is the PyTorch decoder. `progress` is called with the bytes of the file(s) read so far and their
    total.
    """
    _check_path(path)
    target = pick_device(device)
    chosen = pick_dtype(dtype, target)
    weights = open_weights(path, progress)
    if target.type == "cpu" and dtype in ("auto", "int8") and CPU_KERNELS.why_not(weights.config) is None:
        _check_memory(weights.config, path, "int8", packed_bytes(weights), target)
        return CPUModel(weights)
    if reason := TORCH.why_not(weights.config):
        raise ModelError(f"{path.name}: {reason}")
    _check_memory(weights.config, path, chosen, weight_bytes(weights.config, chosen), target)
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(chosen) or _fast_dtype(target)
    try:
        return TorchDecoder(weights, device=target, weight_dtype=getattr(torch, chosen), compute_dtype=compute)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(f"{path.name}: out of memory while loading as {chosen}") from error


def pick_device(name: str) -> torch.device:
    """The device called `name`; "auto" is cuda, else mps, else cpu, whichever is there."""
    if name not in DEVICES:
        raise ModelError(f"device {name!r} is not known; choose {', '.join(DEVICES)}")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(candidate for candidate in ("cuda", "mps", "cpu") if there[candidate])
    if not there[name]:
        works = ", ".join(candidate for candidate, is_there in there.items() if is_there)
        raise ModelError(f"device {name} was asked for, but PyTorch {torch.__version__} finds none; found: {works}")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> str:
    """ "auto" is bfloat16 where the device multiplies it faster than float32, else float32."""
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not known; choose {', '.join(DTYPES)}")
    return str(_fast_dtype(device)).removeprefix("torch.") if name == "auto" else name


def _fast_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        fast = able.get("avx512_bf16", False) or able.get("amx_bf16", False)
    else:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """What the weights will occupy once loaded, at most: int8 with a 16-bit scale for 32 values, vectors as float32."""
    size = {"float32": 4, "bfloat16": 2, "int8": 17 / 16}[dtype]
    total = 0
    for shape in expected_tensors(config).values():
        values = 1
        for dimension in shape:
            values *= dimension
        total += int(values * size) if len(shape) > 1 else values * 4
    return total


def _check_memory(config: ModelConfig, path: Path, dtype: str, num_bytes: int, device: torch.device) -> None:
    """Refuse before the first weight is read, with the figures and with what would fit."""
    beside = 256 * 1024 * 1024  # pieces in flight, activations, a minimal pool
    needed, free = num_bytes + beside, available_memory(device)
    if needed <= free:
        return
    smaller = [name for name in ("bfloat16", "int8") if weight_bytes(config, name) < num_bytes]
    advice = "; ".join(f"as {name} {format_bytes(weight_bytes(config, name) + beside)}" for name in smaller)
    raise ModelError(
        f"{path.name}: not enough memory on {device}: as {dtype} it needs {format_bytes(needed)}, "
        f"{format_bytes(free)} are free" + (f" ({advice})" if advice else "")
    )


def _check_path(path: Path) -> None:
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if path.is_file() and path.suffix != ".gguf":
        raise ModelError(f"{path}: neither a directory in Hugging Face layout nor a .gguf file")
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelError(f"{path}: has no config.json")
