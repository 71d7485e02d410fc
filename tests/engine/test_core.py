"""The engine's invariants (docs/design.md, section 4) under random operations, with a model that notices every slip."""

import contextlib
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.ledger import VOCAB, LedgerModel, expected_answer, is_expected
from tokenline.engine.core import EngineCore
from tokenline.engine.disk_tier import DiskSettings
from tokenline.engine.eviction_log import EvictionLog
from tokenline.engine.prefix_hashes import PrefixHashes
from tokenline.engine.request import CacheUse, FinishReason, Namespace, Request, SamplingParams, Step, TokenLogprob

MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where thousands of small files cost little


def make_core(
    num_blocks=64, block_size=4, max_num_seqs=8, max_batch_tokens=16, model=None, disk=None, max_scored=1000
) -> EngineCore:
    model = model or LedgerModel()
    limit = min(model.config.max_positions, num_blocks * block_size)
    scored_bytes = 4 * model.config.vocab_size * max_scored
    return EngineCore(
        model, num_blocks, block_size, max_num_seqs, max_batch_tokens, limit, disk, scored_logits_bytes=scored_bytes
    )


def make_request(
    request_id: str,
    prompt,
    max_tokens=4,
    n=1,
    namespace=None,
    retention_s=None,
    prompt_logprobs=None,
    sender=None,
    **params,
) -> Request:
    return Request(
        request_id,
        np.asarray(prompt, np.int32),
        SamplingParams(max_tokens=max_tokens, temperature=0, **params),
        namespace or Namespace(),
        n,
        retention_s=retention_s,
        prompt_logprobs=prompt_logprobs,
        sender=sender,
    )


class Answers:
    """Collects steps by request and choice."""

    def __init__(self):
        self.ids: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.finish: dict[tuple[str, int], FinishReason] = {}
        self.use: dict[str, CacheUse] = {}
        self.scores: dict[str, tuple[TokenLogprob, ...] | None] = {}

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            key = (step.request_id, step.choice)
            assert key not in self.finish, "a step after the end"
            self.ids[key] += step.ids
            if step.finish_reason:
                self.finish[key] = step.finish_reason
            if step.cache_use:
                assert step.request_id not in self.use, "the prompt was counted twice"
                self.use[step.request_id] = step.cache_use
                self.scores[step.request_id] = step.prompt_logprobs
            else:
                assert step.prompt_logprobs is None

    def run(self, core: EngineCore) -> "Answers":
        while not core.is_idle:
            self.take(core.step())
            core.check_integrity()
        return self


