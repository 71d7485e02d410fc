"""A bounded directory of KV blocks: which are there, which go first, and what happens when the disk says no.

Each block is a file named by model and key, so that processes can share a directory without a word to each other: they
would write the same bytes under the same name. The least recently used files go first: a file's time of change is the
time of its last use, see `use_ns`. Files of other models are left alone until they are the oldest; files with other
names are never touched.

Nothing here raises: a file that cannot be read or kept is a miss. `holds` may be called by any thread, `read` by one,
and all that writes by one other.
"""

import contextlib
import errno
import logging
import os
import re
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenline.engine.errors import SettingError
from tokenline.engine.kv_file import HEADER_BYTES, BadBlock, KVBlock, decode, encode, read_file
from tokenline.files import write_atomically

log = logging.getLogger(__name__)

OUR_FILE = re.compile(r"kv-[0-9a-f]{16}-[0-9a-f]{64}\.safetensors")
OUR_TEMPORARY_FILE = re.compile(r"kv-[\w.-]+\.tmp")
TEMPORARY_S = 60.0  # a temporary file older than this has been left by a killed process
PAUSE_S = 60.0  # after a failed write
STEP_NS = 1_000_000  # between the blocks of a line, see `use_ns`
TICK_NS = 2_000_000_000  # of a file system's clock; the coarsest there is (FAT)
SHARE_TRIMMED = 1 / 16  # of the bound, beyond what is needed, so that the order is not sorted for every block
SHARE_GIVEN_BACK = 1 / 10  # of what is there, when the disk is full


class _File(NamedTuple):
    size: int
    used_ns: int


