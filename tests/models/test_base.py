"""What a backend says it can run, and what no backend can."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.families.test_gemma3 import GEMMA_3_270M
from tests.models.families.test_registry import LLAMA_3_2
from tests.tiny import make_tiny
from tokenline.models import load
from tokenline.models.base import Backend
from tokenline.models.config import Feature
from tokenline.models.cpu.model import CPU_KERNELS
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_hf
from tokenline.models.load import load_model
from tokenline.models.torch import TORCH

LLAMA_ONLY = Backend("a toy", frozenset({Feature.SILU, Feature.ROPE}))


def test_a_backend_runs_what_it_says_and_nothing_else() -> None:
    llama, gemma = config_from_hf(LLAMA_3_2), config_from_hf(GEMMA_3_270M)
    assert LLAMA_ONLY.why_not(llama) is None
    reason = LLAMA_ONLY.why_not(gemma)
    assert reason is not None
    assert reason.startswith("a toy cannot compute ")
    for word in ("GELU (tanh approximation)", "norms behind attention and MLP", "sliding-window attention"):
        assert word in reason
    assert LLAMA_ONLY.why_not(replace(llama, qkv_bias=True)) == "a toy cannot compute biases"
    for backend in (CPU_KERNELS, TORCH):
        assert backend.why_not(llama) is None
        assert backend.why_not(gemma) is None


def test_shapes() -> None:
    llama = config_from_hf(LLAMA_3_2)
    reason = CPU_KERNELS.why_not(replace(llama, head_dim=72))
    assert reason == "the CPU kernels cannot compute a head_dim of 72, which is not a multiple of 16"
    assert (
        CPU_KERNELS.why_not(replace(llama, num_kv_heads=1)) == "the CPU kernels cannot compute 32 heads on 1 kv heads"
    )
    assert TORCH.why_not(replace(llama, head_dim=72, num_kv_heads=1)) is None


def test_what_no_backend_can_run_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny("gemma3", tmp_path / "m")
    read: list[int] = []
    monkeypatch.setattr(load, "TORCH", LLAMA_ONLY)
    for device in ("cpu", "auto"):
        with pytest.raises(ModelError, match=r"^m: a toy cannot compute .*GELU"):
            load_model(folder, device=device, dtype="float32", progress=lambda what, done, total: read.append(done))
    assert read == []