class EngineMachine(RuleBasedStateMachine):
    """Random requests, steps, aborts, resets and restarts on a small pool, with and without a disk below it."""

    @initialize(
        num_blocks=st.integers(8, 40),
        block_size=st.sampled_from([1, 2, 4, 8]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(7, 32),
        disk_bytes=st.sampled_from([None, 200_000, 10_000]),
        max_scored=st.sampled_from([1, 5, 1000]),
    )
    def start(self, num_blocks, block_size, max_num_seqs, budget, disk_bytes, max_scored):
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_DISK, ignore_cleanup_errors=True)
        disk = None if disk_bytes is None else DiskSettings(Path(self.folder.name), disk_bytes, "ledger")
        self.make = lambda: make_core(num_blocks, block_size, max_num_seqs, budget, disk=disk, max_scored=max_scored)
        self.core = self.make()
        self.answers = Answers()
        self.requests: dict[str, Request] = {}
        self.aborted: set[str] = set()

    @rule(
        prefix=st.integers(0, 3),
        prefix_length=st.integers(0, 40),
        tail=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        max_tokens=st.integers(0, 12),
        n=st.sampled_from([1, 1, 1, 3]),
        salt=st.sampled_from([None, None, "other"]),
        retention_s=st.sampled_from([None, None, 86400, 0]),
        prompt_logprobs=st.sampled_from([None, None, 0, 2]),
        sender=st.sampled_from(["a", "a", "b", "c", "d"]),
    )
    def add(self, prefix, prefix_length, tail, max_tokens, n, salt, retention_s, prompt_logprobs, sender):
        limit = self.core.context_limit
        prompt = ([prefix] * prefix_length + tail)[: limit - 1]
        name, max_tokens = f"r{len(self.requests)}", min(max_tokens, limit - len(prompt))
        namespace = Namespace(salt=salt)
        request = make_request(name, prompt, max_tokens, n, namespace, retention_s, prompt_logprobs, sender)
        self.requests[request.request_id] = request
        self.core.add(request)

    @rule(which=st.integers(0, 10**6))  # no draw depends on what has happened: with a disk that varies from run to run
    def follow_up(self, which):
        """The next turn of a finished chat: its line, then a few ids."""
        done = sorted(key for key in self.answers.finish if key[0] not in self.aborted)
        if done:
            name, choice = done[which % len(done)]
            before = self.requests[name]
            prompt = [*before.prompt_ids.tolist(), *self.answers.ids[name, choice], 5, 6]
            if len(prompt) < self.core.context_limit:
                request = make_request(f"r{len(self.requests)}", prompt, 1, 1, before.namespace)
                self.requests[request.request_id] = request
                self.core.add(request)

    @rule(times=st.integers(1, 8))
    def step(self, times):
        for _ in range(times):
            self.answers.take(self.core.step())
            self.core.check_integrity()

    @rule(which=st.integers(0, 10**6))
    def abort(self, which):
        if self.requests:
            name = sorted(self.requests)[which % len(self.requests)]
            self.aborted.add(name)
            self.core.abort(name)

    @rule()
    def reset(self):
        self.core.reset_prefix_cache()

    @rule(blocks=st.integers(1, 40), wait=st.booleans())
    def evict(self, blocks, wait):
        self.core.cache.evict(blocks)
        deadline = time.monotonic() + 5
        while wait and self.core.tier is not None and self.core.tier.is_writing and time.monotonic() < deadline:
            time.sleep(0.001)

    @rule()
    def restart(self):
        self.finish()
        self.core.close()
        self.core = self.make()

    @rule(which=st.integers(0, 10**6), place=st.integers(0, 10**6), change=st.integers(1, 255))
    def damage_a_file(self, which, place, change):
        files = sorted(Path(self.folder.name).glob("kv-*.safetensors"))
        if files:
            with contextlib.suppress(OSError):  # the bound may just have taken it
                content = bytearray(files[which % len(files)].read_bytes())
                content[place % len(content)] ^= change
                files[which % len(files)].write_bytes(content)

    @invariant()
    def blocks_add_up(self):
        if hasattr(self, "core"):
            self.core.check_integrity()

    def teardown(self):
        if not hasattr(self, "core"):
            return
        self.finish()
        self.core.close()
        self.folder.cleanup()
        self.check_answers()

    def finish(self):
        steps = 0
        while not self.core.is_idle:
            self.answers.take(self.core.step())
            self.core.check_integrity()
            steps += 1
            assert steps < 20_000, "a request is stuck"
        assert self.core.pool.num_running == 0

    def check_answers(self):
        for name, request in self.requests.items():
            if name in self.aborted:
                continue
            expected = expected_answer(request.prompt_ids.tolist(), request.params.max_tokens)
            for choice in range(request.n):
                assert self.answers.ids[name, choice] == expected, "a hit changed the answer"
                assert self.answers.finish[name, choice] == FinishReason.LENGTH
            use = self.answers.use[name]
            assert use.prompt == len(request.prompt_ids)
            assert use.cached + use.computed == use.prompt
            assert 0 <= use.restored <= use.cached <= use.prompt - 1
            check_scores(request, self.answers)
            if request.prompt_logprobs is not None and use.prompt > 1:
                assert use.cached == 0, "what the cache holds has no logits"