class BlockStore:
    """At most `max_bytes` of files in `folder`, those of other models and other processes included."""

    def __init__(self, folder: Path, max_bytes: int, *, model: bytes, block_size: int, block_bytes: int):
        """List what is there. SettingError: a directory that cannot be used at all, or too small a bound."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._model = model  # 32 bytes, see `kv_file`
        self._block_bytes = block_bytes
        self._max_file_bytes = block_bytes + 4 * block_size + HEADER_BYTES
        self._files: dict[str, _File] = {}
        self._total_bytes = 0
        self._lock = threading.Lock()  # held for moments, never while the disk works
        self._scanned_mtime_ns: int | None = None  # the folder's, if it would show what came after the scan
        self._next_scan_s = 0.0
        self._paused_until_s = 0.0
        self._complained: set[str] = set()
        if max_bytes < self._max_file_bytes:
            raise SettingError(
                "cache_dir_size",
                f"of {max_bytes:,} bytes is less than one block of keys and values, {self._max_file_bytes:,} bytes",
            )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._scan()
            _try_to_write(folder)
        except OSError as error:
            raise SettingError("cache_dir", f"{folder}: {error.strerror or error}") from error

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    @property
    def num_files(self) -> int:
        return len(self._files)

    def holds(self, key: bytes) -> bool:
        """Whether a block is there, as far as is known. Never waits for the disk."""
        return self._name(key) in self._files

    def read(self, parent: bytes, key: bytes, ids: np.ndarray, used_ns: int) -> np.ndarray | None:
        """The bytes of the block of that name, which holds `ids`; None: it cannot be read."""
        name = self._name(key)
        path = self.folder / name
        try:
            block = decode(read_file(path, self._max_file_bytes))
            if len(block.kv) != self._block_bytes or not block.is_for(self._model, parent, key, ids):
                raise BadBlock("it holds another block")
        except BadBlock as error:
            self._complain("bad block", f"{path}: {error}; removed")
            self._remove(name)
            return None
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._complain(f"read {error.errno}", f"{path}: {error.strerror}")
            self._forget(name)
            return None
        self.touch(key, used_ns)
        return block.kv

    def write(self, parent: bytes, key: bytes, ids: np.ndarray, kv: np.ndarray, used_ns: int) -> bool:
        """Keep a block, at the cost of older ones where the bound asks for it. False: it was not kept."""
        if time.monotonic() < self._paused_until_s:
            return False
        name = self._name(key)
        data = encode(KVBlock(self._model, parent, key, ids, kv))
        self.refresh()
        if len(data) > self.max_bytes:
            return False
        if self._total_bytes + len(data) > self.max_bytes:
            self._trim(int(self.max_bytes * (1 - SHARE_TRIMMED)) - len(data))
        try:
            write_atomically(self.folder / name, data, sync=True, modified_ns=used_ns)
        except IsADirectoryError:  # somebody made a directory of that name
            return False
        except OSError as error:
            self._give_way(error)
            return False
        self._remember(name, _File(len(data), used_ns))
        return True

    def touch(self, key: bytes, used_ns: int) -> None:
        """The block has been used."""
        name = self._name(key)
        try:
            os.utime(self.folder / name, ns=(used_ns, used_ns))
        except OSError:  # removed by another process, or by hand
            self._forget(name)
            return
        with self._lock:
            if name in self._files:
                self._files[name] = self._files[name]._replace(used_ns=used_ns)

    def refresh(self) -> None:
        """Find out what other processes have written and removed, if that can be and it was not just done."""
        if time.monotonic() < self._next_scan_s:
            return
        try:
            if os.stat(self.folder).st_mtime_ns != self._scanned_mtime_ns:
                self._scan()
        except FileNotFoundError:  # somebody removed the directory
            with self._lock:
                self._files, self._total_bytes = {}, 0
            with contextlib.suppress(OSError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._complain(f"list {error.errno}", f"{self.folder}: {error.strerror}")

    def clear(self, beginning: bytes = b"") -> None:
        """Remove all blocks of this model whose keys begin so."""
        own = f"kv-{self._model.hex()[:16]}-{beginning.hex()}"
        with self._lock:
            names = [name for name in self._files if name.startswith(own)]
        for name in names:
            self._remove(name)

    def _name(self, key: bytes) -> str:
        return f"kv-{self._model.hex()[:16]}-{key.hex()}.safetensors"

    def _scan(self) -> None:
        started_s = time.monotonic()
        mtime_ns = os.stat(self.folder).st_mtime_ns
        files: dict[str, _File] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                is_ours = OUR_FILE.fullmatch(entry.name)
                if not is_ours and not OUR_TEMPORARY_FILE.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if is_ours:
                        files[entry.name] = _File(status.st_size, status.st_mtime_ns)
                    elif time.time() - status.st_mtime > TEMPORARY_S:
                        os.unlink(entry.path)
                except OSError:  # it has just gone, or cannot be read
                    continue
        with self._lock:
            self._files = files
            self._total_bytes = sum(file.size for file in files.values())
        now_s = time.monotonic()
        # what came later in the same tick of the file system's clock would not show in the folder's time
        settled = time.time_ns() - mtime_ns > TICK_NS
        self._scanned_mtime_ns = mtime_ns if settled else None
        self._next_scan_s = now_s + max(1.0, 20 * (now_s - started_s))  # at most a twentieth of the time is spent here

    def _trim(self, to_bytes: int) -> None:
        """Remove the least recently used files until the rest is no more than `to_bytes`."""
        with self._lock:
            by_use = sorted(self._files, key=lambda name: self._files[name].used_ns)
        for name in by_use:
            if self._total_bytes <= to_bytes:
                break
            self._remove(name)

    def _give_way(self, error: OSError) -> None:
        """A block could not be written: be smaller where the disk is full, and wait a while in any case."""
        consequence = "the disk cache pauses"
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and self._files:
            self.max_bytes = int(self._total_bytes * (1 - SHARE_GIVEN_BACK))
            self._trim(self.max_bytes)
            consequence += f" and holds {self.max_bytes:,} bytes at most from now on"
        self._paused_until_s = time.monotonic() + PAUSE_S
        self._complain(f"write {error.errno}", f"{self.folder}: {error.strerror}: {consequence}")

    def _remember(self, name: str, file: _File) -> None:
        with self._lock:
            old = self._files.get(name)
            self._files[name] = file
            self._total_bytes += file.size - (old.size if old else 0)

    def _forget(self, name: str) -> None:
        with self._lock:
            old = self._files.pop(name, None)
            self._total_bytes -= old.size if old else 0

    def _remove(self, name: str) -> None:
        try:
            os.unlink(self.folder / name)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._complain(f"remove {error.errno}", f"{self.folder / name}: {error.strerror}")
        self._forget(name)

    def _complain(self, kind: str, message: str) -> None:
        """Log the first problem of a kind; a thousand files may have it."""
        if kind not in self._complained:
            self._complained.add(kind)
            log.warning("%s (said once)", message)


def use_ns(now_ns: int, number: int) -> int:
    """When block number `number` of a line counts as used if the line is now (time.time_ns()).

    A moment before the block in front of it, so that a line loses its end before its beginning.
    """
    return now_ns - number * STEP_NS


def _try_to_write(folder: Path) -> None:
    """Raise OSError where nothing can be written for another reason than that the disk is full."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
