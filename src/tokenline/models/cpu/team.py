"""A team of threads that runs one compiled function together.

The function is called as `function(thread, threads, *args)` by every member at once, the caller being thread 0. It
holds no GIL and shares out its work itself, so that it is done when thread 0 returns, whatever became of the others.
Between runs they sleep, so no core spins while the engine does its Python work.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[Callable[..., Any], tuple[Any, ...]]


class Team:
    """`size` threads, one of them the caller of `run`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._queues: list[SimpleQueue[_Work | None]] = [SimpleQueue() for _ in range(size - 1)]
        for number, queue in enumerate(self._queues, start=1):
            threading.Thread(target=_member, args=(number, size, queue), name=f"team-{number}", daemon=True).start()
        self._end = weakref.finalize(self, _dismiss, self._queues)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run in all threads; returns when thread 0 does, with what it returned."""
        for queue in self._queues:
            queue.put((function, args))
        return function(0, self.size, *args)

    def close(self) -> None:
        """Let the threads end."""
        self._end()


def _member(number: int, size: int, queue: "SimpleQueue[_Work | None]") -> None:
    while (work := queue.get()) is not None:
        function, args = work
        function(number, size, *args)
        del work, function, args  # a member asleep must not keep a model's memory


def _dismiss(queues: "list[SimpleQueue[_Work | None]]") -> None:
    for queue in queues:
        queue.put(None)