def check_scores(request: Request, answers: Answers) -> None:
    """The log probabilities of a prompt are those of a model that gives its own next id 20 more than any other."""
    scores = answers.scores[request.request_id]
    if request.prompt_logprobs is None:
        assert scores is None
        return
    assert scores is not None
    prompt = request.prompt_ids.tolist()
    best = -np.log1p((VOCAB - 1) * np.exp(-20))
    expected = [best if likely else best - 20 for likely in is_expected(prompt)]
    assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-6)
    assert [score.rank for score in scores] == [1 if likely else 2 for likely in is_expected(prompt)]
    assert all(len(score.top) == request.prompt_logprobs for score in scores)


EngineMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEngineMachine = EngineMachine.TestCase


def run(core: EngineCore, *requests: Request) -> Answers:
    for request in requests:
        core.add(request)
    return Answers().run(core)


def test_a_repeated_prompt_computes_one_token():
    core = make_core()
    prompt = list(range(23))
    assert run(core, make_request("a", prompt)).use["a"].cached == 0
    again = run(core, make_request("b", prompt))
    assert again.use["b"].cached == 22
    assert again.ids["b", 0] == expected_answer(prompt, 4)


def test_a_match_is_exact_to_the_token():
    core = make_core()
    run(core, make_request("a", [1, 2, 3, 4, 5, 6, 7], max_tokens=1))
    answers = run(core, make_request("b", [1, 2, 3, 4, 5, 6, 50, 51], max_tokens=3))
    assert answers.use["b"].cached == 6
    assert answers.ids["b", 0] == expected_answer([1, 2, 3, 4, 5, 6, 50, 51], 3)


def test_the_next_turn_finds_prompt_and_answer():
    core = make_core()
    prompt = list(range(10))
    answer = run(core, make_request("a", prompt, max_tokens=6)).ids["a", 0]
    turn = [*prompt, *answer, 80, 81]
    use = run(core, make_request("b", turn)).use["b"]
    assert use.cached == len(prompt) + len(answer) - 1, "all but the last sampled id, which was never computed"


def test_requests_that_arrive_together_with_one_prefix_prefill_it_once():
    model = LedgerModel()
    core = make_core(num_blocks=200, max_num_seqs=64, max_batch_tokens=80, model=model)
    prefix = list(range(90))
    requests = [make_request(f"r{i}", [*prefix, i], max_tokens=1) for i in range(50)]
    answers = run(core, *requests)
    assert sum(use.computed for use in answers.use.values()) == len(prefix) + 50
    assert model.tokens_computed == len(prefix) + 50
    for i in range(50):
        assert answers.ids[f"r{i}", 0] == expected_answer([*prefix, i], 1)


def test_choices_share_one_prefill_and_one_account():
    model = LedgerModel()
    core = make_core(model=model)
    prompt = list(range(30))
    answers = run(core, make_request("a", prompt, max_tokens=1, n=4))
    assert answers.use["a"].computed == 30
    assert model.tokens_computed == 30 + 3, "each further choice computes the last prompt token for itself"
    assert core.totals.prompt_tokens == 30


def test_preemption_does_not_recount():
    """What a preempted request later finds of its own is not a hit."""
    core = make_core(num_blocks=10, block_size=4, max_num_seqs=2)
    run(core, make_request("warm", list(range(8)), max_tokens=1))
    first = make_request("first", [*range(8), 50], max_tokens=25)
    second = make_request("second", [60, 61, 62, 63, 64], max_tokens=25)
    answers = run(core, first, second)
    assert core.scheduler.preemptions > 0
    assert answers.use["first"].cached == 8
    assert answers.use["second"].cached == 0
    assert answers.ids["second", 0] == expected_answer([60, 61, 62, 63, 64], 25)
    assert answers.ids["first", 0] == expected_answer([*range(8), 50], 25)


def test_an_abort_before_the_first_step_leaves_nothing_to_hit():
    core = make_core()
    core.add(make_request("a", list(range(64)), max_tokens=1))
    core.abort("a")
    use = run(core, make_request("b", list(range(64)), max_tokens=1)).use["b"]
    assert use.cached == 0


