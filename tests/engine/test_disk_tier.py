"""What leaves the pool comes back from the disk as it was, and whatever happens to it there costs no more than a miss.

The ledger model notices every wrong byte of a block, the tiny model shows the same for real keys and values.
"""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.engine.ledger import LedgerModel, expected_answer
from tests.engine.test_block_store import DAMAGE
from tests.engine.test_core import Answers, make_core, make_request
from tests.engine.test_exactness import greedy_alone
from tests.limits import HANG_S
from tests.tiny import make_tiny
from tokenline.engine.core import EngineCore
from tokenline.engine.disk_tier import DiskSettings, DiskTier
from tokenline.engine.prefix_hashes import mark_of
from tokenline.engine.request import CacheUse, FinishReason, Namespace, Request
from tokenline.models.load import load_model

PROMPT = list(range(30))  # of which 7 whole blocks of 4 are kept, 28 tokens
OTHER = [90] * 90  # fills a pool of 24 blocks


@pytest.fixture
def cores():
    """Makes cores that are closed at the end of the test, so that no thread outlives it."""
    made: list[EngineCore] = []

    def make(folder: Path, max_bytes: int = 10**7, model_name: str = "ledger", **shape) -> EngineCore:
        core = make_core(**{"num_blocks": 24, "disk": DiskSettings(folder, max_bytes, model_name), **shape})
        made.append(core)
        read_always(core)
        return core

    yield make
    for core in made:
        core.close()


def tier(core: EngineCore) -> DiskTier:
    assert core.tier is not None
    return core.tier


def read_always(core: EngineCore) -> None:
    """Let the tier know nothing of how fast it computes: else it depends on the machine whether the disk is asked."""
    core.prefill_speed.saw_step = lambda prompt_tokens, tokens, seconds: None
    tier(core).rule.patience_s = lambda tokens: HANG_S


def blocks_in(folder: Path) -> list[Path]:
    """The blocks on disk, the last used first. (The probe of the disk's speed may be there too for a moment.)"""
    return sorted(folder.glob("kv-*.safetensors"), key=lambda path: -path.stat().st_mtime_ns)


def settle(core: EngineCore) -> None:
    """Until everything is on the disk that is on the way there."""
    deadline = time.monotonic() + HANG_S
    while tier(core).is_writing:
        assert time.monotonic() < deadline, "the writer is stuck"
        time.sleep(0.002)


def wait_for_probe(core: EngineCore) -> None:
    """Until the reader has measured the disk and is ready."""
    deadline = time.monotonic() + HANG_S
    while tier(core).rule.read_bytes_per_s is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ask(core: EngineCore, prompt: list[int], max_tokens: int = 3, **fields) -> CacheUse:
    """Run a request alone, check its answer, return its account."""
    request = make_request("ask", prompt, max_tokens, **fields)
    core.add(request)
    answers = Answers().run(core)
    for choice in range(request.n):
        assert answers.ids["ask", choice] == expected_answer(prompt, max_tokens)
    use = answers.use["ask"]
    assert use.cached + use.computed == len(prompt)
    assert use.restored <= use.cached < len(prompt)
    return use


def cached(use: CacheUse) -> tuple[int, int]:
    return use.cached, use.restored


# ---- there and back


def test_what_was_evicted_comes_back(tmp_path, cores):
    model = LedgerModel()
    core = cores(tmp_path, model=model)
    assert cached(ask(core, PROMPT)) == (0, 0)
    ask(core, OTHER)
    settle(core)
    held = core.cache.lookup(Namespace(), np.asarray(PROMPT, np.int32)).length
    assert held < 28
    before = model.tokens_computed
    assert cached(ask(core, PROMPT)) == (28, 28 - held)
    assert model.tokens_computed == before + 2 + 2, "two of the prompt and two of the answer"
    assert cached(ask(core, PROMPT)) == (29, 0), "it is in the pool again"


