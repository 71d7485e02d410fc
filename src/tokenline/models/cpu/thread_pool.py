"""A pool of threads that run one compiled function together.

Every thread calls `function(thread, threads, *args)`; the caller of `run` is thread 0. The function releases the GIL
and divides its work itself, so the work is done when thread 0 returns, even if another thread was late. Between runs
the threads sleep, so no core spins while the engine does its Python work.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """`size` threads, one of them the caller of `run`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._queues: list[SimpleQueue[_Work | None]] = [SimpleQueue() for _ in range(size - 1)]
        for number, queue in enumerate(self._queues, start=1):
            threading.Thread(target=_worker, args=(number, size, queue), name=f"kernels-{number}", daemon=True).start()
        self._end = weakref.finalize(self, _shut_down, self._queues)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run in all threads; returns when thread 0 does, with what it returned."""
        for queue in self._queues:
            queue.put((function, args))
        return function(0, self.size, *args)

    def close(self) -> None:
        """Let the threads end."""
        self._end()


def _worker(number: int, size: int, queue: "SimpleQueue[_Work | None]") -> None:
    while (work := queue.get()) is not None:
        function, args = work
        function(number, size, *args)
        del work, function, args  # a sleeping thread must not keep a model's memory alive


def _shut_down(queues: "list[SimpleQueue[_Work | None]]") -> None:
    for queue in queues:
        queue.put(None)
