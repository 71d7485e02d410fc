"""From a path to a loaded model: which backend, which device, whether it fits, and then the weights.

The one place that imports the PyTorch backend, and only for what the CPU kernels do not do.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenline.models.base import Model
from tokenline.models.config import ModelConfig
from tokenline.models.cpu.model import CPU_KERNELS, CPUModel
from tokenline.models.cpu.pack import packed_bytes
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_gguf, config_from_hf
from tokenline.models.gguf_file import GGUFFile
from tokenline.models.memory import available_memory
from tokenline.models.progress import Progress, no_progress
from tokenline.models.torch import TORCH
from tokenline.models.weights import Checkpoint, check_path, expected_tensors, open_checkpoint, read_json
from tokenline.sizes import format_bytes

if TYPE_CHECKING:
    from types import ModuleType

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "int8")

# Beneath /dev, what a GPU that PyTorch can use shows as: of NVIDIA, NVIDIA's Jetson, AMD, and either under WSL.
_GPU_FILES = ("nvidiactl", "nvmap", "kfd", "dxg")


def read_config(path: Path) -> ModelConfig:
    """The shape of the model at `path` (a directory in Hugging Face layout, or a .gguf file); reads no weights."""
    check_path(path)
    if path.is_dir():
        return config_from_hf(read_json(path / "config.json"))
    return config_from_gguf(GGUFFile(path))


def load_model(
    source: Path | Checkpoint, *, device: str = "auto", dtype: str = "auto", progress: Progress = no_progress
) -> Model:
    """Load a model. What can be wrong with it is a ModelError, nearly always before weights are read.

    device "auto" is an accelerator that PyTorch finds, else the CPU. On a CPU, dtype "auto" and "int8" mean the
    compiled kernels of `models.cpu`, where they can run a model of this shape; everything else is the PyTorch decoder,
    for which "auto" means bfloat16 where the device multiplies it faster than float32.
    """
    for what, name, known in (("device", device, DEVICES), ("dtype", dtype, DTYPES)):
        if name not in known:
            raise ModelError(f"{what} {name!r} is not known; choose {', '.join(known)}")
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    checkpoint.progress = progress
    config, name = checkpoint.config, checkpoint.path.name
    if device == "auto" and not _finds_accelerator():
        device = "cpu"
    if device != "cpu":
        why = f"device {device}"
    elif dtype not in ("auto", "int8"):
        why = f"dtype {dtype}"
    elif (reason := CPU_KERNELS.why_not(config)) is not None:
        why = f"{name} ({reason})"
    else:
        _check_memory(config, name, "int8", packed_bytes(checkpoint), "cpu", available_memory())
        return CPUModel(checkpoint)
    if (reason := TORCH.why_not(config)) is not None:
        raise ModelError(f"{name}: {reason}")
    pytorch = _pytorch(why)
    device = pytorch.pick_device(device)
    dtype = pytorch.pick_dtype(dtype, device)
    _check_memory(config, name, dtype, weight_bytes(config, dtype), device, pytorch.free_memory(device))
    return pytorch.load_decoder(checkpoint, device, dtype)


def runs_on_cpu(device: str) -> bool:
    """Whether a model that is loaded with this `device` runs on the CPU."""
    return device == "cpu" or (device == "auto" and not _finds_accelerator())


def _finds_accelerator() -> bool:
    """Whether PyTorch is there and finds one. It takes seconds to start, so it is asked only where one is likely."""
    if sys.platform == "linux" and not any(Path("/dev", file).exists() for file in _GPU_FILES):
        return False
    return find_spec("torch") is not None and _pytorch("device auto").pick_device("auto") != "cpu"


def _pytorch(why: str) -> "ModuleType":
    """The module `models.torch.load`. `why` says what needs it."""
    try:
        from tokenline.models.torch import load
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelError(f"{why} needs PyTorch; install it with: pip install 'tokenline[torch]'") from error
    except (ImportError, OSError) as error:  # installed, but a library that it needs is not
        raise ModelError(f"{why} needs PyTorch, which does not start: {str(error).splitlines()[0]}") from error
    return load


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


def _check_memory(config: ModelConfig, name: str, dtype: str, num_bytes: int, device: str, free: int) -> None:
    """Refuse before the first weight is read, with the figures and with what would fit."""
    beside = 256 * 1024 * 1024  # pieces in flight, activations, a minimal pool
    needed = num_bytes + beside
    if needed <= free:
        return
    smaller = [other for other in ("bfloat16", "int8") if weight_bytes(config, other) < num_bytes]
    advice = "; ".join(f"as {other} {format_bytes(weight_bytes(config, other) + beside)}" for other in smaller)
    raise ModelError(
        f"{name}: not enough memory on {device}: as {dtype} it needs {format_bytes(needed)}, "
        f"{format_bytes(free)} are free" + (f" ({advice})" if advice else "")
    )
