"""The vector operations that not every CPU has an instruction for, compiled for this CPU and for others."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.limits import HANG_S
from tests.models.cpu.cpus import CPUS, compile_for, runs_here
from tests.models.cpu.operations import INPUTS

LANES = 65536  # of each operation: every float16 there is
# Numba leaves AVX out by itself on a virtual machine that names no CPU it knows
ENVIRONMENTS = {"this CPU": {}, "this CPU without AVX": {"NUMBA_ENABLE_AVX": "0"}, **{c: compile_for(c) for c in CPUS}}


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    unsigned, signed = rng.integers(0, 256, (LANES, 4), np.uint8), rng.integers(-128, 128, (LANES, 4), np.int8)
    unsigned[:4], signed[:2], signed[2:4] = 255, -128, 127  # the largest sums there are
    small = [rng.integers(-100, 101, (LANES, 2)).astype(np.float32) for _ in range(2)]  # whole, so that sums are exact
    return {
        "total": rng.integers(-(2**30), 2**30, LANES, np.int32),
        "unsigned": unsigned,
        "signed": signed,
        "sums": rng.integers(-1000, 1000, LANES).astype(np.float32),
        **{name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in zip("xy", small, strict=True)},
        "halves": np.arange(LANES, dtype=np.uint16),
        "floats": (rng.integers(-140 * 256, 127 * 256, LANES) / 256).astype(np.float32),  # half of them ties
    }


def _bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("cpu", ENVIRONMENTS)
def test_every_operation_on(cpu: str, tmp_path: Path) -> None:
    if cpu in CPUS and not runs_here(cpu):
        pytest.skip("this machine has fewer instructions")
    given = _inputs()
    assert tuple(given) == INPUTS
    np.savez(tmp_path / "inputs.npz", **given)  # type: ignore[arg-type]
    subprocess.run(
        [sys.executable, "-m", "tests.models.cpu.operations", tmp_path / "inputs.npz", tmp_path / "results.npz"],
        env=os.environ | ENVIRONMENTS[cpu],
        check=True,
        timeout=HANG_S,
    )
    results = np.load(tmp_path / "results.npz")

    products = given["unsigned"].astype(np.int32) * given["signed"]
    assert np.array_equal(results["dot_u8s8"], given["total"] + products.sum(axis=1))
    expected = given["sums"] + (_bf16(given["x"]) * _bf16(given["y"])).sum(axis=1)
    assert np.array_equal(results["dot_bf16"].view(np.float32), expected)
    for name in ("from_f16", "read_f16"):
        with np.errstate(invalid="ignore"):  # some of them are signalling NaN, of which Arm tells
            expected = given["halves"].view(np.float16).astype(np.float32)
        assert np.array_equal(results[name].view(np.float32), expected, equal_nan=True)
        assert np.array_equal(np.signbit(results[name].view(np.float32)), np.signbit(expected))
    rounded = torch.from_numpy(given["floats"]).bfloat16().float().numpy()
    assert np.array_equal(_bf16(results["round_bf16"]), rounded)
    assert np.array_equal(results["roundeven"].view(np.float32), np.round(given["floats"]))
    power, exact = results["exp2"].view(np.float32), np.exp2(given["floats"].astype(np.float64))
    assert np.allclose(power, exact, rtol=3e-7, atol=2.0**-125)
    assert not power[given["floats"] <= -127].any()