def test_what_is_held_at_the_end_survives_a_restart(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    model = LedgerModel()
    core = cores(tmp_path, model=model)
    assert cached(ask(core, PROMPT)) == (28, 28)
    assert model.tokens_computed == 2 + 2


@pytest.mark.parametrize("length", range(1, 14))
def test_whole_blocks_come_back_and_never_the_last_token(tmp_path, cores, length):
    core = cores(tmp_path)
    ask(core, PROMPT[:length])
    core.close()
    expected = (length - 1) // 4 * 4
    assert cached(ask(cores(tmp_path), PROMPT[:length])) == (expected, expected)


def test_the_pool_gives_the_beginning_and_the_disk_the_rest(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    core = cores(tmp_path)
    ask(core, [*PROMPT[:6], 80], retention_s=0)  # now 6 tokens, one and a half blocks, are in the pool
    assert cached(ask(core, PROMPT)) == (28, 22)


def test_the_next_turn_finds_the_answer_too(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT[:10], max_tokens=11)
    core.close()
    line = PROMPT[:10] + expected_answer(PROMPT[:10], 11)
    assert cached(ask(cores(tmp_path), [*line, 80, 81])) == (20, 20)


def test_choices_and_followers_ride_on_one_restore(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    model = LedgerModel()
    core = cores(tmp_path, model=model, num_blocks=64)
    requests = [make_request(f"r{i}", [*PROMPT, 80 + i], 1, n=2) for i in range(3)]
    for request in requests:
        core.add(request)
    answers = Answers().run(core)
    for request in requests:
        assert answers.ids[request.request_id, 1] == expected_answer(request.prompt_ids.tolist(), 1)
    assert cached(answers.use["r0"]) == (28, 28)
    assert cached(answers.use["r1"]) == cached(answers.use["r2"]) == (30, 0)
    assert tier(core).stats().restored == 7
    assert model.tokens_computed == 3 + 1 + 1 + 3, "the first's rest, the others' last, the second choices' last"


# ---- whose it is


def test_namespaces_never_share(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT, namespace=Namespace(caller="a"))
    core.close()
    core = cores(tmp_path)
    for other in (Namespace(), Namespace(salt="a"), Namespace(caller="b"), Namespace(caller="a", salt="x")):
        assert cached(ask(core, PROMPT, namespace=other)) == (0, 0)
    assert cached(ask(core, PROMPT, namespace=Namespace(caller="a"))) == (28, 28)


@pytest.mark.parametrize("change", ["name", "block size", "layout", "weights", "precision", "arithmetic", "device"])
def test_other_models_and_layouts_never_share(tmp_path, cores, change, monkeypatch):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    model = LedgerModel()
    if change == "layout":
        monkeypatch.setattr("tests.engine.ledger.LedgerPool.layout", "ledger float64")
    if change == "weights":
        model.weight_bytes = 7
    if change in ("precision", "arithmetic", "device"):
        setattr(model, change, "another")
    name = "another ledger" if change == "name" else "ledger"
    core = cores(tmp_path, model_name=name, block_size=8 if change == "block size" else 4, model=model)
    assert cached(ask(core, PROMPT)) == (0, 0)


def test_in_memory_is_never_written(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT, retention_s=0)
    ask(core, OTHER, retention_s=0)
    ask(core, [*PROMPT[:9], *PROMPT], retention_s=0)
    core.close()
    assert blocks_in(tmp_path) == []


def test_in_memory_keeps_its_own_ids_from_the_disk_and_no_others(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, [*PROMPT[:12], 80, 81, 82, 83, 84], retention_s=0)
    ask(core, [*PROMPT[:12], 70, 71, 72, 73, 74])
    ask(core, [*PROMPT[:12], 60, 61, 62, 63, 64], retention_s=0)
    core.close()
    core = cores(tmp_path)
    assert cached(ask(core, [*PROMPT[:12], 80, 81, 82, 83, 84], retention_s=0)) == (12, 12)
    assert cached(ask(core, [*PROMPT[:12], 70, 71, 72, 73, 74])) == (16, 4)
    assert cached(ask(core, [*PROMPT[:12], 60, 61, 62, 63, 64])) == (12, 0)


def test_24h_is_written_when_the_request_ends(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, OTHER[:40])
    settle(core)
    assert blocks_in(tmp_path) == []
    ask(core, PROMPT, max_tokens=4, retention_s=86400)
    settle(core)
    assert len(blocks_in(tmp_path)) == 8, "the answer's first two ids fill the eighth block"
    assert cached(ask(cores(tmp_path), PROMPT)) == (28, 28), "another process has it before this one ends"


def test_reset_forgets_the_disk_too(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT, retention_s=86400)
    settle(core)
    core.reset_prefix_cache()
    assert cached(ask(core, PROMPT)) == (0, 0)
    core.reset_prefix_cache()
    settle(core)
    assert blocks_in(tmp_path) == []
    ask(core, PROMPT, retention_s=86400)
    settle(core)
    assert len(blocks_in(tmp_path)) == 8, "what comes later is kept again"


def test_reset_forgets_one_callers_blocks_only(tmp_path, cores, monkeypatch):
    """On disk, on the way there, and after a restart."""
    core = cores(tmp_path)
    callers = [Namespace("a"), Namespace("a", salt="x"), Namespace("b")]
    for namespace in callers:
        ask(core, PROMPT, retention_s=86400, namespace=namespace)
    settle(core)
    core.reset_prefix_cache("a")
    settle(core)
    assert len(blocks_in(tmp_path)) == 8
    assert [sum(cached(ask(core, PROMPT, namespace=namespace))) > 0 for namespace in callers] == [False, False, True]
    go = threading.Event()
    write = tier(core).store.write
    monkeypatch.setattr(tier(core).store, "write", lambda *args: go.wait(HANG_S) and write(*args))
    other = [token + 1 for token in PROMPT]
    for namespace in callers:
        ask(core, other, retention_s=86400, namespace=namespace)
    core.reset_prefix_cache("b")
    core.reset_prefix_cache("nobody")
    go.set()
    settle(core)
    names = [path.name for path in blocks_in(tmp_path)]
    assert names
    assert not [name for name in names if mark_of("b").hex() in name]


def test_reset_forgets_what_is_on_its_way_to_the_disk(tmp_path, cores, monkeypatch):
    core = cores(tmp_path)
    go = threading.Event()
    write = tier(core).store.write
    monkeypatch.setattr(tier(core).store, "write", lambda *args: go.wait(HANG_S) and write(*args))
    ask(core, PROMPT, retention_s=86400)
    core.reset_prefix_cache()
    go.set()
    settle(core)
    assert blocks_in(tmp_path) == []
    assert cached(ask(core, PROMPT)) == (0, 0)


# ---- what can go wrong


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_block_costs_what_hangs_on_it(tmp_path, cores, kind):
    core = cores(tmp_path, block_size=512, num_blocks=9, max_batch_tokens=4096, model=LedgerModel(5000))
    prompt = [i % 97 for i in range(4 * 512)]
    ask(core, prompt)
    core.close()
    _, second, third, _ = blocks_in(tmp_path)
    if kind.startswith("another"):  # these make files of another size
        third.write_bytes(second.read_bytes())
    else:
        DAMAGE[kind](third)
    core = cores(tmp_path, block_size=512, num_blocks=9, max_batch_tokens=4096, model=LedgerModel(5000))
    assert cached(ask(core, prompt)) == (1024, 1024)
    core.close()
    core = cores(tmp_path, block_size=512, num_blocks=9, max_batch_tokens=4096, model=LedgerModel(5000))
    assert cached(ask(core, prompt)) == (1536, 1536), "it was written again"


def test_a_directory_that_vanishes_is_a_miss(tmp_path, cores):
    core = cores(tmp_path / "kv")
    wait_for_probe(core)
    ask(core, PROMPT, retention_s=86400)
    settle(core)
    core.cache.clear()
    shutil.rmtree(tmp_path / "kv")
    assert cached(ask(core, PROMPT)) == (0, 0)
    ask(core, OTHER)


def test_files_that_vanish_one_by_one_are_misses(tmp_path, cores):
    draw = random.Random(3)
    core = cores(tmp_path)
    for _ in range(30):
        ask(core, [draw.randrange(3)] * draw.randrange(1, 80) + [draw.randrange(90)], retention_s=86400)
        for file in blocks_in(tmp_path):
            if draw.random() < 0.2:
                file.unlink(missing_ok=True)


def test_a_full_disk_does_no_harm(small_disk, cores):
    core = cores(small_disk, max_bytes=4 << 20, block_size=64, num_blocks=24, model=LedgerModel(1500))
    draw = random.Random(4)
    for _ in range(60):
        ask(core, [draw.randrange(97) for _ in range(draw.randrange(600, 1400))], max_tokens=1)
        settle(core)
        tier(core).store._paused_until_s = 0.0  # a minute later
    used = shutil.disk_usage(small_disk)
    assert used.free < used.total / 2, "it was full"
    assert tier(core).store.max_bytes < 1 << 20


def test_the_bound_is_kept_while_it_works(tmp_path, cores):
    core = cores(tmp_path, max_bytes=30_000)
    draw = random.Random(5)
    for _ in range(15):
        ask(core, [draw.randrange(97) for _ in range(draw.randrange(40, 90))], max_tokens=1, retention_s=86400)
        settle(core)
        assert sum(file.stat().st_size for file in blocks_in(tmp_path)) <= 30_000
    assert tier(core).stats().written > 100


def test_blocks_are_dropped_where_the_disk_does_not_keep_up(tmp_path, cores, monkeypatch):
    core = cores(tmp_path, num_blocks=64)
    go = threading.Event()
    write = tier(core).store.write
    monkeypatch.setattr(tier(core).store, "write", lambda *args: go.wait(HANG_S) and write(*args))
    monkeypatch.setattr(tier(core)._writer._queue, "maxsize", 5)
    ask(core, list(range(90)), retention_s=86400)
    stats = tier(core).stats()
    assert stats.dropped >= 22 - 6
    go.set()
    settle(core)
    core.cache.clear()
    assert ask(core, list(range(90))).restored >= 20, "its beginning is what was kept"


# ---- waiting for the disk


class SlowReads:
    """Holds back each read of a core's store until it may go on."""

    def __init__(self, core: EngineCore, monkeypatch):
        self.reads = 0
        self._may_go = threading.Semaphore(0)
        read = tier(core).store.read

        def slow(*args):
            self.reads += 1
            self._may_go.acquire(timeout=HANG_S)
            return read(*args)

        monkeypatch.setattr(tier(core).store, "read", slow)

    def let(self, reads: int) -> None:
        self._may_go.release(reads)


@pytest.fixture
def slow(tmp_path, cores, monkeypatch):
    """A core that has PROMPT on a slow disk."""
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    core = cores(tmp_path, num_blocks=64)
    reads = SlowReads(core, monkeypatch)
    wait_for_probe(core)
    yield core, reads
    reads.let(1000)


def steps_until(core: EngineCore, answers: Answers, done) -> None:
    deadline = time.monotonic() + HANG_S
    while not done():
        answers.take(core.step())
        core.check_integrity()
        assert time.monotonic() < deadline


def test_nobody_else_waits_for_a_restore(slow):
    core, reads = slow
    answers = Answers()
    core.add(make_request("slow", PROMPT, 2))
    core.add(make_request("quick", [70] * 20, 5))
    steps_until(core, answers, lambda: ("quick", 0) in answers.finish)
    assert ("slow", 0) not in answers.finish
    core.add(make_request("late", [71] * 20, 5))
    steps_until(core, answers, lambda: ("late", 0) in answers.finish)
    reads.let(1000)
    answers.run(core)
    assert answers.ids["slow", 0] == expected_answer(PROMPT, 2)
    assert answers.use["slow"].restored == 28


def test_what_has_arrived_is_held_at_once(slow):
    core, reads = slow
    core.add(make_request("a", PROMPT, 2))
    reads.let(3)
    steps_until(core, Answers(), lambda: core.cache.held_tokens == 12)


def test_an_abort_while_waiting_frees_the_request_and_keeps_what_came(slow, caplog):
    core, reads = slow
    answers = Answers()
    core.add(make_request("a", PROMPT, 2))
    reads.let(3)
    steps_until(core, answers, lambda: core.cache.held_tokens == 12)
    core.abort("a")
    core.check_integrity()
    assert core.is_idle
    assert core.pool.num_running == 0
    core.add(make_request("b", [70], 2))
    reads.let(1)  # the one that was under way
    answers.run(core)
    assert reads.reads <= 4, "no more is read for nobody"
    core.add(make_request("c", PROMPT, 2))
    reads.let(1000)
    answers.run(core)
    assert answers.ids["c", 0] == expected_answer(PROMPT, 2)
    assert answers.use["c"].cached == 28
    assert not caplog.records


def test_a_disk_that_takes_too_long_is_not_waited_for(slow, monkeypatch):
    core, reads = slow
    answers = Answers()
    core.add(make_request("a", PROMPT, 2))
    steps_until(core, answers, lambda: reads.reads == 1)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * HANG_S, time_ns=time.time_ns)
    monkeypatch.setattr("tokenline.engine.disk_tier.time", later)
    steps_until(core, answers, lambda: ("a", 0) in answers.finish)
    assert answers.ids["a", 0] == expected_answer(PROMPT, 2)
    assert cached(answers.use["a"]) == (0, 0)
    core.cache.clear()
    assert reads.reads == 1
    assert cached(ask(core, PROMPT)) == (0, 0), "nothing more is asked of it"
    assert reads.reads == 1
    reads.let(1000)
    core.cache.clear()
    deadline = time.monotonic() + HANG_S
    while ask(core, PROMPT).restored != 28:  # until it answers again
        core.cache.clear()
        assert time.monotonic() < deadline


def test_a_reset_while_waiting_ends_the_restore(slow):
    core, reads = slow
    answers = Answers()
    core.add(make_request("a", PROMPT, 2))
    reads.let(3)
    steps_until(core, answers, lambda: core.cache.held_tokens == 12)
    core.reset_prefix_cache()
    answers.run(core)
    assert answers.ids["a", 0] == expected_answer(PROMPT, 2)
    reads.let(1000)


def test_preemption_while_waiting_loses_nothing_but_time(tmp_path, cores, monkeypatch, caplog):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    core = cores(tmp_path, num_blocks=14, max_num_seqs=3)
    reads = SlowReads(core, monkeypatch)
    answers = Answers()
    core.add(make_request("long", [70, 71], 50))
    answers.take(core.step())
    core.add(make_request("slow", PROMPT, 3))
    reads.let(2)
    steps_until(core, answers, lambda: core.scheduler.preemptions > 0)
    reads.let(1000)
    answers.run(core)
    assert answers.ids["long", 0] == expected_answer([70, 71], 50)
    assert answers.ids["slow", 0] == expected_answer(PROMPT, 3)
    assert answers.use["slow"].cached <= 28
    assert not caplog.records


def test_computing_is_preferred_where_it_is_faster(tmp_path, cores):
    core = cores(tmp_path)
    ask(core, PROMPT)
    core.close()
    core = cores(tmp_path)
    wait_for_probe(core)
    tier(core).rule.read_bytes_per_s = 1.0
    core.prefill_speed.tokens_per_s = 1e9
    assert cached(ask(core, PROMPT)) == (0, 0)


# ---- other processes


def worker(*args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engine.disk_worker", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Blocks written and restored by a worker, which must have found nothing wrong."""
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    written, restored = output.splitlines()[-1].split()
    return int(written), int(restored)


def check_directory(folder: Path, cores) -> None:
    """Whatever lies there, a new engine gives right answers, and some of it from there."""
    core = cores(folder)
    draw = random.Random(0)
    restored = 0
    for prefix in range(6):
        restored += ask(core, [prefix] * 60 + [draw.randrange(90)]).restored
    assert restored > 0


def test_processes_killed_while_writing_leave_a_directory_that_works(tmp_path, cores):
    processes = [worker(tmp_path, seed, 100_000, 300_000) for seed in range(3)]
    for seed, process in enumerate(processes):
        assert process.stdout is not None
        for line in process.stdout:
            if int(line.split()[0]) > 40 + 37 * seed:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=HANG_S)
        assert process.returncode == -signal.SIGKILL
        check_directory(tmp_path, cores)


def test_two_processes_share_a_directory(tmp_path, cores):
    both = [worker(tmp_path, seed, 250, 200_000) for seed in (1, 2)]
    for process in both:
        written, restored = finish(process)
        assert written > 0
        assert restored > 0
    assert not list(tmp_path.glob("*.tmp"))
    check_directory(tmp_path, cores)


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path):
    written, restored = finish(worker(tmp_path, 1, 60, 200_000, 100))
    assert (written, restored) == (0, 0)
    assert blocks_in(tmp_path) == []


# ---- a real model


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "float32"), ("mistral", "float32"), ("qwen3", "bfloat16"), ("qwen2", "kernels"), ("mistral", "kernels")],
)
def test_a_real_model_answers_alike_from_the_disk(tmp_path, family, dtype):
    """The second time in a new engine, from the disk alone."""
    folder = make_tiny(family, tmp_path / "model")
    model = load_model(folder, device="cpu", dtype="auto" if dtype == "kernels" else dtype)
    draw = random.Random(6)
    shared = [draw.randrange(600) for _ in range(70)]
    prompts = [shared + [draw.randrange(600) for _ in range(draw.randrange(1, 40))] for _ in range(4)]
    rounds: list[list[list[int]]] = []
    restored = 0
    for _ in range(2):
        core = EngineCore(model, 12, 16, 4, 64, 180, DiskSettings(tmp_path / "kv", 10**8, "tiny"))
        read_always(core)
        rounds.append([])
        for prompt in prompts * 2:
            request = Request("r", np.asarray(prompt, np.int32), make_request("", [1], 5).params)
            core.add(request)
            answers = Answers().run(core)
            assert answers.finish["r", 0] == FinishReason.LENGTH
            rounds[-1].append(answers.ids["r", 0])
            restored += answers.use["r"].restored
            settle(core)
        core.close()
    assert restored > 150
    if dtype == "float32":
        assert rounds[0] == [greedy_alone(model, prompt, 5) for prompt in prompts] * 2
    if dtype != "bfloat16":  # there the last bits depend on how the work is cut
        assert rounds[0] == rounds[1]


def test_threads_end_with_the_engine(tmp_path):
    before = set(threading.enumerate())
    core = make_core(disk=DiskSettings(tmp_path, 10**6, "ledger"))
    ours = set(threading.enumerate()) - before
    assert len(ours) == 2
    ask(core, PROMPT)
    core.close()
    for thread in ours:
        thread.join(HANG_S)  # the one that measures a slow disk is not waited for
        assert not thread.is_alive()
