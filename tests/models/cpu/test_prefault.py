"""Memory is prefaulted ahead of its use, as much as promised, while the model is idle; and no byte changes."""

import ctypes
import mmap
import sys
import threading
import time

import numpy as np
import pytest

from tests.limits import HANG_S
from tokenline.models.cpu.prefault import Prefaulter

BLOCK = 64 * 1024
BLOCKS = 400

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can make pages ahead of their use")


def share_resident(array: np.ndarray, start: int, end: int) -> float:
    """How much of these bytes of an array the system has made pages for."""
    first = -(-(array.ctypes.data + start) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (array.ctypes.data + end - first) // mmap.PAGESIZE
    vector = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), vector) == 0
    return sum(page & 1 for page in vector) / pages


def until_prefaulted(prefaulter: Prefaulter, blocks: int) -> None:
    deadline = time.monotonic() + HANG_S
    while prefaulter.prefaulted < blocks:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_is_ready_stays_ahead_of_what_is_used() -> None:
    keys, values = (np.zeros((BLOCKS, BLOCK // 2), np.uint8) for _ in range(2))
    prefaulter = Prefaulter((keys, values), BLOCKS)
    until_prefaulted(prefaulter, 100)
    with prefaulter.step(150):
        until_prefaulted(prefaulter, 150)  # too few are left to wait for a pause
    until_prefaulted(prefaulter, 250)
    with prefaulter.step(100):  # blocks that are used again need nothing
        pass
    assert prefaulter.prefaulted == 250
    for array in (keys, values):
        assert share_resident(array, 0, 250 * BLOCK // 2) == 1
        assert not array.any()


def test_a_step_that_needs_little_is_left_alone() -> None:
    blocks = np.zeros((BLOCKS, BLOCK), np.uint8)
    prefaulter = Prefaulter((blocks,), BLOCKS)
    until_prefaulted(prefaulter, 100)
    with prefaulter.step(10):
        time.sleep(0.1)
        assert prefaulter.prefaulted == 100
    until_prefaulted(prefaulter, 110)


def test_no_byte_changes_that_is_written_meanwhile() -> None:
    blocks = np.zeros((BLOCKS, BLOCK), np.uint8)
    prefaulter = Prefaulter((blocks,), BLOCKS)

    def write() -> None:
        for block in range(BLOCKS):
            blocks[block] = block % 251

    writer = threading.Thread(target=write)
    writer.start()
    for used in range(0, BLOCKS + 1, 10):
        with prefaulter.step(used):
            pass
    until_prefaulted(prefaulter, BLOCKS)
    writer.join()
    assert np.array_equal(blocks, np.broadcast_to((np.arange(BLOCKS) % 251).astype(np.uint8)[:, None], blocks.shape))