def test_an_abort_in_prefill_keeps_what_was_computed_and_frees_the_rest():
    core = make_core(max_batch_tokens=16)
    core.add(make_request("a", list(range(64)), max_tokens=1))
    core.step()
    core.abort("a")
    core.check_integrity()
    assert core.is_idle
    assert core.pool.num_running == 0
    answers = run(core, make_request("b", list(range(64)), max_tokens=2))
    assert answers.use["b"].cached == 16
    assert answers.ids["b", 0] == expected_answer(list(range(64)), 2)


def test_one_choice_can_stop_alone():
    core = make_core()
    core.add(make_request("a", [1, 2, 3], max_tokens=5, n=2))
    answers = Answers()
    answers.take(core.step())
    core.abort("a", choice=0)
    answers.run(core)
    assert ("a", 0) not in answers.finish
    assert answers.ids["a", 1] == expected_answer([1, 2, 3], 5)


def test_a_stop_id_ends_the_answer_and_is_part_of_it():
    full = expected_answer([1, 2, 3], 6)
    stop = full[3]
    answers = run(make_core(), make_request("a", [1, 2, 3], max_tokens=6, stop_ids=frozenset([stop])))
    assert answers.ids["a", 0] == full[: full.index(stop) + 1]
    assert answers.finish["a", 0] == FinishReason.STOP


def test_broken_logits_end_one_request_with_an_error():
    model = LedgerModel()
    model.nan_on = 42
    core = make_core(model=model)
    answers = run(core, make_request("bad", [1, 42], n=2), make_request("good", [1, 2], max_tokens=3))
    assert answers.finish["bad", 0] == answers.finish["bad", 1] == FinishReason.ERROR
    assert answers.ids["good", 0] == expected_answer([1, 2], 3)


def test_after_five_hundred_requests_no_block_is_lost():
    """Some finish, some are aborted in prefill; a request that needs 90 % of the pool fits afterwards."""
    core = make_core(num_blocks=40, block_size=4, max_num_seqs=8, max_batch_tokens=24)
    for i in range(500):
        core.add(make_request(f"r{i}", [*range(40), i % 90, i % 7], max_tokens=3))
        if i % 3 == 0:
            core.step()
            core.abort(f"r{i}")
    Answers().run(core)
    assert core.pool.num_running == 0
    assert core.pool.num_free + core.pool.num_cached_only == 40
    prompt = [90] * 143
    assert run(core, make_request("big", prompt, max_tokens=1)).ids["big", 0] == expected_answer(prompt, 1)


def test_a_prompt_as_long_as_the_pool_is_served_when_the_tree_is_full_of_branches():
    """Inner nodes keep partial blocks that leaves in use pin; the engine must not be stuck on them."""
    core = make_core(num_blocks=8, block_size=4, max_num_seqs=2)
    for end in range(2, 30, 3):
        run(core, make_request(f"b{end}", [*range(end), 90], max_tokens=1))
    prompt = list(range(30))
    assert run(core, make_request("long", prompt, max_tokens=2)).ids["long", 0] == expected_answer(prompt, 2)


def test_a_miss_after_an_eviction_says_what_was_held_and_when_it_went():
    now = [100.0]
    core = EngineCore(LedgerModel(), 16, 4, 8, 16, 64, clock=lambda: now[0])
    first = list(range(30))
    run(core, make_request("a", first, max_tokens=1))
    assert run(core, make_request("b", [*first[:29], 80], max_tokens=1)).use["b"].evicted == 0, (
        "nothing was evicted yet"
    )
    now[0] = 110.0
    run(core, make_request("big", [90] * 60, max_tokens=1))
    now[0] = 152.0
    use = run(core, make_request("again", first, max_tokens=1)).use["again"]
    assert use.cached + use.evicted == 28, "what was held, in whole blocks"
    assert use.evicted > 0
    assert use.evicted_ago_s == 42.0
    other = run(core, make_request("c", first, max_tokens=1, namespace=Namespace(salt="x"))).use["c"]
    assert (other.evicted, other.evicted_ago_s) == (0, None), "no other namespace hears of it"


