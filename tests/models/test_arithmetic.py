"""The name of a model's arithmetic changes with the code, the instructions and the device, and with nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.limits import HANG_S
from tests.models.cpu.cpus import compile_for
from tests.tiny import make_tiny
from tokenline.models import arithmetic
from tokenline.models.arithmetic import arithmetic_name, source_digest
from tokenline.models.cpu import model as cpu_model
from tokenline.models.cpu.model import cpu_arithmetic
from tokenline.models.load import load_model
from tokenline.models.torch.decoder import TorchDecoder


def test_the_source_of_the_room_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(file: Path, text: str) -> str:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        source_digest.cache_clear()
        return source_digest(tmp_path)

    names = {
        change(tmp_path / "linear.py", "a"),
        change(tmp_path / "linear.py", "b"),
        change(tmp_path / "cpu" / "step.py", "b"),
        change(tmp_path / "cpu" / "steps.py", ""),
    }
    assert len(names) == 4
    assert change(tmp_path / "notes.txt", "no code") in names
    before = arithmetic_name("x")
    monkeypatch.setattr(arithmetic, "source_digest", lambda: "other code")
    assert arithmetic_name("x") != before


def test_instructions_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [cpu_arithmetic()]
    assert cpu_arithmetic() == names[0]
    for features in (set(), {"avx2"}, {"avx2", "avx512bf16"}):
        monkeypatch.setattr(cpu_model, "cpu_features", lambda features=features: frozenset(features))
        names.append(cpu_arithmetic())
    monkeypatch.setattr(cpu_model, "version", lambda name: "0.0.1")
    names.append(cpu_arithmetic())
    assert len(set(names)) == 5


def test_as_numba_is_told_to_compile() -> None:
    """`NUMBA_CPU_FEATURES` chooses the path; nothing is compiled here."""
    run = "from tokenline.models.cpu.model import cpu_arithmetic; print(cpu_arithmetic())"
    names = {
        subprocess.run(
            [sys.executable, "-c", run],
            env=os.environ | compile_for(cpu),
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_S,
        ).stdout
        for cpu in ("AVX2", "AVX-512 without bfloat16")
    }
    assert len(names) == 2


def test_of_the_torch_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny("llama", tmp_path / "m")

    def name(dtype: str) -> str:
        model = load_model(folder, device="cpu", dtype=dtype)
        assert isinstance(model, TorchDecoder)
        return model.arithmetic

    names = {name("float32"), name("bfloat16")}
    assert name("float32") in names
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another CPU's")
    names.add(name("float32"))
    monkeypatch.setattr(torch, "__version__", "9.9")
    names.add(name("float32"))
    assert len(names) == 4
