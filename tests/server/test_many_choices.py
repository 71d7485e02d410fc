"""Many choices at once: bounded in one request and in all, and begun without holding up what runs."""

import time
from typing import Any

import numpy as np
import pytest

from tests.engine.ledger import LedgerModel, expected_answer
from tests.engine.test_core import Answers, make_core, make_request
from tests.server.conftest import TEXT, Served, in_module_loop
from tokenline.engine import Engine, EngineSettings, Request, RequestRefused, SamplingParams

pytestmark = in_module_loop


@pytest.mark.parametrize(("prompts", "n"), [(256, 2), (256, 128), (3, 86), (2, 129)])
@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_times_n_is_bounded(shared: Served, prompts: int, n: int, stream: bool):
    body: dict[str, Any] = {"prompt": ["a"] * prompts, "n": n, "max_tokens": 1, "stream": stream}
    answer = await shared.http.post(TEXT, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "n"
    assert f"at most {min(128, 256 // prompts)}" in error["message"] or "from 1 to 128" in error["message"]


@pytest.mark.parametrize(("prompts", "n"), [(256, 1), (2, 128), (1, 128)])
async def test_the_most_that_is_allowed_is_answered(shared: Served, prompts: int, n: int):
    body = {"prompt": ["a"] * prompts, "n": n, "max_tokens": 1, "temperature": 0}
    answer = await shared.http.post(TEXT, json=body)
    assert answer.status_code == 200, answer.text
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(prompts * n))


async def test_the_queue_counts_choices():
    engine = Engine(LedgerModel(), EngineSettings(kv_cache_memory=8 * 4 * 256, max_waiting=10, max_batch_tokens=80))
    await engine.start()
    try:
        ids = np.array([1, 2, 3], np.int32)
        with pytest.raises(RequestRefused, match="0 answers") as refused:
            await engine.generate([Request("a", ids, SamplingParams(4), n=11)])
        assert refused.value.code == "queue_full"
        stream = await engine.generate([Request("b", ids, SamplingParams(4), n=10)])
        assert engine.num_open == 1
        async for _ in stream:
            pass
        await (await engine.generate([Request("c", ids, SamplingParams(4), n=10)])).aclose()
    finally:
        await engine.close(grace_s=0)


async def test_choices_that_wait_for_their_prompt_are_answered_like_one():
    core = make_core(num_blocks=200, max_num_seqs=8, max_batch_tokens=12)
    core.add(make_request("many", list(range(40)), n=100))
    core.add(make_request("other", [7] * 5))
    answers = Answers().run(core)
    assert all(answers.ids["many", choice] == expected_answer(list(range(40)), 4) for choice in range(100))
    assert answers.ids["other", 0] == expected_answer([7] * 5, 4)


async def test_a_step_comes_between_many_requests_that_arrive_together(monkeypatch: pytest.MonkeyPatch):
    engine = Engine(LedgerModel(), EngineSettings(kv_cache_memory=8 * 4 * 256, max_batch_tokens=80))
    begun: list[str] = []
    original_add, original_step = engine.core.add, engine.core.step

    def slow_add(request: Request, constraints: Any = None) -> None:
        begun.append("add")
        time.sleep(0.01)
        original_add(request, constraints)

    def step() -> Any:
        begun.append("step")
        return original_step()

    monkeypatch.setattr(engine.core, "add", slow_add)
    monkeypatch.setattr(engine.core, "step", step)
    requests = [Request(str(i), np.array([1, i], np.int32), SamplingParams(4)) for i in range(5)]
    stream = await engine.generate(requests)
    await engine.start()
    try:
        async for _ in stream:
            pass
    finally:
        await engine.close(grace_s=0)
    assert begun[:4] == ["add", "step", "add", "step"]
