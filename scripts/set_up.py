"""Make .venv fit to run tokenline: `make serve` and `make test` call this first, each time.

    python3 scripts/set_up.py venv|runtime|dev FOLDER

Runs on any Python 3.7 or newer, so that an old one can say what is needed. Looks for a Python that will do, mends an
environment that is broken or half made, and installs with the pins of requirements.lock. When all is done already it
says nothing and ends at once.

A stamp in the environment says what was installed, and where: it counts while pyproject.toml and the lock are older.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

NEEDED = (3, 11)
OTHERS = ("python3.13", "python3.12", "python3.11", "python3.14", "python3")  # where the one we run on will not do
EXTRAS = {"runtime": ".", "dev": ".[dev]"}
# Measured on Linux in December 2026: what pip downloads, and what it becomes on the disk.
SIZES = {
    "runtime": "about 130 MB to download, 0.4 GB on disk",
    "dev": "with PyTorch: 0.4 to 3 GB to download, by platform",
}
ROOT = Path(__file__).resolve().parent.parent
OFFLINE = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Connection refused", "ProxyError")


def main() -> None:
    wanted, venv = sys.argv[1], ROOT / sys.argv[2]
    if wanted in EXTRAS and is_installed(venv, wanted):
        return
    make_venv(venv)
    if wanted in EXTRAS:
        install(venv, wanted)


def is_installed(venv: Path, wanted: str) -> bool:
    try:
        time_of_stamp = (venv / ("." + wanted)).stat().st_mtime
    except OSError:
        return False
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "requirements.lock"))
    return time_of_stamp >= newest and what_is_wrong(venv) is None


# --- the environment -------------------------------------------------------------------------------------------------


def make_venv(venv: Path) -> None:
    """Leave a usable environment at `venv`; one that is not is made anew."""
    wrong = what_is_wrong(venv)
    if wrong is None and (venv / "bin" / "pip").exists():
        return
    python = find_python()
    if venv.is_symlink():
        fail(f"{venv.name} is a link to an environment that cannot be used: {wrong}. Remove the link.")
    if venv.exists():
        print(f"mending {venv.name}: {wrong or 'it has no pip'}", flush=True)
        shutil.rmtree(str(venv))
    else:
        print(f"setting up {venv.name} with {python}", flush=True)
    made = subprocess.run([python, "-m", "venv", str(venv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        shutil.rmtree(str(venv), ignore_errors=True)
        said = made.stdout.decode(errors="replace")
        if "ensurepip" in said:
            fail(f"{python} cannot make environments; on Debian or Ubuntu: apt install python3-venv")
        fail(f"{python} -m venv {venv.name} failed: {last_line(said)}")


def what_is_wrong(venv: Path) -> str | None:
    """Why the environment cannot be used; None: it can."""
    python = venv / "bin" / "python"
    if not venv.exists():
        return "there is none"
    version = version_of(str(python))
    if version is None:
        return "its Python does not start"
    if version < NEEDED:
        return f"it was made by Python {dotted(version)}, and tokenline needs {dotted(NEEDED)} or newer"
    # An empty stamp is one of an earlier version. A folder that was moved has scripts that lead to its old place.
    stamps = [stamp for stamp in (venv / ".runtime", venv / ".dev") if stamp.exists() and stamp.stat().st_size]
    if any(stamp.read_text() != str(venv.resolve()) for stamp in stamps):
        return "it was made in another folder"
    return None


def version_of(python: str) -> tuple[int, int] | None:
    """None where it does not start or cannot make environments."""
    try:
        said = subprocess.run(
            [python, "-c", "import sys, venv; print(*sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        ).stdout.split()
        return int(said[0]), int(said[1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def find_python() -> str:
    """The Python we run on if it is new enough, else one on PATH."""
    own = sys.version_info[:2]
    if own >= NEEDED:
        return sys.executable
    for name in OTHERS:
        found = shutil.which(name)
        version = version_of(found) if found else None
        if found and version and version >= NEEDED:
            return found
    return fail(
        f"Python {dotted(NEEDED)} or newer is needed, and {sys.executable} is {dotted(own)}. Install a newer one, or "
        "name it: make serve PYTHON=/path/to/python3.12"
    )


# --- the packages ----------------------------------------------------------------------------------------------------


def install(venv: Path, wanted: str) -> None:
    print(f"installing what tokenline needs into {venv.name} ({SIZES[wanted]})", flush=True)
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--constraint", "requirements.lock", "--editable", EXTRAS[wanted]]
    pip = subprocess.Popen(
        command, cwd=str(ROOT), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    log = watch(pip)
    if pip.wait():
        if any(sign in log for sign in OFFLINE):
            fail("the package index cannot be reached (no network?); `make` goes on from here when there is one")
        errors = [line[len("ERROR: ") :] for line in log.splitlines() if line.startswith("ERROR: ")]
        fail(f"pip says: {errors[0] if errors else last_line(log)}")
    (venv / ("." + wanted)).write_text(str(venv.resolve()))
    if wanted == "dev":
        (venv / ".runtime").write_text(str(venv.resolve()))


def watch(pip: subprocess.Popen[bytes]) -> str:
    """Show in one line what pip does, and return all that it said. Without a terminal, a line each half minute."""
    assert pip.stdout is not None
    lines = []
    packages = 0
    terminal = sys.stdout.isatty()
    shown_at = time.monotonic()
    for raw in pip.stdout:
        line = raw.decode(errors="replace").rstrip()
        lines.append(line)
        doing = step_of(line)
        if doing is None:
            continue
        packages += doing.startswith(("downloading", "taking"))
        text = f"  {packages} packages, {doing}"
        if terminal:
            print("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        elif time.monotonic() > shown_at + 30 or doing.startswith("installing"):
            print(text, flush=True)
            shown_at = time.monotonic()
    if terminal:
        print("\r\x1b[K", end="", flush=True)
    return "\n".join(lines)


def step_of(line: str) -> str | None:
    """What a line of pip's tells a person; None: nothing."""
    found = re.match(r"\s*(Downloading|Using cached|Processing) (?:\S*/)?([A-Za-z0-9_.]+?)-\S+(?: \(([^)]+B)\))?", line)
    if found:
        what = "downloading" if found.group(1) == "Downloading" else "taking"
        size = f" ({found.group(3)})" if found.group(3) else ""
        return f"{what} {found.group(2)}{size}"
    if line.startswith("Installing collected packages"):
        return "installing them"
    return None


def dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def fail(message: str) -> NoReturn:
    sys.exit("tokenline: " + message)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
