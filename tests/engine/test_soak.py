"""Hundreds of requests that come, go and are given up at random, in a pool far too small for them, on a real engine.

No leak, no stuck request, no wrong answer: the ledger model tells what each answer must be, whatever became of the
request's blocks in between.
"""

import asyncio
import gc
import pathlib
import random
import tracemalloc
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

import tokenline
from tests.engine.ledger import LedgerModel, expected_answer
from tests.limits import HANG_S
from tokenline.engine import Engine, EngineSettings, FinishReason, Namespace, Request, RequestRefused, SamplingParams
from tokenline.engine.sequence import Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 64
BROKEN = 96  # the model's logits after this id are not numbers, and so the request ends with an error
NAMESPACES = [Namespace(), Namespace(caller="a"), Namespace(caller="b"), Namespace(caller="b", salt="x")]
CLIENTS = 24
EVICTIONS_REMEMBERED = 300  # so that this bound is reached and memory can be seen to be flat


class Soak:
    """Clients that send `requests` requests each time they are `run`."""

    def __init__(self, engine: Engine, seed: int):
        self.engine = engine
        self.draw = random.Random(seed)
        self.prefixes = [[self.draw.randrange(90) for _ in range(self.draw.randrange(90))] for _ in range(6)]
        self.chats: list[tuple[Namespace, list[int]]] = []
        self.number = 0
        self.seen: Counter[str] = Counter()

    async def run(self, requests: int) -> None:
        last = self.number + requests

        async def client() -> None:
            while self.number < last:
                self.number += 1
                await self.one(f"r{self.number}")

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def one(self, name: str) -> None:
        draw = self.draw
        request = self.make_request(name)
        how = draw.choices(
            ["to the end", "close", "cancel", "stop a choice", "reset", "too long"], [60, 12, 12, 6, 3, 7]
        )[0]
        if how == "too long":
            too_long = Request(name, np.zeros(BLOCK_SIZE * NUM_BLOCKS, np.int32), request.params)
            with pytest.raises(RequestRefused):
                await self.read(too_long, 10**6)
        elif how == "reset":
            await self.engine.reset_prefix_cache()
        elif how == "close":
            await self.read(request, draw.randrange(1, 6))
        elif how == "stop a choice":
            await self.read(request, 10**6, stop_choice=draw.randrange(request.n), after=draw.randrange(4))
        elif how == "cancel":
            task = asyncio.create_task(self.read(request, 10**6))
            for _ in range(draw.randrange(30)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                task.result()
        else:
            await self.read(request, 10**6)
        self.seen[how] += 1

    def make_request(self, name: str) -> Request:
        draw = self.draw
        namespace = draw.choice(NAMESPACES)
        if self.chats and draw.random() < 0.3:  # the next turn of a chat
            namespace, line = draw.choice(self.chats)
            prompt = [*line, draw.randrange(90), draw.randrange(90)]
        else:
            prefix = draw.choice(self.prefixes)
            prompt = prefix[: draw.randrange(len(prefix) + 1)] + [draw.randrange(97) for _ in range(draw.randrange(30))]
        prompt = prompt[-150:] or [5]
        stop_ids = frozenset(draw.randrange(97) for _ in range(draw.randrange(4)))
        params = SamplingParams(draw.randrange(1, 25), temperature=0, stop_ids=stop_ids)
        retention_s = draw.choice((None, None, 86400, 0))
        n = draw.choice([1, 1, 1, 1, 2, 5])
        return Request(name, np.asarray(prompt, np.int32), params, namespace, n, retention_s=retention_s)

    async def read(self, request: Request, steps: int, stop_choice: int | None = None, after: int = 0) -> None:
        """Read so many steps of a request and check them against the truth."""
        expected, reason = truth(request)
        ids: dict[int, list[int]] = {choice: [] for choice in range(request.n)}
        ended: dict[int, FinishReason] = {}
        uses = []
        async with aclosing(await self.engine.generate([request])) as stream:
            async for step in stream:
                assert step.choice not in ended, "a step after the end"
                ids[step.choice] += step.ids
                assert ids[step.choice] == expected[: len(ids[step.choice])], "a wrong answer"
                if step.finish_reason:
                    ended[step.choice] = step.finish_reason
                if step.cache_use:
                    uses.append(step.cache_use)
                    assert step.cache_use.cached + step.cache_use.computed == len(request.prompt_ids)
                    assert 0 <= step.cache_use.restored <= step.cache_use.cached < len(request.prompt_ids)
                steps -= 1
                if stop_choice is not None and len(ids[stop_choice]) >= after:
                    await self.engine.stop(request.request_id, stop_choice)
                    ended.setdefault(stop_choice, FinishReason.ABORT)
                if steps == 0:
                    return
        assert len(ended) == request.n, "an answer without an end"
        for choice, end in ended.items():
            if choice != stop_choice:
                assert end == reason
                assert reason is FinishReason.ERROR or ids[choice] == expected
        if stop_choice is None:
            assert len(uses) == 1 or (reason is FinishReason.ERROR and not expected)
            if reason is FinishReason.ERROR:
                assert max(map(len, ids.values())) == len(expected)
            else:
                self.chats = [*self.chats[-20:], (request.namespace, [*request.prompt_ids.tolist(), *expected])]
            self.seen[reason] += 1


def truth(request: Request) -> tuple[list[int], FinishReason]:
    """The answer that the model alone would give, and how it ends."""
    prompt, params = request.prompt_ids.tolist(), request.params
    if prompt[-1] == BROKEN:
        return [], FinishReason.ERROR
    answer = expected_answer(prompt, params.max_tokens, params.stop_ids | {BROKEN})
    if answer[-1] in params.stop_ids:
        return answer, FinishReason.STOP
    if answer[-1] == BROKEN and len(answer) < params.max_tokens:
        return answer, FinishReason.ERROR
    return answer, FinishReason.LENGTH


async def idle(engine: Engine) -> None:
    async with asyncio.timeout(HANG_S):
        while not engine.core.is_idle or engine.num_open:
            await asyncio.sleep(0.002)
    await engine.between_steps(engine.core.check_integrity)


async def written(engine: Engine) -> None:
    """Whatever has left the pool is on the disk, so that the requests to come find it there, however slow it is."""
    async with asyncio.timeout(HANG_S):
        while engine.core.tier is not None and engine.core.tier.is_writing:
            await asyncio.sleep(0.002)


def living(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


async def until_gone(engine: Engine, before: int) -> None:
    """No sequence outlives its request, but for a moment in the hands of the thread that reads from the disk."""
    async with asyncio.timeout(HANG_S):
        while True:
            await engine.between_steps(engine.core.scheduler.take_restored)  # what comes for those that have gone
            if living(Sequence) <= before:  # less: one from before these requests has gone by now
                return
            await asyncio.sleep(0.02)


def held_by_tokenline() -> int:
    """Bytes that its code has allocated, itself or by what it called.

    But for what pathlib does: it interns the parts of paths, and when Python's table of interned strings is due to
    grow, which depends on all that ran in this process before, that is 7.7 MB at once.
    """
    ours = tracemalloc.Filter(True, str(Path(tokenline.__file__).parent / "*"), all_frames=True)
    traces = tracemalloc.take_snapshot().filter_traces([ours, tracemalloc.Filter(False, pathlib.__file__)])
    return sum(statistic.size for statistic in traces.statistics("filename"))


async def soak(requests: int, seed: int, **settings) -> Soak:
    model = LedgerModel()
    model.nan_on = BROKEN
    engine = Engine(
        model,
        EngineSettings(
            kv_cache_memory=model.kv_bytes_per_token() * BLOCK_SIZE * NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_batch_tokens=40,
            max_num_seqs=12,
            evictions_remembered=EVICTIONS_REMEMBERED,
            **settings,
        ),
    )
    sequences_before = living(Sequence)
    await engine.start()
    run = Soak(engine, seed)
    tracemalloc.start(6)  # frames: enough to find ours above those of a library
    try:
        held_bytes = []
        async with asyncio.timeout(2 * HANG_S):
            for _ in range(2):
                for _ in range(4):
                    await run.run(requests // 8)
                    await written(engine)
                await idle(engine)
                await until_gone(engine, sequences_before)
                held_bytes.append(held_by_tokenline())
    finally:
        tracemalloc.stop()
        await engine.close(grace_s=0)
    assert held_bytes[1] - held_bytes[0] < 150_000, "memory grows"
    core = engine.core
    stats = engine.snapshot()
    assert (stats.running, stats.waiting, stats.blocks_running) == (0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == NUM_BLOCKS
    assert sum(1 for _ in core.cache.tails()) <= NUM_BLOCKS * BLOCK_SIZE
    assert len(core.evictions) <= EVICTIONS_REMEMBERED
    totals = stats.totals
    assert totals.cached_tokens + totals.computed_tokens == totals.prompt_tokens
    refused_or_none = run.seen["too long"] + run.seen["reset"]
    never_begun = run.number - refused_or_none - (totals.finished + totals.aborted + totals.failed)
    assert 0 <= never_begun <= run.seen["cancel"], "each request ends in one way; some are given up before they begin"
    core.cache.evict(NUM_BLOCKS)
    assert core.pool.num_free == NUM_BLOCKS, "every block is free in the end"
    return run


def check_variety(run: Soak) -> None:
    """The run did what it is for."""
    stats = run.engine.snapshot()
    assert stats.preemptions > 0
    assert stats.evicted_blocks > 10 * NUM_BLOCKS
    assert stats.totals.cached_tokens > stats.totals.prompt_tokens / 50
    for what in ("close", "cancel", "stop a choice", "reset", FinishReason.STOP, FinishReason.LENGTH, "error"):
        assert run.seen[what] > 0


async def test_soak():
    check_variety(await soak(600, seed=1))


async def test_soak_with_a_disk(tmp_path: Path):
    run = await soak(400, seed=2, cache_dir=tmp_path, cache_dir_size=60_000, model_fingerprint="ledger")
    check_variety(run)
    disk = run.engine.snapshot().disk
    assert disk is not None
    assert disk.restored > 0
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 60_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 7))
async def test_long_soak(tmp_path: Path, seed: int):
    disk = {"cache_dir": tmp_path, "cache_dir_size": 300_000, "model_fingerprint": "ledger"} if seed % 2 else {}
    check_variety(await soak(4000, seed=seed, **disk))
