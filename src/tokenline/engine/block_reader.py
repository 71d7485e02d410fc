"""Blocks on their way from the disk: one thread that reads what sequences wait for, one line after another.

The engine thread starts a restore and takes what has arrived between two steps; the thread never touches the pool.
"""

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenline.engine.block_store import BlockStore, use_ns
from tokenline.engine.read_or_compute import PROBE_BYTES, ReadOrCompute, measure_read_speed
from tokenline.engine.sequence import Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Restore:
    """Blocks number `first` to `last - 1` of a sequence's line. Given up once the sequence has another one or none."""

    sequence: Sequence
    keys: list[bytes]  # of the whole line, see `prefix_hashes`
    first: int
    last: int
    deadline_s: float  # time.monotonic()

    @property
    def is_wanted(self) -> bool:
        return self.sequence.restore is self


class Arrival(NamedTuple):
    """A block that has been read; without `kv`: no more of this restore will come."""

    restore: Restore
    number: int = -1  # of the block in the line
    kv: np.ndarray | None = None


class BlockReader:
    """Reads ahead `max_arrived` blocks at most. All public methods belong to the engine thread."""

    def __init__(self, store: BlockStore, rule: ReadOrCompute, block_size: int, max_arrived: int):
        self._store = store
        self._rule = rule
        self._block_size = block_size
        self._wanted: queue.SimpleQueue[Restore | None] = queue.SimpleQueue()
        self._arrived: queue.Queue[Arrival] = queue.Queue(max_arrived)
        self._news = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="kv-reader", daemon=True)
        self._thread.start()

    def start(self, restore: Restore) -> None:
        self._wanted.put(restore)

    def wait(self, seconds: float) -> None:
        """Until something has arrived since the last `arrived`."""
        self._news.wait(seconds)

    def arrived(self) -> list[Arrival]:
        """What has arrived, in order; a bounded amount, so that running streams are not held up for long."""
        self._news.clear()
        arrivals: list[Arrival] = []
        try:
            while len(arrivals) < self._arrived.maxsize:
                arrivals.append(self._arrived.get_nowait())
        except queue.Empty:
            return arrivals
        self._news.set()  # there may be more
        return arrivals

    def close(self) -> None:
        self._stopped = True
        self._wanted.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        probe_bytes = min(PROBE_BYTES, self._store.max_bytes // 16)
        self._rule.read_bytes_per_s = measure_read_speed(self._store.folder, probe_bytes)
        while not self._stopped and self._serve_next():
            pass

    def _serve_next(self) -> bool:
        restore = self._wanted.get()
        if restore is None:
            return False
        try:
            self._read(restore)
        except Exception:  # nothing in here is worth more than a miss
            log.exception("the disk cache failed to read a line")
        self._deliver(Arrival(restore))
        return True

    def _read(self, restore: Restore) -> None:
        size, now_ns = self._block_size, time.time_ns()
        for number in range(restore.first, restore.last):
            if not restore.is_wanted or self._stopped:
                return
            started_s = time.perf_counter()
            ids = restore.sequence.ids[number * size : (number + 1) * size]
            kv = self._store.read(restore.keys[number], restore.keys[number + 1], ids, use_ns(now_ns, number))
            if kv is None:
                return
            self._rule.saw_read(kv.nbytes, time.perf_counter() - started_s)
            self._deliver(Arrival(restore, number, kv))

    def _deliver(self, arrival: Arrival) -> None:
        while not self._stopped:
            try:
                self._arrived.put(arrival, timeout=0.1)
            except queue.Full:
                continue
            self._news.set()
            return
