"""`python -m bench.attacks`: every bomb of `bench.bombs` against a real server, with a probe beside it, as a table.

For each: how it ended, the slowest `/health` (limit 50 ms), the longest gap of a running stream (limit 0.5 s), how long
a newcomer's chat of 4 tokens took (limit 1 s), and what the server's memory has grown by at its most and afterwards.
Where the machine itself is busy the quiet row shows it.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from bench import servers
from bench.bombs import all_bombs
from bench.bombs.bomb import TEXT, Bomb, Target
from bench.probe import Seen
from tokenline.models.fetch import resolve_model

HEALTH_S = 0.05
GAP_S = 0.5
NEWCOMER_S = 1.0
MEMORY = 256 << 20  # bytes that the process may have grown by after an attack: docs/security.md adds up why
SETTLE_S = 1.0
KV_MIB = 256
HANG_S = 300.0


@asynccontextmanager
async def probe(target: Target) -> AsyncIterator["Watch"]:
    """A probe of the target, until the end of the block."""
    command = [sys.executable, "-m", "bench.probe", target.url, str(target.pid)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Watch(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()


class Watch:
    """A probe process that can be asked."""

    def __init__(self, process: asyncio.subprocess.Process):
        self._process = process

    async def take(self) -> Seen:
        """What was noticed since the last time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(b"\n")
        await stdin.drain()
        line = await stdout.readline()
        assert line, "the probe has ended"
        return Seen(**json.loads(line))


def target_of(url: str, pid: int) -> Target:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return Target(url, pid, httpx.AsyncClient(base_url=url, timeout=HANG_S, limits=limits))


async def outcome_of(bomb: Bomb, target: Target) -> str:
    """How it ended; "hangs" if it did not in time."""
    try:
        async with asyncio.timeout(HANG_S):
            return await bomb.attack(target)
    except TimeoutError:
        return "hangs"
    except httpx.TransportError as error:
        return type(error).__name__


async def fill_cache(target: Target) -> None:
    """So that all of the KV cache's memory, which a server is given, is in use before anything is attacked."""
    for salt in range(64):
        stats = (await target.http.get("/stats")).json()
        if stats["blocks_free"] < stats["blocks_total"] // 8:
            break
        body = {"prompt": [7] * 2000, "max_tokens": 1, "cache_salt": f"fill-{salt}"}
        (await target.http.post(TEXT, json=body)).raise_for_status()


def _row(name: str, outcome: str, took_s: float, seen: Seen, before: int, wrong: list[str]) -> str:
    waits = (seen.health_s, seen.gap_s, seen.newcomer_s)
    figures = [f"{took_s:.1f} s", *(f"{wait_s * 1e3:.0f} ms" for wait_s in waits)]
    figures += [f"{(size - before) / 2**20:+.0f} MiB" for size in (seen.peak, seen.resident)]
    return f"| {name} | {outcome} | {' | '.join(figures)} | {', '.join(wrong)} |"


async def run(model: Path, threads: int, only: list[str]) -> int:
    """Print the table. Returns how many bombs broke a limit."""
    bombs = [bomb for bomb in all_bombs() if not only or any(part in bomb.name for part in only)]
    broken = 0
    print(
        "| attack | outcome | took | slowest /health | longest gap | slowest newcomer | memory, most | after | beyond |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    async with servers.tokenline(model, threads, "--kv-cache-memory", f"{KV_MIB}MiB") as endpoint:
        assert endpoint.pid is not None
        target = target_of(endpoint.url, endpoint.pid)
        await fill_cache(target)
        async with probe(target) as watch:
            await asyncio.sleep(3)
            await watch.take()
            await asyncio.sleep(5)
            quiet = await watch.take()
            print(_row("(none)", "", 5.0, quiet, quiet.resident, []))
            for bomb in bombs:
                before = (await watch.take()).resident
                started = time.monotonic()
                outcome = await outcome_of(bomb, target)
                took_s = time.monotonic() - started
                await asyncio.sleep(SETTLE_S)
                seen = await watch.take()
                wrong = [] if outcome in bomb.expects else ["outcome"]
                wrong += ["/health"] * (seen.health_s > HEALTH_S) + ["gap"] * (seen.gap_s > GAP_S)
                wrong += ["newcomer"] * (seen.newcomer_s > NEWCOMER_S)
                wrong += ["memory"] * (seen.resident - before > MEMORY) + ["failures"] * (seen.failures > 0)
                broken += bool(wrong)
                print(_row(bomb.name, outcome, took_s, seen, before, wrong), flush=True)
        await target.http.aclose()
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, GGUF or hub id; without it the default model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of bombs")
    options = parser.parse_args()
    sys.exit(asyncio.run(run(resolve_model(options.model), options.threads, options.only)) > 0)


if __name__ == "__main__":
    main()
