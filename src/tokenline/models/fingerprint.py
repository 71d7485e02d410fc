"""A hash of a model's files, so that the keys and values of one model are never used for another.

Every byte counts: two fine-tunes of one model differ in nothing but their weights. Hashing reads all files, as fast as
the disk or as SHA-256 on all cores. `memo`, a small file, remembers the result for files that have not changed since.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenline.files import write_atomically
from tokenline.models.errors import ModelError
from tokenline.models.progress import Progress, no_progress

PIECE_BYTES = 16 << 20
READ_BYTES = 1 << 20


def weights_fingerprint(path: Path, memo: Path | None = None, progress: Progress = no_progress) -> str:
    """64 hex digits for a .gguf file, or for config.json and the *.safetensors of a directory.

    Raises ModelError when a file cannot be read. A memo that cannot be read or written is no error.
    """
    what = f"hashing {path.name}"
    try:
        files = _files(path)
        known = _read_memo(memo)
        states = {file: _state(file) for file in files}
        unknown = [file for file in files if known.get(str(file), {}).get("state") != states[file]]
        found = {file: {"state": states[file], "sha256": digest} for file, digest in _hash(unknown, what, progress)}
    except OSError as error:
        raise ModelError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    known |= {str(file): entry for file, entry in found.items()}
    if found and memo is not None:
        _write_memo(memo, known)
    # File names in a directory count, its path does not: a model that was moved is the same model.
    parts = [(file.name if path.is_dir() else "", known[str(file)]["sha256"]) for file in files]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [path / "config.json", *sorted(path.glob("*.safetensors"))]


def _state(file: Path) -> list[int | str]:
    """Changes whenever the content may have: nobody can set a file's ctime."""
    status = file.stat()
    return [str(file.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hash(files: list[Path], what: str, progress: Progress) -> Iterator[tuple[Path, str]]:
    """The SHA-256 of the SHA-256s of each file's pieces, which are hashed in parallel (hashlib releases the GIL)."""
    sizes = {file: file.stat().st_size for file in files}
    total, done = sum(sizes.values()), 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for file in files:
            digest = hashlib.sha256()
            starts = range(0, sizes[file], PIECE_BYTES)
            for piece in threads.map(_hash_piece, [file] * len(starts), starts):
                digest.update(piece)
                done = min(done + PIECE_BYTES, total)
                progress(what, done, total)
            yield file, digest.hexdigest()


def _hash_piece(file: Path, start: int) -> bytes:
    digest = hashlib.sha256()
    with open(file, "rb") as data:
        data.seek(start)
        left = PIECE_BYTES
        while left and (read := data.read(min(left, READ_BYTES))):
            digest.update(read)
            left -= len(read)
    return digest.digest()


def _read_memo(memo: Path | None) -> dict[str, dict]:
    if memo is None:
        return {}
    try:
        known = json.loads(memo.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        file: entry
        for file, entry in known.items()
        if isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and len(entry["sha256"]) == 64
    }


def _write_memo(memo: Path, known: dict[str, dict]) -> None:
    with contextlib.suppress(OSError):
        memo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(memo, json.dumps(known).encode())
