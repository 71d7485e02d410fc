"""Compiling the kernels where their machine code cannot be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S

ON_A_FULL_DISK = """
import errno
from tokenline.models import kernel_cache

def full(path, contents):
    raise OSError(errno.ENOSPC, "No space left on device")

kernel_cache._write = full
from tokenline.models.cpu.compile import compile_kernels
kernels = compile_kernels()
import numpy as np
from tokenline.models.cpu.quantise import quantise_q8
assert quantise_q8(np.ones((1, 32), np.float32))[0].max() == 127
assert kernels.panel_product.address and kernels.forward.signatures
"""


@pytest.mark.slow  # compiles everything
def test_a_full_disk_costs_the_next_start_its_kernels_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be kept for the next start: [Errno 28]" in done.stderr
