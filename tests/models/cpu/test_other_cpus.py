"""The kernels compiled for CPUs without this one's vector instructions: slower, and as right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import make_tiny

AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+lzcnt,+movbe,+64bit,+cx16"
CPUS = {"avx2": ("haswell", AVX2), "no dot products": ("x86-64-v3", AVX2.replace("+avx2,", ""))}

CHECK = """
import sys
from pathlib import Path
import torch
from tests.models.cpu.emulate import emulated_logits
from tests.models.drive import Driver, Track, random_ids
from tokenline.models.cpu.model import CPUModel
from tokenline.models.weights import open_weights

folder, ids = Path(sys.argv[1]), random_ids(300)
model = CPUModel(open_weights(folder), threads=2)
logits = Driver(model).logits(ids)
expected = emulated_logits(open_weights(folder), ids)
error = ((logits - expected).pow(2).mean().sqrt() / expected.std()).item()
assert error < 0.02, error
track, driver = Track(ids), Driver(model)
for n in (1, 30, 100, 1, 1, 167):
    driver.run((track, n))
assert torch.equal(track.all_logits, logits)
print("right")
"""


@pytest.mark.slow
@pytest.mark.skipif("x86" not in os.uname().machine and "amd64" not in os.uname().machine, reason="names x86 CPUs")
@pytest.mark.parametrize("cpu", CPUS)
def test_another_cpu(cpu: str, tmp_path: Path) -> None:
    name, features = CPUS[cpu]
    folder = make_tiny("llama", tmp_path / "model")
    environment = os.environ | {
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    result = subprocess.run(
        [sys.executable, "-c", CHECK, str(folder)], env=environment, capture_output=True, text=True, timeout=500
    )
    assert result.stdout == "right\n", result.stderr[-2000:]
