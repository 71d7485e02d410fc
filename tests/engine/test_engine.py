"""The bridge: many requests from one event loop, each with its own stream, and every way for it to end."""

import asyncio
import threading
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.engine.ledger import VOCAB, LedgerModel, expected_answer
from tests.limits import HANG_S
from tokenline.engine import Engine, EngineSettings, FinishReason, Request, RequestRefused, SamplingParams
from tokenline.engine.errors import SettingError


@asynccontextmanager
async def running(model: LedgerModel | None = None, **settings):
    engine = Engine(
        model or LedgerModel(),
        EngineSettings(**{"kv_cache_memory": 8 * 4 * 256, "block_size": 4, "max_batch_tokens": 80, **settings}),
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close(grace_s=0)


def request(name: str, prompt, max_tokens=4, n=1, **params) -> Request:
    made = SamplingParams(max_tokens=max_tokens, temperature=0, **params)
    return Request(name, np.asarray(prompt, np.int32), made, n=n)


async def collect(engine: Engine, made: Request):
    ids: dict[int, list[int]] = {choice: [] for choice in range(made.n)}
    reasons, uses = {}, []
    async with aclosing(await engine.generate([made])) as steps:
        async for step in steps:
            ids[step.choice] += step.ids
            if step.finish_reason:
                reasons[step.choice] = step.finish_reason
            if step.cache_use:
                uses.append(step.cache_use)
    return ids, reasons, uses


async def until_idle(engine: Engine) -> None:
    async with asyncio.timeout(HANG_S):
        while (stats := engine.snapshot()).running or stats.waiting:
            await asyncio.sleep(0.005)


async def test_fifty_requests_at_once_on_one_prefix():
    async with running() as engine:
        prefix = list(range(90))
        answers = await asyncio.gather(*(collect(engine, request(f"r{i}", [*prefix, i])) for i in range(50)))
        for i, (ids, reasons, uses) in enumerate(answers):
            assert ids[0] == expected_answer([*prefix, i], 4)
            assert reasons[0] == FinishReason.LENGTH
            assert len(uses) == 1
        assert sum(uses[0].computed for _, _, uses in answers) == 90 + 50
        assert engine.snapshot().totals.cached_tokens == 49 * 90


async def test_choices_come_in_one_stream():
    async with running() as engine:
        ids, reasons, uses = await collect(engine, request("a", [1, 2, 3], n=3))
        assert ids == dict.fromkeys(range(3), expected_answer([1, 2, 3], 4))
        assert set(reasons) == {0, 1, 2}
        assert len(uses) == 1


async def test_closing_the_stream_frees_the_request():
    async with running(LedgerModel(max_positions=100_000), kv_cache_memory=8 * 200_000) as engine:
        stream = await engine.generate([request("a", [1, 2, 3], max_tokens=90_000)])
        await anext(stream)
        await stream.aclose()
        await until_idle(engine)
        assert engine.snapshot().totals.aborted == 1
        assert engine.snapshot().blocks_running == 0
        ids, _, uses = await collect(engine, request("b", [1, 2, 3]))
        assert ids[0] == expected_answer([1, 2, 3], 4)
        assert uses[0].cached == 2


async def test_a_cancelled_reader_frees_the_request_in_prefill():
    async with running(max_batch_tokens=66) as engine:
        task = asyncio.create_task(collect(engine, request("a", [1] * 250)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_idle(engine)
        assert engine.snapshot().blocks_running == 0


async def test_one_choice_can_be_stopped_and_the_rest_goes_on():
    async with running() as engine:
        made = request("a", [1, 2, 3], max_tokens=20, n=2)
        ids = {0: [], 1: []}
        async for step in await engine.generate([made]):
            ids[step.choice] += step.ids
            if step.choice == 0:
                await engine.stop("a", 0)
        assert ids == {0: expected_answer([1, 2, 3], 1), 1: expected_answer([1, 2, 3], 20)}


@pytest.mark.parametrize(("prompt", "max_tokens"), [(300, 8), (250, 10), (256, 1)])
async def test_what_can_never_fit_is_refused_with_the_figures(prompt, max_tokens):
    async with running() as engine:
        with pytest.raises(RequestRefused, match=rf"{prompt} tokens.*{max_tokens} more.*256 tokens") as refused:
            await collect(engine, request("a", [1] * prompt, max_tokens))
        assert refused.value.code == "context_length_exceeded"
        await collect(engine, request("b", [1] * 250, 6))


async def test_a_pool_smaller_than_the_context_is_named_as_the_reason():
    async with running(kv_cache_memory=8 * 4 * 10) as engine:
        assert engine.limits.max_model_len == 40
        with pytest.raises(RequestRefused, match="KV cache has memory for"):
            await collect(engine, request("a", [1] * 50))


async def test_a_full_queue_refuses_and_recovers():
    async with running(LedgerModel(max_positions=100_000), kv_cache_memory=8 * 200_000, max_waiting=2) as engine:
        streams = [await engine.generate([request(f"r{i}", [i], max_tokens=90_000)]) for i in range(2)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(RequestRefused) as refused:
            await collect(engine, request("third", [1]))
        assert refused.value.code == "queue_full"
        for stream in streams:
            await stream.aclose()
        await collect(engine, request("fourth", [1]))


async def test_a_failed_step_is_an_error_step_and_the_engine_lives():
    model = LedgerModel()
    async with running(model) as engine:
        model.fail_on = 77
        _, reasons, _ = await collect(engine, request("bad", [77]))
        assert reasons[0] == FinishReason.ERROR
        ids, _, _ = await collect(engine, request("good", [1, 2]))
        assert ids[0] == expected_answer([1, 2], 4)
        assert (await engine.health()).ok


async def test_requests_that_cannot_be_computed_never_stop_the_engine():
    model = LedgerModel()
    async with running(model) as engine:
        model.fail_on = 77
        for i in range(10):
            _, reasons, _ = await collect(engine, request(f"bad{i}", [77]))
            assert reasons[0] == FinishReason.ERROR
        ids, _, _ = await collect(engine, request("good", [1, 2]))
        assert ids[0] == expected_answer([1, 2], 4)


async def test_a_request_that_cannot_be_begun_ends_alone():
    async with running() as engine:
        bad = Request("bad", np.array([1, 2], np.int32), SamplingParams(max_tokens=4, seed="x"), n=2)  # type: ignore[arg-type]
        _, reasons, _ = await collect(engine, bad)
        assert set(reasons.values()) == {FinishReason.ERROR}
        ids, _, _ = await collect(engine, request("good", [1, 2]))
        assert ids[0] == expected_answer([1, 2], 4)


@pytest.mark.parametrize("token_id", [-1, VOCAB, 2**31 - 1])
async def test_an_id_that_the_model_lacks_is_refused_before_anything_is_begun(token_id):
    async with running() as engine:
        with pytest.raises(RequestRefused, match=f"id {token_id}") as refused:
            await collect(engine, request("a", [1, token_id, 2]))
        assert refused.value.code == "invalid_value"
        assert engine.num_open == 0


async def test_an_engine_that_keeps_failing_says_so_and_refuses():
    model = LedgerModel()
    async with running(model) as engine:
        model.broken = True
        for i in range(3):
            _, reasons, _ = await collect(engine, request(f"bad{i}", [77]))
            assert reasons[0] == FinishReason.ERROR
        async with asyncio.timeout(HANG_S):
            while (await engine.health()).ok:
                await asyncio.sleep(0.01)
        with pytest.raises(RequestRefused) as refused:
            await collect(engine, request("late", [1]))
        assert refused.value.code == "engine_failed"


async def test_reset_forgets_the_prefix():
    async with running() as engine:
        await collect(engine, request("a", [1] * 20))
        await engine.reset_prefix_cache()
        _, _, uses = await collect(engine, request("b", [1] * 20))
        assert uses[0].cached == 0


async def test_a_reset_is_answered_when_the_engine_breaks_before_it():
    model, begun, go_on = LedgerModel(), threading.Event(), threading.Event()
    model.broken = True
    forward = model.forward

    def held(batch, kv):
        if len(batch.ids) == 1 + 3:  # the third request's
            begun.set()
            assert go_on.wait(HANG_S)
        return forward(batch, kv)

    model.forward = held
    async with running(model) as engine:
        for name in "ab":
            assert (await collect(engine, request(name, [7])))[1][0] == FinishReason.ERROR
        last = asyncio.create_task(collect(engine, request("c", [7, 1, 2, 3])))
        assert await asyncio.to_thread(begun.wait, HANG_S)
        reset = asyncio.create_task(engine.reset_prefix_cache())
        await asyncio.sleep(0.01)  # it runs up to where it waits
        go_on.set()
        assert (await last)[1][0] == FinishReason.ERROR
        async with asyncio.timeout(HANG_S):
            with pytest.raises(RequestRefused, match="told to fail"):
                await reset


async def test_a_reset_while_the_engine_closes_is_refused():
    async with running() as engine:
        await engine.close(grace_s=0)
        with pytest.raises(RequestRefused, match="shutting down"):
            await engine.reset_prefix_cache()


async def test_close_lets_running_requests_finish_within_the_grace():
    async with running() as engine:
        task = asyncio.create_task(collect(engine, request("a", [1, 2], max_tokens=50)))
        await asyncio.sleep(0.01)
        await engine.close(grace_s=HANG_S)
        ids, reasons, _ = await task
        assert ids[0] == expected_answer([1, 2], 50)
        assert reasons[0] == FinishReason.LENGTH
        with pytest.raises(RequestRefused):
            await collect(engine, request("late", [1]))


async def test_close_without_grace_ends_what_runs():
    async with running(LedgerModel(max_positions=100_000), kv_cache_memory=8 * 200_000) as engine:
        task = asyncio.create_task(collect(engine, request("a", [1, 2], max_tokens=90_000)))
        await asyncio.sleep(0.05)
        await engine.close(grace_s=0)
        async with asyncio.timeout(HANG_S):
            _, reasons, _ = await task
        assert reasons[0] == FinishReason.ABORT


async def test_a_cache_dir_outlives_the_engine(tmp_path):
    disk = {"cache_dir": tmp_path / "kv", "model_fingerprint": "ledger"}
    async with running(**disk) as engine:
        assert (await collect(engine, request("a", list(range(30)))))[2][0].cached == 0
    async with running(**disk) as engine:
        ids, _, uses = await collect(engine, request("b", list(range(30))))
        assert ids[0] == expected_answer(list(range(30)), 4)
        assert (uses[0].cached, uses[0].restored) == (28, 28)
        stats = engine.snapshot().disk
        assert stats is not None
        assert stats.restored == 7
        assert stats.files == 8
        await engine.reset_prefix_cache()
        assert (await collect(engine, request("c", list(range(30)))))[2][0].cached == 0
    async with running() as engine:
        assert engine.snapshot().disk is None


async def test_what_was_aborted_at_shutdown_is_kept_too(tmp_path):
    disk = {"cache_dir": tmp_path, "model_fingerprint": "ledger"}
    async with running(LedgerModel(max_positions=100_000), kv_cache_memory=8 * 200_000, **disk) as engine:
        stream = await engine.generate([request("a", list(range(30)), max_tokens=90_000)])
        await anext(stream)
        await engine.close(grace_s=0)
    async with running(**disk) as engine:
        assert (await collect(engine, request("b", list(range(30)))))[2][0].cached == 28


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cache_dir": Path("/proc/kv"), "model_fingerprint": "x"}, "cache_dir /proc/kv"),
        ({"cache_dir": Path("/tmp"), "model_fingerprint": "x", "cache_dir_size": 100}, "cache_dir_size of 100"),
        ({"cache_dir": Path("/tmp")}, "model_fingerprint"),
        ({"max_model_len": 300}, "max_model_len.* 300"),
        ({"max_model_len": 1}, "max_model_len.* not 1"),
        ({"kv_cache_memory": 10}, "kv_cache_memory of 10 bytes is too small"),
        ({"kv_cache_memory": 10**18}, "kv_cache_memory of"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 600}, "max_batch_tokens"),
        ({"max_stall_s": 0.0}, "max_stall_s"),
    ],
)
def test_settings_that_cannot_be_met_are_named(settings, named):
    with pytest.raises(SettingError, match=named):
        Engine(LedgerModel(), EngineSettings(**settings))
