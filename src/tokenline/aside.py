"""Where work is done that would hold up others: on two threads of its own, beside an event loop.

No more than `MAX_WAITING` jobs wait, since each holds what came in with its request. Never asyncio's default executor:
one slow kind of work would take its threads from all others.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LARGE = 16 * 1024  # bytes of text or JSON; of the order of a millisecond's work
THREADS = 2
MAX_WAITING = 64

T = TypeVar("T")


class Declined(Exception):
    """A job that is not done. `code`: "queue_full" or "shutting_down"; the message is for the client."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Aside:
    """Belongs to the event loop."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, name)
        self._unfinished = 0
        self._closed = False

    async def run(self, make: Callable[[], T]) -> T:
        """What `make` gives, on a thread. Raises Declined.

        Whoever is cancelled leaves the queue; what has begun goes on, and its result is dropped.
        """
        if self._closed:
            raise _closing()
        if self._unfinished >= THREADS + MAX_WAITING:
            message = "Too much is being read and prepared for others already; try again later."
            raise Declined("queue_full", message)
        job = self._threads.submit(make)
        self._unfinished += 1
        job.add_done_callback(self._finished(asyncio.get_running_loop()))
        waiting = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if waiting.cancelled():  # the job was given up, and not whoever waits for it
                raise _closing() from None
            waiting.cancel()
            raise

    async def run_if_large(self, size: int, make: Callable[[], T]) -> T:
        """The same for work on about so many bytes; what is small is done at once, where it is asked for."""
        return await self.run(make) if size > LARGE else make()

    def _finished(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        def count() -> None:
            self._unfinished -= 1

        def done(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(count)

        return done

    def close(self) -> None:
        """Begin nothing more. What has begun ends by itself."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _closing() -> Declined:
    return Declined("shutting_down", "The server is shutting down.")
