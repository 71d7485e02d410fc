"""A place for compiled kernels, wherever the package is installed and whoever runs it."""

import os
import pickle
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


def compile_in(folder: Path, **environment: str) -> str:
    """Compile something of the package that lies in `folder`; what was said about its place."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    env |= {"PYTHONPATH": str(folder), "TMPDIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=env, cwd=folder, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def copy_package(folder: Path) -> Path:
    source = Path(__file__).parents[2] / "src" / "tokenline"
    shutil.copytree(source, folder / "tokenline", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "tokenline" / "models"


def test_kernels_are_kept_beside_their_source(tmp_path: Path) -> None:
    models = copy_package(tmp_path)
    assert compile_in(tmp_path) == "1"
    assert list(models.glob("__pycache__/*.nbi"))


def test_a_package_and_a_home_that_cannot_be_written_to_keep_them_for_the_time_of_the_process(tmp_path: Path) -> None:
    models = copy_package(tmp_path)
    (models / "__pycache__").touch()  # a file, so that nobody, not even root, can put anything into it
    place, files = compile_in(tmp_path, HOME="/dev/null/home", XDG_CACHE_HOME="/dev/null/cache").split()
    assert Path(place).parent == tmp_path
    assert files == "1"
    assert not Path(place).exists()


def test_an_index_that_cannot_be_read_is_overlooked(tmp_path: Path) -> None:
    """As after an upgrade, where a class that it refers to has another place; or cut off."""
    models = copy_package(tmp_path)
    compile_in(tmp_path)
    (index,) = models.glob("__pycache__/*.nbi")
    with index.open("rb") as file:
        pickle.load(file)  # Numba's version, before the index itself
        version = index.read_bytes()[: file.tell()]
    for rest in (b"ctokenline.models.cpu.gone\nThing\n.", b""):
        index.write_bytes(version + rest)
        assert compile_in(tmp_path) == "1"
        assert len(index.read_bytes()) > len(version) + len(rest), "compiled and kept once more"
