"""`scripts/set_up.py`, which `make serve` calls: what it says of Pythons and environments that will not do, and how it
mends them. pip is a script of the tests; a real installation is what `make check-lean` does.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "set_up.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with the script in it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    return tmp_path


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def python_of(project: Path, version: str, pip: str = "echo 'Downloading numba-0.68.1-cp311.whl (3.8 MB)'") -> str:
    """The text of a Python of this version, as far as the script uses one. Its calls of pip are written down."""
    return f"""#!/bin/sh
case "$1 $2 $3" in
  "-c import sys"*) echo "{version}" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/bin/pip" ;;
  "-m pip install") echo "$@" >> {project}/pip.log; {pip} ;;
esac
"""


def set_up(project: Path, old_python: bool = False) -> subprocess.CompletedProcess[str]:
    """`old_python`: as if it were run by Python 3.10, with only what is in `project/bin` on PATH."""
    command = [sys.executable, str(project / "scripts" / "set_up.py"), "runtime", ".venv"]
    if old_python:
        code = "import runpy, sys; sys.version_info = (3, 10, 13); sys.argv = sys.argv[1:]; "
        command[1:2] = ["-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')", command[1]]
    environment = os.environ | {"PATH": f"{project}/bin" + ("" if old_python else os.pathsep + os.environ["PATH"])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=project)


def usable(project: Path, **more: str) -> None:
    script(project / ".venv" / "bin" / "python", python_of(project, "3 12", **more))
    script(project / ".venv" / "bin" / "pip", "")


def test_an_old_python_alone_is_one_line_and_leaves_nothing(project: Path) -> None:
    done = set_up(project, old_python=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"tokenline: Python 3.11 or newer is needed, and {sys.executable} is 3.10. Install a newer one, or name it: "
        "make serve PYTHON=/path/to/python3.12\n"
    )
    assert not (project / ".venv").exists()


def test_beside_an_old_python_a_newer_one_is_found(project: Path) -> None:
    script(project / "bin" / "python3.12", "#!/bin/sh\nexit 1\n")  # as pyenv's, for a version that is not chosen
    script(project / "bin" / "python3.11", python_of(project, "3 11").replace("mkdir", "/bin/mkdir"))
    (project / "bin" / "cp").symlink_to("/bin/cp")
    (project / "bin" / "touch").symlink_to(shutil.which("touch") or "/bin/touch")
    done = set_up(project, old_python=True)
    assert done.returncode == 0, done.stderr
    assert f"setting up .venv with {project}/bin/python3.11" in done.stdout
    assert "130 MB to download" in done.stdout
    assert (project / ".venv" / ".runtime").read_text() == str(project / ".venv")


def test_what_is_installed_is_left_alone(project: Path) -> None:
    usable(project)
    assert set_up(project).stdout.startswith("installing what tokenline needs into .venv (about 130 MB")
    assert set_up(project).stdout == ""
    assert len((project / "pip.log").read_text().splitlines()) == 1
    os.utime(project / "requirements.lock")
    os.utime(project / ".venv" / ".runtime", (0, 0))
    assert set_up(project).stdout != "", "the lock is newer"


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("#!/bin/sh\necho 3 10\n", "mending .venv: it was made by Python 3.10, and tokenline needs 3.11 or newer\n"),
        ("#!/nowhere/python\n", "mending .venv: its Python does not start\n"),
        (None, "mending .venv: its Python does not start\n"),
    ],
)
def test_a_broken_environment_is_made_anew(project: Path, python: str | None, said: str) -> None:
    (project / ".venv" / "left").mkdir(parents=True)
    if python is not None:
        script(project / ".venv" / "bin" / "python", python)
    # The Python that runs makes the new one; its pip fails at once, without the network.
    (project / "pyproject.toml").write_text("this is no TOML")
    done = set_up(project)
    assert done.stdout.startswith(said)
    assert not (project / ".venv" / "left").exists()
    assert "pip says: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (project / ".venv" / ".runtime").exists()


def test_an_environment_that_was_moved_is_made_anew(project: Path) -> None:
    usable(project)
    (project / ".venv" / ".runtime").write_text("/elsewhere/.venv")
    assert set_up(project).stdout.startswith("mending .venv: it was made in another folder\n")


def test_a_link_is_never_removed(project: Path) -> None:
    (project / "shared").mkdir()
    (project / ".venv").symlink_to(project / "shared")
    done = set_up(project)
    assert "is a link to an environment that cannot be used: its Python does not start" in done.stderr
    assert (project / "shared").is_dir()


@pytest.mark.parametrize(
    ("pip", "said"),
    [
        ("echo 'WARNING: Retrying after NewConnectionError(...)'; exit 1", "the package index cannot be reached"),
        ("echo 'ERROR: No matching distribution'; exit 1", "pip says: No matching distribution"),
        ("exit 1", "pip says: it said nothing"),
    ],
)
def test_what_pip_cannot_do_is_one_line(project: Path, pip: str, said: str) -> None:
    usable(project, pip=pip)
    done = set_up(project)
    assert done.returncode == 1
    assert done.stderr.startswith(f"tokenline: {said}")
    assert done.stderr.count("\n") == 1
    assert not (project / ".venv" / ".runtime").exists()
