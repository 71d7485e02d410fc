"""A file is written whole or not at all, whatever stops the writer."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tokenline.files import write_atomically


def test_a_file_is_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", sync=True, modified_ns=5_000_000_000)
    write_atomically(path, b"new", sync=True, modified_ns=7_000_000_000)
    assert os.listdir(tmp_path) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_mtime_ns == 7_000_000_000
    assert path.read_bytes() == b"new"


def test_permissions_can_be_wider(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"", mode=0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "file").symlink_to(tmp_path / "other")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "other").read_text() == "theirs"
    assert (tmp_path / "file").read_bytes() == b"ours"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"data")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    write_atomically(small_disk / "file", b"old")
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(small_disk / "file", bytes(2 << 20), sync=True)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small_disk) == ["file"]
    assert (small_disk / "file").read_bytes() == b"old"


WAITS_BEFORE_IT_IS_DONE = """
import os, sys, time
from pathlib import Path
from tokenline.files import write_atomically

def fsync(descriptor):
    print("written", flush=True)
    time.sleep(3600)

os.fsync = fsync
write_atomically(Path(sys.argv[1]), b"new", sync=True)
"""


def test_a_killed_process_leaves_what_was_there_and_a_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    command = [sys.executable, "-c", WAITS_BEFORE_IT_IS_DONE, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(HANG_S)
    assert (tmp_path / "file").read_bytes() == b"old"
    [left] = set(os.listdir(tmp_path)) - {"file"}
    assert left.startswith("file.")
    assert left.endswith(".tmp")
