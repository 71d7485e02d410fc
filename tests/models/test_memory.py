"""Free memory: the machine's, or what a control group leaves of it."""

from pathlib import Path

import psutil
import pytest

from tokenline.models import memory
from tokenline.models.errors import ModelError
from tokenline.models.memory import available_memory, require_memory


def test_is_no_more_than_the_machine_has() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_version_2_limit_of_this_group_or_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    lines = Path("/proc/self/cgroup")
    if not lines.exists() or not any(line.startswith("0::") for line in lines.read_text().splitlines()):
        pytest.skip("no control groups of version 2 here")
    assert available_memory() > 10e6
    # limits at the root of the tree hold for every group in it, whatever this process's own is
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert available_memory() > 10e6
    (tmp_path / "memory.max").write_text("8000000\n")
    assert available_memory() == 4_000_000
    (tmp_path / "memory.current").write_text("80000000\n")
    assert available_memory() == 0


def test_version_1_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # how it says "none"
    (folder / "memory.usage_in_bytes").write_text("3000000\n")
    (folder / "memory.stat").write_text("cache 5\ntotal_inactive_file 500000\n")
    assert available_memory() > 10e6
    (folder / "memory.limit_in_bytes").write_text("7000000\n")
    assert available_memory() == 4_500_000


def test_version_1_limits_of_this_group_and_those_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    (tmp_path / "own").write_text("5:cpu:/elsewhere\n4:hugetlb,memory:/user/job\n0::/\n")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    for group, limit in (("", 9_000_000), ("user", 2_000_000), ("user/job", 5_000_000)):
        folder = tmp_path / "memory" / group
        folder.mkdir(exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text("500000\n")
        (folder / "memory.stat").write_text("total_inactive_file 0\n")
    assert available_memory() == 1_500_000
    (tmp_path / "memory" / "user" / "memory.limit_in_bytes").write_text("9000000\n")
    assert available_memory() == 4_500_000


def test_limit_of_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = psutil.Process().memory_info().vms + 50_000_000
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    assert 0 < available_memory() <= 50_000_000


def test_figures_in_the_error() -> None:
    require_memory(3_140_000_000, 3_140_000_000, "a model")
    with pytest.raises(ModelError, match=r"^not enough memory: a model needs 13\.2 GiB, 2\.9 GiB are free$"):
        require_memory(14_200_000_000, 3_140_000_000, "a model")
