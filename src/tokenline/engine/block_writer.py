"""Blocks on their way to the disk: a bounded queue and the one thread that writes to the store.

What does not fit into the queue is dropped by whoever brings it: the disk must never hold up the engine.
"""

import contextlib
import logging
import queue
import threading
import time
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from tokenline.engine.block_store import BlockStore

log = logging.getLogger(__name__)

IDLE_S = 1.0  # without work the thread looks this often for what other processes have changed


class NewBlock(NamedTuple):
    """A block to be written, or, without `kv`, one that is there and has been used."""

    parent: bytes
    key: bytes
    ids: np.ndarray
    used_ns: int  # see block_store.use_ns
    kv: np.ndarray | None


class _Signal(Enum):
    WAKE_UP = auto()
    STOP = auto()


WAKE_UP, STOP = _Signal.WAKE_UP, _Signal.STOP


class BlockWriter:
    """All public methods belong to the engine thread."""

    def __init__(self, store: BlockStore, max_queued: int):
        self._store = store
        self._queue: queue.Queue[tuple[int, NewBlock] | _Signal] = queue.Queue(max_queued)
        self._queued: set[bytes] = set()  # keys of the blocks to be written
        self._clears_wanted = 0  # in all; a block that is queued bears the number of its time
        self._clears_done = 0
        self._last_clears: dict[bytes, int] = {}  # by the beginning of the keys that it is for
        self._stopped = False
        self.written = 0
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        return not self._queue.full()

    @property
    def is_busy(self) -> bool:
        return bool(self._queued) or self.is_clearing

    @property
    def is_clearing(self) -> bool:
        """Whether what the store holds is yet to be removed."""
        return self._clears_done != self._clears_wanted

    def has(self, key: bytes) -> bool:
        """Whether the block waits to be written."""
        return key in self._queued

    def put(self, block: NewBlock, wait_s: float = 0.0) -> bool:
        """Queue a block; wait at most `wait_s` for room. False: there was none."""
        if block.kv is not None:
            self._queued.add(block.key)
        try:
            self._queue.put((self._clears_wanted, block), block=wait_s > 0, timeout=wait_s or None)
        except queue.Full:
            self._queued.discard(block.key)
            return False
        return True

    def clear(self, beginning: bytes = b"") -> None:
        """Remove all that is written, and all that is queued now, whose keys begin so."""
        self._last_clears = {**self._last_clears, beginning: self._clears_wanted + 1}  # the thread may be reading it
        self._clears_wanted += 1
        with contextlib.suppress(queue.Full):  # if so, the thread is awake
            self._queue.put_nowait(WAKE_UP)

    def close(self, within_s: float) -> None:
        """Write what is queued, as far as the time allows, and stop."""
        deadline_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._queue.put(STOP, timeout=within_s)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            try:
                if not self._do_next():
                    return
            except Exception:  # nothing in here is worth more than a miss
                log.exception("the disk cache lost a block")

    def _do_next(self) -> bool:
        if self.is_clearing:
            wanted = self._clears_wanted
            for beginning, number in self._last_clears.items():
                if number > self._clears_done:
                    self._store.clear(beginning)
            self._clears_done = wanted
        try:
            item = self._queue.get(timeout=IDLE_S)
        except queue.Empty:
            self._store.refresh()
            return True
        if item is STOP:
            return False
        if item is WAKE_UP:
            return True
        clears, block = item
        try:
            if any(number > clears and block.key.startswith(key) for key, number in self._last_clears.items()):
                return True
            if block.kv is None:
                self._store.touch(block.key, block.used_ns)
            elif self._store.write(block.parent, block.key, block.ids, block.kv, block.used_ns):
                self.written += 1
        finally:
            self._queued.discard(block.key)
        return True
