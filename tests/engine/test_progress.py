"""How far a prompt is: told to those who ask, in steps of their own; in the log where it takes long."""

import logging

import pytest

from tests.engine.test_core import Answers, make_core, make_request
from tokenline.engine import progress
from tokenline.engine.core import EngineCore
from tokenline.engine.request import PromptProgress, Request, Step


def asking(request_id: str, prompt: list[int], **options) -> Request:
    plain = make_request(request_id, prompt, **options)
    return Request(
        plain.request_id, plain.prompt_ids, plain.params, plain.namespace, plain.n, None, None, reports_progress=True
    )


def run(core: EngineCore) -> tuple[list[Step], list[Step]]:
    """All steps in order, and those among them that came ahead of the step's end."""
    early: list[Step] = []
    steps: list[Step] = []

    def announce(some: list[Step]) -> None:
        early.extend(some)
        steps.extend(some)

    core.announce = announce
    while not core.is_idle:
        steps += core.step()
    return steps, early


def told(steps: list[Step], request_id: str) -> list[PromptProgress]:
    return [step.progress for step in steps if step.progress is not None and step.request_id == request_id]


def test_the_first_report_is_what_was_cached_and_the_last_is_all_of_it():
    core = make_core(max_batch_tokens=16)
    core.add(make_request("before", range(20), max_tokens=1))
    Answers().run(core)
    core.add(asking("a", list(range(60)), n=2))
    core.add(make_request("b", [5] * 40))
    steps, early = run(core)
    reports = told(steps, "a")
    assert [(r.total, r.cached) for r in reports] == [(60, 20)] * len(reports)
    processed = [r.processed for r in reports]
    assert processed[0] == 20
    assert processed[-1] == 60
    assert processed == sorted(set(processed)), "each report says something new"
    assert len(processed) >= 4
    assert told(early, "a") == reports[:1], "the first report does not wait for the first chunk"
    assert not told(steps, "b")
    first_ids = next(at for at, step in enumerate(steps) if step.request_id == "a" and step.ids)
    assert max(at for at, step in enumerate(steps) if step.progress) < first_ids
    assert all(step.choice == 0 and not step.ids and step.finish_reason is None for step in steps if step.progress)


def test_a_preemption_tells_nothing_twice():
    core = make_core(num_blocks=12, block_size=4, max_batch_tokens=8)
    core.add(make_request("a", [1] * 20, max_tokens=20))
    core.add(asking("b", [2] * 20, max_tokens=4))
    steps, _ = run(core)
    processed = [r.processed for r in told(steps, "b")]
    assert processed == sorted(set(processed))
    assert processed[-1] == 20


def test_the_log_says_how_far_a_long_prefill_is(caplog: pytest.LogCaptureFixture):
    core = make_core(max_batch_tokens=16)
    times = iter(range(0, 10_000, 3))  # the clock goes on by three seconds each time that it is asked
    core.clock = lambda: float(next(times))
    core.add(make_request("slow", range(90), max_tokens=1))
    with caplog.at_level(logging.INFO, logger=progress.__name__):
        run(core)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) < 5
    assert all(
        line.startswith("request slow: ") and " of 90 prompt tokens are processed after " in line for line in lines
    )


def test_a_short_prefill_is_not_logged(caplog: pytest.LogCaptureFixture):
    core = make_core()
    core.add(make_request("fast", range(60)))
    with caplog.at_level(logging.INFO, logger=progress.__name__):
        run(core)
    assert not caplog.records
