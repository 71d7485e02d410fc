"""How long running streams wait while another client's long prompt is prefilled.

Some streams run; after a while a prompt nearly as long as the context comes. A gap is the time between two chunks of a
stream as its client sees them. Those that overlap the long prompt's prefill are told from the others.
"""

import asyncio
import statistics
from dataclasses import dataclass
from itertools import pairwise

from bench.endpoint import Answer, Endpoint, together
from bench.text import Prose

QUIET_S = 1.5  # how long the streams run before the long prompt comes
STREAM_TOKENS = 700  # enough to go on until the long prompt is prefilled


@dataclass(frozen=True, slots=True)
class Stall:
    """Times in seconds."""

    quiet_median_s: float  # gaps while only the streams run
    quiet_longest_s: float
    median_s: float  # gaps during the prefill
    longest_s: float
    chunk_tokens: float  # of the long prompt in a step: each step gives every stream one token
    first_token_s: float  # of the long prompt
    first_token_alone_s: float  # of one as long that has the server for itself


async def stall(endpoint: Endpoint, prose: Prose, streams: int, prompt_tokens: int) -> Stall:
    alone = await endpoint.complete(prose.text(prompt_tokens), 1)
    prompt = prose.text(prompt_tokens)  # made before the streams run: that takes the client a while
    requests = together(*(endpoint.complete(prose.text(20), STREAM_TOKENS) for _ in range(streams)))

    async def interrupt() -> Answer:
        await asyncio.sleep(QUIET_S)
        return await endpoint.complete(prompt, 1)

    answers, long = await asyncio.gather(requests, interrupt())
    begin, end = long.sent_s, long.sent_s + long.first_token_s
    quiet: list[float] = []
    held_up: list[float] = []
    for answer in answers:
        arrivals = [answer.sent_s + arrival for arrival in answer.arrivals_s]
        if arrivals[-1] < end:
            raise RuntimeError("a stream ended before the long prompt was prefilled: STREAM_TOKENS is too small")
        for earlier, later in pairwise(arrivals):
            (held_up if later > begin and earlier < end else quiet).append(later - earlier)
    quiet_median_s = statistics.median(quiet)
    # The first gaps come before the first chunk, while the server reads and tokenizes the prompt.
    held_up = [gap for gap in held_up if gap > 2 * quiet_median_s]
    return Stall(
        quiet_median_s,
        max(quiet),
        statistics.median(held_up),
        max(held_up),
        long.prompt_tokens * streams / len(held_up),
        long.first_token_s,
        alone.first_token_s,
    )
