"""A place for compiled kernels, wherever the package is installed and whoever runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.limits import HANG_S

COMPILE = """
from pathlib import Path
import numba
import tokenline.models.cpu
from tokenline.models.kernel_cache import _any_function
numba.njit(cache=True)(_any_function)()
print(numba.config.CACHE_DIR, len(list(Path(numba.config.CACHE_DIR or ".").rglob("*.nbi"))))
"""


def compile_in(folder: Path, says: str = "", **environment: str) -> str:
    """Compile something of the package that lies in `folder`: where it is kept, and how many such files are there.

    `says`: a part of the one line on stderr; without it, there is none.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "TOKENLINE_"))}
    env |= {"PYTHONPATH": str(folder), "TMPDIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=env, cwd=folder, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == bool(says), done.stderr
    assert says in done.stderr
    return done.stdout.strip()


def copy_package(folder: Path) -> Path:
    source = Path(__file__).parents[2] / "src" / "tokenline"
    shutil.copytree(source, folder / "tokenline", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "tokenline" / "models"


def test_kernels_are_kept_beside_their_source(tmp_path: Path) -> None:
    models = copy_package(tmp_path)
    assert compile_in(tmp_path) == "1"
    assert list(models.glob("__pycache__/*.nbi"))


def read_only(folder: Path) -> dict[str, str]:
    """Nothing can be kept beside the source of the package in `folder`, nor in a home: the environment for that."""
    (copy_package(folder) / "__pycache__").touch()  # a file, so that nobody, not even root, can put anything into it
    return {"HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache"}


def test_without_a_home_they_go_to_a_temporary_folder_and_the_next_start_finds_them(tmp_path: Path) -> None:
    environment = read_only(tmp_path)
    place, files = compile_in(tmp_path, says="set TOKENLINE_CACHE", **environment).split()
    assert (place, files) == (str(tmp_path / f"tokenline-{os.getuid()}" / "kernels"), "1")
    assert Path(place).parent.stat().st_mode & 0o777 == 0o700
    (compiled,) = Path(place).rglob("*.nbc")
    written = compiled.stat().st_mtime_ns
    assert compile_in(tmp_path, says="set TOKENLINE_CACHE", **environment) == f"{place} 1"
    assert compiled.stat().st_mtime_ns == written


def test_code_is_never_loaded_from_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    environment = read_only(tmp_path)
    others = tmp_path / f"tokenline-{os.getuid()}"
    others.mkdir()
    others.chmod(0o777)
    place = Path(compile_in(tmp_path, says="set TOKENLINE_CACHE", **environment).split()[0])
    assert place.parent.parent == tmp_path
    assert place.parent != others
    assert not place.exists()  # for the time of the process


def test_they_are_kept_in_tokenline_cache(tmp_path: Path) -> None:
    models = copy_package(tmp_path)
    chosen = tmp_path / "chosen" / "cache"
    assert compile_in(tmp_path, TOKENLINE_CACHE=str(chosen)) == f"{chosen / 'kernels'} 1"
    assert not list(models.rglob("*.nbi"))
    numba = tmp_path / "numba"
    assert compile_in(tmp_path, TOKENLINE_CACHE=str(chosen), NUMBA_CACHE_DIR=str(numba)) == f"{numba} 1"


def test_a_tokenline_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    copy_package(tmp_path)
    (tmp_path / "file").touch()
    place = compile_in(tmp_path, says=f"{tmp_path}/file/cache cannot be written to", TOKENLINE_CACHE="file/cache")
    assert place == f"{tmp_path / f'tokenline-{os.getuid()}' / 'kernels'} 1"
