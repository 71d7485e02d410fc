"""Memory for the KV pool, ahead of its use.

The system promises a pool's memory, and finds and clears a page of it when that is first touched. Left to the kernels,
this happens within a request: on a virtual machine whose host has to find the page as well it took 4.5 ms for 2 MiB, a
tenth of a cached request's time to its first token. So a thread touches what will be used next, while the model has
nothing to do. It changes no byte, whatever else goes on: MADV_POPULATE_WRITE (Linux 5.14) only has pages made. Where
the system does not know it, nothing is done.
"""

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

RESERVE_BYTES = 1024 * 1024 * 1024  # so much is ready beyond what has been used so far, or a quarter of the pool
STEP_BYTES = 4 * 1024 * 1024  # made at a time; a smaller pool is not worth a thread
IDLE_S = 0.02  # so long after a step the model is taken to have nothing to do

_MADV_POPULATE_WRITE = 23


class Populator:
    """Keeps the next blocks of `arrays` ready. Each array is one stretch of memory, block after block."""

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
        self.populated = 0  # blocks, from the first on
        if sys.platform == "linux" and block_bytes * num_blocks > STEP_BYTES:
            threading.Thread(target=self._run, name="populate", daemon=True).start()

    @contextmanager
    def step(self, blocks: int) -> Iterator[None]:
        """Around a step of the model: the first so many blocks are in use then, or have been."""
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
        """Wait until blocks are missing while the model is idle, or nearly all of them are; up to where they are."""
        while True:
            end = min(self._num_blocks, self._used + self._reserve)
            if self.populated >= end:
                self._used_more.wait()
                self._used_more.clear()
                continue
            if self.populated < end - self._reserve * 3 // 4:
                return end
            seen = self._steps
            self._idle.wait()
            time.sleep(IDLE_S)
            if self._steps == seen:
                return end

    def _run(self) -> None:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        while self.populated < self._num_blocks:
            end = self._wait_for_need()
            first, last = self.populated, min(end, self.populated + self._step)
            for address, size in self._places:
                start = (address + first * size) // mmap.PAGESIZE * mmap.PAGESIZE
                if madvise(start, address + last * size - start, _MADV_POPULATE_WRITE):
                    return  # an older system, or no memory, of which whoever uses the block will hear
            self.populated = last
