"""`python -m bench.serving`: what matters to users besides speed, as a Markdown table of medians.

- stalls: the longest gap between two tokens of a running stream while a prompt of 7,900 tokens is prefilled
- overhead: what a request and a streamed token cost outside of the model
- start: from the start of the process to the first streamed token
- memory: what a held token costs by arithmetic, and what the process grows by
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import servers
from bench.overhead import medians, overhead
from bench.process import resident_bytes
from bench.stalls import Stall, stall
from bench.startup import start_to_first_token_s
from bench.text import Prose
from tokenline.models.fetch import resolve_model
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer

LONG_PROMPT = 7900  # tokens; SmolLM2's context is 8,192
HELD_PROMPTS, HELD_TOKENS = 8, 3000  # many thousands of tokens to hold

Row = tuple[str, str]


class Bench:
    def __init__(self, model: Path, threads: int, repeats: int):
        self.model = model
        self.threads = threads
        self.repeats = repeats
        self._renderer = Renderer.from_model(model)

    def prose(self) -> Prose:
        return Prose(self._renderer, str(time.time_ns()))

    async def stalls(self) -> AsyncIterator[Row]:
        async with servers.tokenline(self.model, self.threads) as endpoint:
            await endpoint.complete(self.prose().text(1000), 8)
            for streams in (1, 4):
                runs = [await stall(endpoint, self.prose(), streams, LONG_PROMPT) for _ in range(self.repeats)]
                middle = Stall(*(statistics.median(getattr(run, part) for run in runs) for part in Stall.__slots__))
                name = f"{streams} stream{'s' * (streams > 1)}"
                yield f"{name}: gap between tokens, quiet", f"{middle.quiet_median_s * 1e3:.1f} ms"
                yield f"{name}: longest gap, quiet", f"{middle.quiet_longest_s * 1e3:.0f} ms"
                yield f"{name}: gap while {LONG_PROMPT:,} tokens are prefilled", f"{middle.median_s * 1e3:.0f} ms"
                yield f"{name}: longest gap meanwhile", f"{middle.longest_s * 1e3:.0f} ms"
                yield f"{name}: prompt tokens in a chunk, mean", f"{middle.chunk_tokens:.0f}"
                yield f"{name}: first token of the long prompt", f"{middle.first_token_s:.1f} s"
                yield f"{name}: the same without streams", f"{middle.first_token_alone_s:.1f} s"

    async def overhead(self) -> AsyncIterator[Row]:
        async with servers.free_server(self.model, self.threads) as endpoint:
            await overhead(endpoint, self.prose())
            runs = [await overhead(endpoint, self.prose()) for _ in range(self.repeats)]
        for what, cost in medians(runs).items():
            outside, engine, wall = (f"{part * 1e6:,.0f} us" for part in (cost.outside_s, cost.engine_s, cost.wall_s))
            yield what, f"{outside} CPU, engine thread {engine}, wall {wall}"

    async def start(self) -> AsyncIterator[Row]:
        with tempfile.TemporaryDirectory() as folder:
            first = start_to_first_token_s(self.model, self.threads, Path(folder))
            later = [start_to_first_token_s(self.model, self.threads, Path(folder)) for _ in range(self.repeats)]
        yield "start to first token, no kernel compiled yet (once)", f"{first:.1f} s"
        yield "start to first token, kernels cached", f"{statistics.median(later):.2f} s"

    async def memory(self) -> AsyncIterator[Row]:
        computed = load_model(self.model, device="cpu").kv_bytes_per_token()
        grown: list[float] = []
        for _ in range(self.repeats):
            async with servers.tokenline(self.model, self.threads) as endpoint:
                assert endpoint.pid is not None
                await endpoint.complete(self.prose().text(HELD_TOKENS), 8)  # so that working memory is there
                before, held = resident_bytes(endpoint.pid), 0
                for _ in range(HELD_PROMPTS):
                    answer = await endpoint.complete(self.prose().text(HELD_TOKENS), 1)
                    held += answer.prompt_tokens - answer.cached_tokens
                grown.append((resident_bytes(endpoint.pid) - before) / held)
        yield "a held token by arithmetic", f"{computed:,} bytes"
        held = HELD_PROMPTS * HELD_TOKENS
        yield f"what the process grew by for each of {held:,} held tokens", f"{statistics.median(grown):,.0f} bytes"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model that `tokenline serve` takes (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--only", default="stalls,overhead,start,memory")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    model = resolve_model(arguments.model)
    bench = Bench(model, arguments.threads, arguments.repeats)
    parts = {"stalls": bench.stalls, "overhead": bench.overhead, "start": bench.start, "memory": bench.memory}
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(parts):
        parser.error(f"--only: {', '.join(sorted(unknown))} is not one of {', '.join(parts)}")
    print(f"{model.name}, {arguments.threads} threads, medians of {arguments.repeats}, {time.strftime('%Y-%m-%d')}\n")
    print("| what | median |\n|---|---|")
    for name in chosen:
        async for what, figure in parts[name]():
            print(f"| {what} | {figure} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
