"""Whatever lies where a compiled kernel should: it is compiled again, and the answer is right."""

import hashlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenline.models.cpu  # noqa: F401  (its kernels are kept by the same rules)
from tests.limits import HANG_S
from tokenline.models import kernel_cache

SOURCE = """
from numba import njit

@njit(cache=True)
def triple(n):
    return 3 * n

@njit(cache=True)
def negate(n):
    return -n
"""


def kernels(folder: Path) -> Any:
    """The functions above, as a new process would find them."""
    path = folder / "small.py"
    if not path.exists():
        path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("small", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["small"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `kernels` are compiled and kept."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    kernel_cache._warn_once.cache_clear()
    module = kernels(tmp_path)
    assert (module.triple(2), module.negate(2)) == (6, -2)
    assert kept(tmp_path), "kept the first time"
    return tmp_path


def kept(folder: Path) -> bool:
    """Whether a new process has nothing to compile; its answer is right either way."""
    triple = kernels(folder).triple
    assert triple(14) == 42
    return not triple.stats.cache_misses


def the_file(folder: Path, end: str, function: str = "triple") -> Path:
    (found,) = (folder / "cache").rglob(f"small.{function}-*.{end}")
    return found


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replaced(path: Path) -> None:
    path.write_bytes(the_file(path.parents[2], path.suffix[1:], "negate").read_bytes())


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one bit": flipped,
    "garbage": lambda path: path.write_bytes(hashlib.sha256(path.name.encode()).digest() * 99),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another function's": replaced,
    "without a checksum": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "an evil pickle": lambda path: path.write_bytes(b"cos\n_exit\n(I3\ntR."),
}


@pytest.mark.parametrize("end", ["nbi", "nbc"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_compiled_again(folder: Path, end: str, kind: str) -> None:
    DAMAGE[kind](the_file(folder, end))
    assert not kept(folder)
    assert kept(folder), "and kept again"


@pytest.mark.parametrize("end", ["nbi", "nbc"])
def test_a_folder_in_the_place_of_a_file(folder: Path, end: str, caplog: pytest.LogCaptureFixture) -> None:
    path = the_file(folder, end)
    path.unlink()
    path.mkdir()
    assert not kept(folder)
    assert not kept(folder)
    assert len([record for record in caplog.records if "cannot be kept" in record.message]) == 1


def test_an_index_of_another_numba(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("numba.__version__", "0.1")
        assert not kept(folder)
        assert kept(folder)
    assert not kept(folder)


def test_an_index_of_another_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.codegen.CPUCodegen.magic_tuple", lambda self: ("another", "cpu", ""))
        assert not kept(folder)
    assert kept(folder), "both are in the index"


def test_code_of_an_older_source_is_removed(folder: Path) -> None:
    (folder / "small.py").write_text(SOURCE.replace("3 * n", "n + n + n"))
    assert not kept(folder)
    the_file(folder, "nbc")  # the only one


def test_a_full_disk(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A limit for files is as real as a full disk: the write ends in the middle."""
    the_file(folder, "nbi").unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        assert not kept(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be kept for the next start: [Errno 27]" in caplog.text
    assert not list((folder / "cache").rglob("*.tmp"))
    assert not kept(folder)
    assert kept(folder)


def test_what_killed_processes_left_is_removed(folder: Path) -> None:
    index = the_file(folder, "nbi")
    old, new = (index.with_name(f"{index.name}.{number}.tmp") for number in (1, 2))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    index.unlink()
    assert not kept(folder)
    assert (old.exists(), new.exists()) == (False, True)


CHILD = """
import importlib.util, os, sys
import tokenline.models.cpu
from tokenline.models import kernel_cache
if sys.argv[2] == "killed":
    write = kernel_cache._write
    def killed(path, contents):
        write(path, contents) if path.suffix == ".nbc" else os.kill(os.getpid(), 9)
    kernel_cache._write = killed
sys.path.insert(0, sys.argv[1])
import small
print("ready", flush=True)
input()
assert small.triple(14) == 42
assert small.triple(1.5) == 4.5
"""


def child(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), how],
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_killed_between_its_two_files(folder: Path) -> None:
    the_file(folder, "nbi").unlink()
    process = child(folder, "killed")
    process.communicate("\n", timeout=HANG_S)
    assert process.returncode == -signal.SIGKILL
    assert not kept(folder)
    assert kept(folder)


def test_two_processes_at_once(folder: Path) -> None:
    the_file(folder, "nbi").unlink()
    processes = [child(folder, "lives") for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(HANG_S) for process in processes] == [0, 0]
    assert kernels(folder).triple(14) == 42
    assert kernels(folder).triple(1.5) == 4.5


def test_a_folder_that_only_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is used; the rest is compiled each time. Root may write anywhere, so the system's word is given."""

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kernel_cache, "_write", refused)
    assert kept(folder)
    the_file(folder, "nbc").unlink()
    assert not kept(folder)
