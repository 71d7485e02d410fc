"""Prefaults the KV pool: has the system provide its memory before it is used.

The system only promises a pool's memory. It finds and clears a page when the page is first touched, which would happen
within a request: on a virtual machine whose host had to find the page as well, this took 4.5 ms for 2 MiB, a tenth of a
cached request's time to first token. So a thread has the next pages made while the model is idle. It changes no byte,
whatever else is going on: MADV_POPULATE_WRITE (Linux 5.14) only has pages made. Older systems do nothing here.
"""

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

RESERVE_BYTES = 1024 * 1024 * 1024  # kept ready beyond the blocks used so far; at most a quarter of the pool
STEP_BYTES = 4 * 1024 * 1024  # prefaulted at a time; a smaller pool gets no thread
IDLE_S = 0.02  # the model counts as idle this long after a step

_MADV_POPULATE_WRITE = 23


class Prefaulter:
    """Keeps the next blocks of `arrays` ready. Each array is contiguous memory, block after block."""

    def __init__(self, arrays: Sequence[np.ndarray], num_blocks: int):
        self._places = [(array.ctypes.data, array.nbytes // num_blocks) for array in arrays]
        block_bytes = sum(size for _, size in self._places)
        self._num_blocks = num_blocks
        self._reserve = min(RESERVE_BYTES // block_bytes, num_blocks // 4)
        self._step = max(1, STEP_BYTES // block_bytes)
        self._used = 0
        self._used_more = threading.Event()
        self._steps = 0  # of the model, begun
        self._idle = threading.Event()
        self._idle.set()
        self.prefaulted = 0  # blocks, from the first on
        if sys.platform == "linux" and block_bytes * num_blocks > STEP_BYTES:
            threading.Thread(target=self._run, name="prefault", daemon=True).start()

    @contextmanager
    def step(self, blocks: int) -> Iterator[None]:
        """Wrap a step of the model, which uses blocks below number `blocks`."""
        if blocks > self._used:
            self._used = blocks
            self._used_more.set()
        self._steps += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def _wait_for_need(self) -> int:
        """Wait until blocks are to be prefaulted (the model is idle, or few are ready); returns their end."""
        while True:
            end = min(self._num_blocks, self._used + self._reserve)
            if self.prefaulted >= end:
                self._used_more.wait()
                self._used_more.clear()
                continue
            if self.prefaulted < end - self._reserve * 3 // 4:
                return end
            seen = self._steps
            self._idle.wait()
            time.sleep(IDLE_S)
            if self._steps == seen:
                return end

    def _run(self) -> None:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        while self.prefaulted < self._num_blocks:
            end = self._wait_for_need()
            first, last = self.prefaulted, min(end, self.prefaulted + self._step)
            for address, size in self._places:
                start = (address + first * size) // mmap.PAGESIZE * mmap.PAGESIZE
                if madvise(start, address + last * size - start, _MADV_POPULATE_WRITE):
                    return  # the system is older, or has no memory left; then using the block fails
            self.prefaulted = last
