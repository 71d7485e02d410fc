"""How many threads: what is asked for, else physical cores within affinity and quota."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tokenline.models import threads
from tokenline.models.threads import usable_threads


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 logical CPUs of 4 cores, all allowed, no control groups."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    for cpu in range(8):
        folder = tmp_path / "topology" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "own").write_text("")
    monkeypatch.setattr(threads, "_TOPOLOGY", tmp_path / "topology")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(("asked", "given"), [("3", 3), ("12", 12), ("2,4", 2), (" 5 ", 5)])
def test_what_is_asked_for(machine: Path, monkeypatch: pytest.MonkeyPatch, asked: str, given: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usable_threads() == given


@pytest.mark.parametrize("asked", ["", "0", "-1", "many", "²"])
def test_what_is_no_number_asks_for_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usable_threads() == 4


@pytest.mark.parametrize(
    ("allowed", "cores"), [({0, 4}, 1), ({0, 1}, 2), ({0, 1, 4, 5}, 2), ({3}, 1), (set(range(8)), 4)]
)
def test_one_for_each_core_that_is_allowed(
    machine: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert usable_threads() == cores


def test_where_the_system_says_less(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_TOPOLOGY", machine / "nothing")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 3)
    assert usable_threads() == 3
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: None)
    assert usable_threads() == 8
    monkeypatch.delattr(os, "sched_getaffinity")  # Windows, macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_threads() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_threads() == 1


@pytest.mark.parametrize(
    ("limit", "given"),
    [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2), ("130000 100000", 1), ("1000 100000", 1), ("?", 4)],
)
def test_quota_of_version_2(machine: Path, limit: str, given: int) -> None:
    (machine / "own").write_text("0::/a/b\n")
    group = machine / "cgroup" / "a"
    (group / "b").mkdir(parents=True)
    (group / "b" / "cpu.max").write_text("max 100000\n")
    (group / "cpu.max").write_text(limit + "\n")  # a group above limits those in it
    assert usable_threads() == given


@pytest.mark.parametrize("seen", ["/docker/1", "/"])
def test_quota_of_version_1(machine: Path, seen: str) -> None:
    (machine / "own").write_text(f"4:memory:/x\n3:cpu,cpuacct:{seen}\n")
    group = machine / "cgroup" / "cpu" / seen.lstrip("/")
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_threads() == 4
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    assert usable_threads() == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_of_a_real_process() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from tokenline.models.threads import usable_threads; print(usable_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"
