"""Where Numba keeps compiled kernels, and how they are written and read.

In TOKENLINE_CACHE; without it beside their source, else in the user's cache folder, else where `cache.writable_cache`
says. Numba itself tries the two in the middle and fails if neither can be written to, as in a read-only container or
for a user without a home. Called by `models.cpu` before it compiles anything.

Numba believes what it finds: it unpickles its files and runs what is in them, so a file that a power cut left empty, or
one flipped bit, ends the process. So each file carries a checksum of its name and contents, looked at before anything
else is. What does not match, what cannot be read and what another version wrote is compiled again; where nothing can be
written (a full disk), the next start compiles again. The checksum finds accidents. It is no signature: whoever may
write into the folder can run code here, as with the package itself.
"""

import contextlib
import functools
import hashlib
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from tokenline.files import write_atomically
from tokenline.models.cache import chosen_cache, writable_cache

log = logging.getLogger(__name__)

_MAGIC = b"tokenline kernel 1"  # ends each file, behind a SHA-256; unpickling stops before both
_LEFT_OVER_S = 3600  # a temporary file of that age is no other process's that compiles now


def ensure_kernel_cache() -> None:
    """Give Numba a folder, unless NUMBA_CACHE_DIR does or it finds one itself, and have its files checked."""
    file: Any = caching.IndexDataCacheFile
    file._load_index, file._save_index = _load_index, _save_index
    file.load, file.save = _load, _save
    caching.Cache.save_overload = _save_if_possible  # type: ignore[method-assign]
    if not numba.config.CACHE_DIR and (chosen_cache() is not None or not _finds_a_folder()):  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = str(writable_cache() / "kernels")  # type: ignore[attr-defined]


def _finds_a_folder() -> bool:
    try:
        numba.njit(cache=True)(_any_function)  # compiles nothing yet
    except RuntimeError:  # "cannot cache function ...: no locator available"
        return False
    return True


def _any_function() -> None:
    pass


_save_overload: Any = caching.Cache.save_overload


def _save_if_possible(cache: Any, signature: Any, compiled: Any) -> None:
    try:
        _save_overload(cache, signature, compiled)
    except OSError as error:
        _warn_once(f"[Errno {error.errno}] {error.strerror}: {cache.cache_path}")


@functools.cache
def _warn_once(reason: str) -> None:
    log.warning("compiled kernels cannot be kept for the next start: %s", reason)


# The next four take the place of methods of Numba's `IndexDataCacheFile`, one for each function that is kept: an index
# of its signatures, and a file of machine code for each.


def _load(file: Any, key: Any) -> Any:
    """What was compiled for a signature; None: nothing that can be used."""
    name = _load_index(file).get(key)
    if name is None:
        return None
    return _unpickled(Path(file._data_path(name)))


def _save(file: Any, key: Any, data: Any) -> None:
    """The code first, so that an index never names what is not there. A signature's file is named after it: two
    processes that compile two signatures at once never write each other's.
    """
    _remove_left_over(file)
    overloads = _load_index(file)
    name = overloads.get(key) or f"{file._index_name.removesuffix('.nbi')}.{_short_hash(key)}.nbc"
    if not overloads:
        for stale in _siblings(file, "*.nbc"):  # of an older version of the source
            stale.unlink(missing_ok=True)
    _write(Path(file._data_path(name)), file._dump(data))
    _save_index(file, {**overloads, key: name})


def _load_index(file: Any) -> dict[Any, str]:
    """The files of a function's signatures. Empty if the source is another one, or Numba."""
    contents = _unpickled(Path(file._index_path))
    if contents is None or contents[:2] != (file._version, file._source_stamp):
        return {}
    return contents[2]


def _save_index(file: Any, overloads: dict[Any, str]) -> None:
    _write(Path(file._index_path), file._dump((file._version, file._source_stamp, overloads)))


def _unpickled(path: Path) -> Any:
    """The contents of a file that is just as it was written; else None."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.info("a compiled kernel cannot be read: %s", error)
        return None
    contents = data[: -len(_MAGIC) - hashlib.sha256().digest_size]
    if data != contents + _trailer(path, contents):
        log.info("%s is not as it was written; what it holds is compiled again", path)
        return None
    try:
        return pickle.loads(contents)
    except Exception as error:  # a class of another version of this package that is gone
        log.info("compiled kernels of another version are not used: %s", error)
        return None


def _write(path: Path, contents: bytes) -> None:
    write_atomically(path, contents + _trailer(path, contents), mode=0o644, sync=True)


def _trailer(path: Path, contents: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + contents).digest() + _MAGIC


def _remove_left_over(file: Any) -> None:
    """What processes that were killed had begun to write."""
    for path in _siblings(file, "*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _LEFT_OVER_S:
                path.unlink()


def _siblings(file: Any, pattern: str) -> list[Path]:
    base = file._index_name.removesuffix("nbi")
    return [path for path in Path(file._cache_path).glob(pattern) if path.name.startswith(base)]


def _short_hash(key: Any) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]