def test_what_is_remembered_of_evictions_is_bounded():
    log, keys = EvictionLog(4, lambda: 0.0, capacity=10), PrefixHashes(4)
    for start in range(50):
        log.record(keys.of(Namespace(), np.arange(start, start + 40, dtype=np.int32)), 0)
    assert len(log) == 10
    assert log.ask(keys.of(Namespace(), np.arange(49, 89, dtype=np.int32)), 0) == (40, 0.0)
    assert log.ask(keys.of(Namespace(), np.arange(3, 43, dtype=np.int32)), 0) is None


def test_one_callers_hundred_requests_do_not_keep_another_caller_waiting():
    core = make_core(max_num_seqs=2, max_batch_tokens=16)
    for i in range(100):
        core.add(make_request(f"greedy{i}", [1, 2, i % 90], max_tokens=3, namespace=Namespace(caller="greedy")))
    core.step()
    core.add(make_request("modest", [5, 6], max_tokens=3, namespace=Namespace(caller="modest")))
    answers = Answers()
    while ("modest", 0) not in answers.finish:
        answers.take(core.step())
        core.check_integrity()
    assert len(answers.finish) <= 6, "it was next in turn"


class TimedLedger(LedgerModel):
    """Takes 1 ms a token by a clock of its own."""

    def __init__(self):
        super().__init__(max_positions=4000)
        self.now_s = 0.0
        self.steps_s: list[float] = []

    def forward(self, batch, kv):
        self.steps_s.append(len(batch.ids) / 1000)
        self.now_s += self.steps_s[-1]
        return super().forward(batch, kv)


def test_a_long_prompt_holds_up_running_streams_by_a_small_chunk_only():
    model = TimedLedger()
    core = EngineCore(model, 1000, 4, 8, 512, 4000, clock=lambda: model.now_s)
    run(core, make_request("first", [1] * 600, max_tokens=1))
    assert model.steps_s[0] == 0.512, "nobody waits: the whole budget"
    core.add(make_request("stream", [2, 3], max_tokens=60))
    answers = Answers()
    answers.take(core.step())
    prompt = list(range(90)) * 22
    core.add(make_request("long", prompt, max_tokens=2))
    model.steps_s.clear()
    while ("long", 0) not in answers.finish:
        answers.take(core.step())
        core.check_integrity()
    assert max(model.steps_s) < 0.11
    assert len(model.steps_s) < 25, "a chunk each step"
    answers.run(core)
    assert answers.ids["long", 0] == expected_answer(prompt, 2)
    assert answers.ids["stream", 0] == expected_answer([2, 3], 60)


def test_a_short_prompt_need_not_wait_for_a_long_one_nor_a_long_one_for_ever():
    core = make_core(num_blocks=200, max_num_seqs=8, max_batch_tokens=20, model=LedgerModel(4000))
    long = list(range(90)) * 4
    core.add(make_request("long", long, max_tokens=1))
    answers = Answers()
    answers.take(core.step())
    waited = []
    for number in range(100):
        core.add(make_request(f"short{number}", [number % 90, 95, 96], max_tokens=1))
        for steps in range(1, 100):
            answers.take(core.step())
            core.check_integrity()
            if (f"short{number}", 0) in answers.finish:
                waited.append(steps)
                break
        if ("long", 0) in answers.finish:
            break
    assert max(waited) == 1
    assert len(waited) < len(long) / 10, "half of each step's budget is the long one's"
    assert answers.ids["long", 0] == expected_answer(long, 1)


def test_equally_long_prompts_are_prefilled_one_after_another():
    core = make_core(num_blocks=200, max_batch_tokens=20, model=LedgerModel(4000))
    for number in range(3):
        core.add(make_request(f"r{number}", [number, *range(80)], max_tokens=1))
    answers, order = Answers(), []
    while not core.is_idle:
        answers.take(core.step())
        core.check_integrity()
        order += [name for name, _ in answers.finish if name not in order]
    assert order == ["r0", "r1", "r2"]
    assert core.totals.generated_tokens == 3


