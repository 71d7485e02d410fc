"""Where large work is done that is not the engine's: on two threads of its own, beside the event loop.

What is small is done at once, on the loop. What is large waits for a thread, so that one client's book does not hold up
everybody's streams; and no more than `MAX_WAITING` jobs wait, since each holds what came in with its request.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tokenline.engine.request import RequestRefused

LARGE = 16 * 1024  # bytes of text or JSON; of the order of a millisecond's work
THREADS = 2
MAX_WAITING = 64

T = TypeVar("T")


class Aside:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "aside")
        self._unfinished = 0

    async def run(self, size: int, make: Callable[[], T]) -> T:
        """What `make` gives: now, or on a thread if it is about so many bytes. Raises RequestRefused for too many.

        Whoever is cancelled leaves the queue; what has begun goes on, and its result is dropped.
        """
        if size <= LARGE:
            return make()
        if self._unfinished >= THREADS + MAX_WAITING:
            raise RequestRefused("queue_full", "Too many large requests are being read already; try again later.")
        self._unfinished += 1
        job = self._threads.submit(make)
        job.add_done_callback(self._finished(asyncio.get_running_loop()))
        return await asyncio.wrap_future(job)

    def _finished(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        def count() -> None:
            self._unfinished -= 1

        def done(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(count)

        return done

    def close(self) -> None:
        """Begin nothing more. What has begun ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
