"""`python -m bench.cache`: what the prefix cache itself costs, without a model.

A tree of 1M tokens (a shared system prompt, chats of several turns hanging off it) is asked for a 32k prompt, grows by
one, and gives up blocks. Figures are medians of many, in microseconds; the last column is the share of the time that
prefilling one token takes at `--prefill` tokens a second.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.eviction_log import EvictionLog
from tokenline.engine.prefix_cache import PrefixCache
from tokenline.engine.prefix_hashes import PrefixHashes
from tokenline.engine.request import Namespace
from tokenline.engine.settings import EngineSettings

BLOCK_SIZE = 32
HELD_TOKENS = 1_000_000
SYSTEM_TOKENS = 2_000
CHAT_TOKENS = 3_000
PROMPT_TOKENS = 32_768
ANYONE = Namespace()


def insert(pool: BlockPool, cache: PrefixCache, ids: np.ndarray) -> None:
    """Hold a line as the scheduler would: share what matches, take blocks for the rest, let go."""
    match = cache.lookup(ANYONE, ids)
    shared = match.blocks[: match.length // BLOCK_SIZE]
    for block in shared:
        pool.hold(block)
    blocks = shared + [pool.allocate() for _ in range(-(-len(ids) // BLOCK_SIZE) - len(shared))]
    cache.insert(ANYONE, ids, blocks)
    for block in blocks:
        pool.release(block)


def median_us(repeats: int, function: Callable[[int], object]) -> float:
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        function(repeat)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", type=float, default=2000, help="tokens a second to compare with")
    prefill_us = 1e6 / parser.parse_args().prefill
    draw = np.random.default_rng(0)

    def fresh(tokens: int) -> np.ndarray:
        return draw.integers(0, 50_000, tokens, dtype=np.int32)

    tracemalloc.start()
    pool = BlockPool(2 * HELD_TOKENS // BLOCK_SIZE, BLOCK_SIZE)
    log = EvictionLog(BLOCK_SIZE, time.monotonic, EngineSettings().evictions_remembered)
    keys = PrefixHashes(BLOCK_SIZE)
    cache = PrefixCache(pool, lambda tail: log.record(keys.of(tail.namespace, tail.ids), tail.start))
    before = tracemalloc.get_traced_memory()[0]
    long_prompt = fresh(PROMPT_TOKENS)
    insert(pool, cache, long_prompt)
    system = fresh(SYSTEM_TOKENS)
    chats = []
    while cache.held_tokens < HELD_TOKENS:
        chats.append(np.concatenate([system, fresh(CHAT_TOKENS)]))
        insert(pool, cache, chats[-1])
    bytes_per_token = (tracemalloc.get_traced_memory()[0] - before) / cache.held_tokens
    tracemalloc.stop()
    asked = np.concatenate([long_prompt[:-1], fresh(1)])
    turn = np.concatenate([chats[7], fresh(60)])
    rows = [
        (f"match of a {PROMPT_TOKENS:,}-token prompt, all held", 200, lambda _: cache.lookup(ANYONE, asked)),
        ("match of a 5,060-token turn of a chat", 500, lambda _: cache.lookup(ANYONE, turn)),
        ("match of a prompt that is not held", 500, lambda _: cache.lookup(ANYONE, asked[::-1])),
        (
            "what is remembered of evictions of a 32k prompt",
            50,
            lambda n: log.ask(keys.of(ANYONE, asked[:: 1 - n % 2 * 2]), 0),
        ),
        ("hold a new 5,000-token chat on the system prompt", 50, lambda n: insert(pool, cache, chat(n))),
        ("evict one block", 200, lambda _: cache.evict(1)),
        ("evict 100 blocks", 50, lambda _: cache.evict(100)),
    ]
    made = [np.concatenate([system, fresh(CHAT_TOKENS)]) for _ in range(50)]

    def chat(number: int) -> np.ndarray:
        return made[number]

    print(
        f"{cache.held_tokens:,} tokens held, {len(chats)} chats; {bytes_per_token:.1f} bytes a held token beside the KV"
    )
    print("\n| operation | median | in prefilled tokens |\n|---|---|---|")
    for name, repeats, function in rows:
        microseconds = median_us(repeats, function)
        print(f"| {name} | {microseconds:,.0f} us | {microseconds / prefill_us:.2f} |")


if __name__ == "__main__":
    main()