class Broken:
    """A constraint whose library fails: when asked what may come, or when told what came."""

    def __init__(self, in_mask: bool):
        self.in_mask = in_mask

    def mask(self) -> np.ndarray:
        if self.in_mask:
            raise RuntimeError("no mask")
        return np.full(4, -1, np.int32)

    def accept(self, token_id: int) -> None:
        raise ValueError(f"{token_id} is not accepted")


@pytest.mark.parametrize("in_mask", [True, False])
def test_a_constraint_that_fails_ends_its_own_request_only(in_mask):
    core = make_core()
    params = SamplingParams(max_tokens=4, temperature=0)
    bad = Request("bad", np.asarray([1, 2], np.int32), params, n=2)
    core.add(bad, [Broken(in_mask), Broken(in_mask)])
    answers = run(core, make_request("good", [5, 6], max_tokens=4))
    assert answers.finish["bad", 0] == answers.finish["bad", 1] == FinishReason.ERROR
    assert answers.ids["good", 0] == expected_answer([5, 6], 4)
    assert core.pool.num_running == 0


class Slow:
    """A constraint whose masks take their time, once for each id."""

    def __init__(self, clock: list[float], takes_s: float):
        self.clock, self.takes_s, self.is_known = clock, takes_s, True

    def mask(self) -> np.ndarray:
        if not self.is_known:
            self.clock[0] += self.takes_s
            self.is_known = True
        return np.full(4, -1, np.int32)

    def accept(self, token_id: int) -> None:
        self.is_known = False


def test_masks_that_take_long_hold_up_nobody_else():
    clock = [0.0]
    core = make_core(num_blocks=64, max_num_seqs=32, max_batch_tokens=256, model=LedgerModel(200))
    core.clock = lambda: clock[0]
    params = SamplingParams(max_tokens=10, temperature=0)
    core.add(Request("heavy", np.asarray([1, 2], np.int32), params, n=20), [Slow(clock, 0.02) for _ in range(20)])
    core.add(make_request("light", [5, 6], max_tokens=30))
    answers, took_s = Answers(), []
    while not core.is_idle:
        before = clock[0]
        answers.take(core.step())
        took_s.append(clock[0] - before)
    assert max(took_s) <= 0.05 + 2 * 0.02
    assert answers.ids["light", 0] == expected_answer([5, 6], 30)
    for choice in range(20):
        assert answers.ids["heavy", choice] == expected_answer([1, 2], 10)
    assert sum(took_s) == pytest.approx(20 * 9 * 0.02), "none is worked out twice"


def of(caller: str, name: str, prompt, max_tokens=4, n=1) -> Request:
    return make_request(name, prompt, max_tokens, n, sender=caller)


def test_nobody_waits_for_a_prefill_that_had_to_give_up_its_blocks():
    """In the very step in which it did."""
    core = make_core(num_blocks=11, max_batch_tokens=16, max_num_seqs=8, model=LedgerModel(200))
    core.add(of("greedy", "decodes", [1, 2, 3], max_tokens=20))
    answers = Answers()
    answers.take(core.step())
    long = [7] * 30
    core.add(of("greedy", "prefills", long, max_tokens=2))
    answers.take(core.step())
    core.add(of("new", "preempts", [8] * 5, max_tokens=2))
    core.add(of("other", "would ride", [*long[:25], 9], max_tokens=2))
    answers.take(core.step())
    assert core.scheduler.preemptions == 1
    core.check_integrity()
    answers.run(core)
    assert answers.ids["prefills", 0] == expected_answer(long, 2)
    assert answers.ids["would ride", 0] == expected_answer([*long[:25], 9], 2)


def test_a_newcomer_is_answered_while_a_caller_has_a_thousand_choices():
    core = make_core(num_blocks=4000, max_num_seqs=64, max_batch_tokens=128, model=LedgerModel(4000))
    for number in range(8):
        core.add(of("greedy", f"greedy{number}", [number, 3], max_tokens=200, n=128))
    answers = Answers()
    for _ in range(20):
        answers.take(core.step())
    core.add(of("new", "new", [5, 6, 7], max_tokens=4))
    for steps in range(1, 20):
        answers.take(core.step())
        core.check_integrity()
        if ("new", 0) in answers.finish:
            assert steps == 4, "a token each step, from the first on"
            break
    assert len(core.scheduler.running) == 64, "and nobody else lost what they had"


