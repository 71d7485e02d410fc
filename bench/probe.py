"""`python -m bench.probe URL PID`: what others notice of a server while something else is done to it.

A process of its own, so that whoever attacks does not slow down the watch. It asks for `/health` again and again, reads
a stream without end, asks short questions, each on a new connection as a newcomer does, and reads the server's memory.
A line on stdin asks for what was seen since the last one; the end of stdin ends it.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import httpx

from bench.process import resident_bytes

HEALTH_EACH_S = 0.02
NEWCOMER_EACH_S = 0.5
PATIENCE_S = 120.0


@dataclass(slots=True)
class Seen:
    """What the probe has noticed since it was last asked."""

    health_s: float = 0.0  # the slowest answer to /health, one that has not come yet included
    gap_s: float = 0.0  # the longest time between two events of the stream, the running one included
    newcomer_s: float = 0.0  # the longest that a chat of 4 tokens took, one that has not ended yet included
    resident: int = 0  # bytes now
    peak: int = 0  # bytes, the most that was seen
    failures: int = 0  # answers that were no 200, streams that ended with an error


class Probe:
    def __init__(self, url: str, pid: int):
        self._pid = pid
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S)
        self._seen = Seen()
        self._asked_at = self._event_at = self._came_at = time.monotonic()
        self._is_asking = self._is_newcomer_there = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            watches = [
                group.create_task(self._ask()),
                group.create_task(self._read()),
                group.create_task(self._come()),
                group.create_task(self._weigh()),
            ]
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
            while await reader.readline():
                print(json.dumps(asdict(self.take())), flush=True)
            for watch in watches:
                watch.cancel()
        await self._http.aclose()

    def take(self) -> Seen:
        """What was noticed since the last time."""
        now, seen = time.monotonic(), self._seen
        if self._is_asking:
            seen.health_s = max(seen.health_s, now - self._asked_at)
        seen.gap_s = max(seen.gap_s, now - self._event_at)
        if self._is_newcomer_there:
            seen.newcomer_s = max(seen.newcomer_s, now - self._came_at)
        seen.resident = resident_bytes(self._pid)
        self._seen = Seen()
        # What is being waited for counts from here on.
        self._asked_at, self._event_at, self._came_at = max(self._asked_at, now), now, max(self._came_at, now)
        return seen

    async def _ask(self) -> None:
        while True:
            self._asked_at, self._is_asking = time.monotonic(), True
            try:
                answer = await self._http.get("/health")
                self._seen.failures += answer.status_code != 200
            except httpx.HTTPError:
                self._seen.failures += 1
            self._is_asking = False
            self._seen.health_s = max(self._seen.health_s, time.monotonic() - self._asked_at)
            await asyncio.sleep(HEALTH_EACH_S)

    async def _read(self) -> None:
        body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        while True:
            ended = False
            try:
                async with self._http.stream("POST", "/v1/completions", json=body) as answer:
                    async for line in answer.aiter_lines():
                        if line:
                            now = time.monotonic()
                            self._seen.gap_s = max(self._seen.gap_s, now - self._event_at)
                            self._event_at = now
                        ended |= line == "data: [DONE]"
            except httpx.HTTPError:
                pass
            self._seen.failures += not ended
            await asyncio.sleep(0 if ended else 0.1)

    async def _come(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "ignore_eos": True}
        while True:
            self._came_at, self._is_newcomer_there = time.monotonic(), True
            try:
                async with httpx.AsyncClient(base_url=str(self._http.base_url), timeout=PATIENCE_S) as http:
                    answer = await http.post("/v1/chat/completions", json=body)
                self._seen.failures += answer.status_code != 200
            except httpx.HTTPError:
                self._seen.failures += 1
            self._is_newcomer_there = False
            self._seen.newcomer_s = max(self._seen.newcomer_s, time.monotonic() - self._came_at)
            await asyncio.sleep(NEWCOMER_EACH_S)

    async def _weigh(self) -> None:
        while True:
            try:
                self._seen.peak = max(self._seen.peak, resident_bytes(self._pid))
            except (OSError, RuntimeError):
                self._seen.failures += 1
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(Probe(sys.argv[1], int(sys.argv[2])).run())
