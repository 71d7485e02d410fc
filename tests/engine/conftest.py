"""A disk that is really full at 1 MiB, where this machine lets us make one."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits import never_give_up_on_the_disk


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    never_give_up_on_the_disk(monkeypatch)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if not mount or not umount:
        pytest.skip("no mount here")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m,nr_inodes=0", "tokenline-test", folder], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"cannot mount here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", folder], check=True)