def test_a_callers_many_are_held_back_beside_others_and_not_alone():
    model = TimedLedger()
    core = EngineCore(model, 4000, 4, 64, 512, 4000, clock=lambda: model.now_s)
    run(core, make_request("first", [1] * 600, max_tokens=1))  # from which the speed is known
    core.add(of("greedy", "greedy", [1, 2], max_tokens=60, n=64))
    answers = Answers()
    for _ in range(4):
        answers.take(core.step())
    before = sum(map(len, answers.ids.values()))
    answers.take(core.step())
    assert sum(map(len, answers.ids.values())) == before + 64, "alone: all of them"
    core.add(of("other", "other", list(range(90)) * 10, max_tokens=1))
    model.steps_s.clear()
    while ("other", 0) not in answers.finish:
        before = sum(map(len, answers.ids.values()))
        answers.take(core.step())
        assert sum(map(len, answers.ids.values())) - before <= 33, "beside another's prompt"
    assert max(model.steps_s) < 0.11
    answers.run(core)
    assert all(answers.ids["greedy", choice] == expected_answer([1, 2], 60) for choice in range(64))
    assert answers.ids["other", 0] == expected_answer(list(range(90)) * 10, 1)


def test_a_newcomer_gets_memory_though_long_prompts_fill_it():
    """Each of a caller of its own, so that nobody is greedy."""
    core = make_core(num_blocks=256, max_num_seqs=8, max_batch_tokens=64, model=LedgerModel(2000))
    for number in range(12):
        core.add(of(f"caller{number}", f"long{number}", [number] * 250, max_tokens=400))
    answers = Answers()
    for _ in range(60):
        answers.take(core.step())
    assert len(core.scheduler.waiting) > 0, "the memory is full"
    core.add(of("new", "new", [90, 91, 92], max_tokens=4))
    for steps in range(1, 100):
        answers.take(core.step())
        core.check_integrity()
        if ("new", 0) in answers.finish:
            assert steps < 12
            break
    answers.run(core)
    assert answers.ids["new", 0] == expected_answer([90, 91, 92], 4)
    assert all(answers.ids[f"long{number}", 0] == expected_answer([number] * 250, 400) for number in range(12))


def test_a_long_prompt_is_not_passed_by_short_ones_for_ever():
    core = make_core(num_blocks=64, max_num_seqs=8, max_batch_tokens=64, model=LedgerModel(2000))
    answers = Answers()
    core.add(of("first", "first", [1] * 100, max_tokens=20))
    answers.take(core.step())
    core.add(of("long", "long", [2] * 200, max_tokens=2))
    for number in range(3000):
        core.add(of(f"new{number}", f"new{number}", [3, number % 90], max_tokens=6))
        answers.take(core.step())
        if ("long", 0) in answers.finish:
            break
    else:
        raise AssertionError("it starves")
    answers.run(core)
    assert answers.ids["long", 0] == expected_answer([2] * 200, 2)


def test_a_newcomer_waits_for_a_bounded_step_beside_a_lone_long_prompt():
    model = TimedLedger()
    core = EngineCore(model, 2000, 4, 8, 2048, 4000, clock=lambda: model.now_s)
    run(core, make_request("first", [1] * 600, max_tokens=1))  # from which the speed is known
    model.steps_s.clear()
    core.add(of("long", "long", list(range(90)) * 40, max_tokens=1))
    answers = Answers()
    answers.take(core.step())
    core.add(of("new", "new", [5, 6, 7], max_tokens=4))
    while ("new", 0) not in answers.finish:
        answers.take(core.step())
    assert model.steps_s[0] == pytest.approx(0.4)
    assert max(model.steps_s[1:]) < 0.11
    assert len(model.steps_s) == 5
    answers.run(core)
    assert answers.ids["long", 0] == expected_answer(list(range(90)) * 40, 1)
