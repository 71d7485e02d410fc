"""The kernels compiled for CPUs without this one's vector instructions: slower, and as right."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.limits import HANG_S
from tests.models.cpu.cpus import CPUS, compile_for, runs_here
from tests.models.cpu.emulate import MAX_ERROR, MIN_EQUAL, emulated_logits
from tests.models.drive import random_ids
from tests.tiny import make_tiny
from tokenline.models.weights import open_checkpoint

HERE = [cpu for cpu in CPUS if runs_here(cpu)]
RUN = """
import sys
from pathlib import Path
import torch
from tests.models.drive import Driver, Track, random_ids
from tokenline.models.cpu.model import CPUModel
from tokenline.models.weights import open_checkpoint

results = []
for folder in sys.argv[2:]:
    model, ids = CPUModel(open_checkpoint(Path(folder)), threads=2), random_ids(300)
    track, driver = Track(ids), Driver(model)
    for n in (1, 30, 100, 1, 1, 167):
        driver.run((track, n))
    results.append((Driver(model).logits(ids), track.all_logits))
torch.save(results, sys.argv[1])
"""
Logits = list[tuple[torch.Tensor, torch.Tensor]]  # for each model, of 300 tokens at once and of the same in pieces


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two kinds of blocks: a plain one, and one with GeGLU and norms on both sides."""
    return [make_tiny(family, tmp_path_factory.mktemp(family)) for family in ("llama", "gemma3")]


@pytest.fixture(scope="module")
def logits(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Logits]:
    """What the tiny models compute as compiled for a CPU."""

    @cache
    def of(cpu: str) -> Logits:
        home = tmp_path_factory.mktemp("kernels")
        environment = os.environ | compile_for(cpu) | {"NUMBA_CACHE_DIR": str(home)}
        command = [sys.executable, "-c", RUN, str(home / "logits.pt"), *map(str, folders)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * HANG_S)
        assert done.returncode == 0, done.stderr[-2000:]
        return torch.load(home / "logits.pt")

    return of


@pytest.mark.slow  # compiles everything, once for each
@pytest.mark.parametrize("cpu", HERE)
def test_another_cpu(cpu: str, folders: list[Path], logits: Callable[[str], Logits]) -> None:
    for folder, (whole, in_pieces) in zip(folders, logits(cpu), strict=True):
        expected = emulated_logits(open_checkpoint(folder), random_ids(300))
        assert (whole - expected).pow(2).mean().sqrt() / expected.std() < MAX_ERROR
        assert (whole.argmax(-1) == expected.argmax(-1)).float().mean() > MIN_EQUAL
        assert torch.equal(in_pieces, whole)


@pytest.mark.slow
@pytest.mark.skipif(len(HERE) < 2, reason="fewer than two of them run here")
def test_all_cpus_without_bfloat16_give_the_same_bits(logits: Callable[[str], Logits]) -> None:
    first, *others = (torch.stack([whole for whole, _ in logits(cpu)]) for cpu in HERE)
    assert all(torch.equal(first, other) for other in others)
