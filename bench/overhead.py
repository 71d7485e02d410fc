"""What the server itself costs: HTTP, JSON, template, tokenizer, detokenizer and SSE, over a model that costs nothing.

CPU time is taken from the server's threads, so that the client beside it is not counted: the engine's thread
(scheduler, tree, sampler) by itself, all others together. Wall time is what the client sees.
"""

import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.endpoint import Endpoint, together
from bench.process import thread_cpu_s
from bench.servers import log_path
from bench.text import Prose

REQUESTS = 40  # one after another
LONG_TOKENS = 1000  # of a prompt that is worth tokenizing
STREAMED = {1: 1000, 32: 200}  # streams: tokens of each


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per request or per token."""

    outside_s: float  # CPU time of all threads but the engine's
    engine_s: float  # CPU time of the engine's thread
    wall_s: float

    def each(self, number: int, base: "Cost | None" = None) -> "Cost":
        """The cost beyond `base` of each of `number` requests or tokens."""
        base = base or Cost(0, 0, 0)
        return Cost(
            (self.outside_s - base.outside_s) / number,
            (self.engine_s - base.engine_s) / number,
            (self.wall_s - base.wall_s) / number,
        )


async def overhead(endpoint: Endpoint, prose: Prose) -> dict[str, Cost]:
    """Costs by what they are for. `endpoint`: a `free_server`."""
    assert endpoint.pid is not None
    pid, engine = endpoint.pid, _engine_thread(endpoint)

    async def cost_of(requests: Callable[[], Awaitable[object]]) -> Cost:
        before, start = thread_cpu_s(pid), time.perf_counter()
        await requests()
        wall_s, after = time.perf_counter() - start, thread_cpu_s(pid)
        spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
        return Cost(sum(spent.values()) - spent[engine], spent[engine], wall_s)

    async def one_by_one(texts: list[str]) -> None:
        for text in texts:
            await endpoint.chat([{"role": "user", "content": text}], 1)

    costs: dict[str, Cost] = {}
    for tokens in (20, LONG_TOKENS):
        texts = [prose.text(tokens) for _ in range(REQUESTS)]
        costs[f"a request of {tokens:,} new tokens, 1 output"] = (await cost_of(lambda t=texts: one_by_one(t))).each(
            REQUESTS
        )
    for streams, tokens in STREAMED.items():
        chats = [[{"role": "user", "content": prose.text(20)}] for _ in range(streams)]
        short = await cost_of(lambda c=chats: together(*(endpoint.chat(chat, 1) for chat in c)))
        full = await cost_of(lambda c=chats, t=tokens: together(*(endpoint.chat(chat, t) for chat in c)))
        costs[f"a streamed token, {streams} stream{'s' * (streams > 1)}"] = full.each(streams * (tokens - 1), short)
    return costs


def medians(runs: list[dict[str, Cost]]) -> dict[str, Cost]:
    return {
        what: Cost(*(statistics.median(getattr(run[what], part) for run in runs) for part in Cost.__slots__))
        for what in runs[0]
    }


def _engine_thread(endpoint: Endpoint) -> int:
    for line in log_path(endpoint.name).read_text().splitlines():
        if line.startswith('{"engine_thread"'):
            return json.loads(line)["engine_thread"]
    raise RuntimeError(f"{endpoint.name} did not say which of its threads is the engine's")
