"""The tier below the KV pool: blocks that leave the pool are kept on disk, and come back when a line asks for them.

    evicted, finished with a retention time,
    or held at shutdown                             ──offer──> BlockWriter ──> BlockStore (a directory)
    admitted, and the next blocks are in the store  ──begin──> BlockReader <──────┘
                                pool and tree <──deliver──────────┘

The engine thread's side of it, and its only caller: it copies blocks out of the pool and into it, and never waits for
the disk but when it has nothing else to do (`wait`). Whole blocks only; what is missing of a line is computed.
"""

import hashlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenline.engine.block_reader import Arrival, BlockReader, Restore
from tokenline.engine.block_store import BlockStore, use_ns
from tokenline.engine.block_writer import BlockWriter, NewBlock
from tokenline.engine.kv_file import FORMAT
from tokenline.engine.prefill_budget import PrefillSpeed
from tokenline.engine.prefix_cache import Tail
from tokenline.engine.prefix_hashes import PrefixHashes, mark_of
from tokenline.engine.read_or_compute import ReadOrCompute
from tokenline.engine.sequence import Sequence
from tokenline.models.base import KVPool, Model

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 64 << 20  # on the way to the disk
MAX_ARRIVED_BYTES = 32 << 20  # read and not yet in the pool; also what is copied between two steps at most
SAVE_S = 5.0  # for writing at shutdown


@dataclass(frozen=True, slots=True)
class DiskSettings:
    folder: Path
    max_bytes: int
    model: str  # names the weights: other weights must have another name


@dataclass(frozen=True, slots=True)
class DiskStats:
    files: int  # in the directory, as far as is known
    bytes: int
    max_bytes: int
    written: int  # blocks since the start
    dropped: int  # blocks not written, since the disk did not keep up
    restored: int  # blocks


def model_key(name: str, model: Model, kv: KVPool) -> bytes:
    """Names everything that a block's values depend on beside its line: 32 bytes.

    The class and `precision` tell one backend from another, and int8 weights from bfloat16 ones; `arithmetic` and
    `device` tell CPUs, GPUs and versions of the code apart.
    """
    computed_by = (type(model).__qualname__, model.precision, model.weight_bytes, model.arithmetic, model.device)
    parts = (FORMAT, name, *computed_by, kv.layout, kv.block_size)
    return hashlib.sha256(repr(parts).encode()).digest()


class DiskTier:
    """All methods belong to the engine thread."""

    def __init__(self, settings: DiskSettings, kv: KVPool, prefix_hashes: PrefixHashes, prefill_speed: PrefillSpeed):
        """Open the directory. Raises SettingError when it cannot be used. `prefix_hashes.root` is the `model_key`."""
        self._kv = kv
        self._hashes = prefix_hashes
        self._block_bytes = len(kv.export_block(0))
        self.store = BlockStore(
            settings.folder,
            settings.max_bytes,
            model=prefix_hashes.root,
            block_size=kv.block_size,
            block_bytes=self._block_bytes,
        )
        self.rule = ReadOrCompute(prefill_speed)
        self._writer = BlockWriter(self.store, max(8, MAX_QUEUED_BYTES // self._block_bytes))
        self._reader = BlockReader(self.store, self.rule, kv.block_size, max(4, MAX_ARRIVED_BYTES // self._block_bytes))
        self._open: list[Restore] = []  # until the reader is done with them
        self._late: list[Restore] = []  # those of them that were given up since they took too long
        self._dropped = 0
        self._restored = 0

    @property
    def is_writing(self) -> bool:
        """Whether blocks wait to be written, or to be removed."""
        return self._writer.is_busy

    def stats(self) -> DiskStats:
        store = self.store
        return DiskStats(
            store.num_files, store.total_bytes, store.max_bytes, self._writer.written, self._dropped, self._restored
        )

    # ---- to the disk

    def offer(
        self, keys: list[bytes], ids: np.ndarray, first: int, blocks: Iterable[int], until_s: float | None = None
    ) -> None:
        """Keep the whole blocks of a line of which `blocks` are number `first` and on.

        Where the queue has no room, wait for it until `until_s` (time.monotonic()), or drop the block.
        """
        size, now_ns = self._kv.block_size, time.time_ns()
        for number, block in enumerate(blocks, first):
            if number + 1 >= len(keys):
                return
            parent, key, used_ns = keys[number], keys[number + 1], use_ns(now_ns, number)
            if self._writer.has(key):
                continue
            if self.store.holds(key):
                self._writer.put(NewBlock(parent, key, ids[:0], used_ns, None))
                continue
            wait_s = 0.0 if until_s is None else max(0.0, until_s - time.monotonic())
            kv = self._export(block) if self._writer.has_room or wait_s else None
            new = NewBlock(parent, key, ids[number * size : (number + 1) * size].copy(), used_ns, kv)
            if kv is None or not self._writer.put(new, wait_s):
                self._dropped += 1

    def keep(self, tail: Tail, until_s: float | None = None) -> None:
        """`offer` the tail of a line, if it may be kept."""
        if tail.storable:
            keys = self._hashes.of(tail.namespace, tail.ids)
            self.offer(keys, tail.ids, tail.start // self._kv.block_size, tail.blocks, until_s)

    def _export(self, block: int) -> np.ndarray | None:
        try:
            return self._kv.export_block(block)
        except Exception:
            log.exception("block %d cannot be copied for the disk cache", block)
            return None

    # ---- from the disk

    def begin(self, sequence: Sequence) -> None:
        """Have what the store holds of a sequence's line read, from where it is computed on, if that is worth it.

        The sequence has all its blocks already, and is not to be computed while `sequence.restore` is set.
        """
        size = self._kv.block_size
        first, end = sequence.computed // size, len(sequence.reusable) // size
        if end <= first or not self.store.num_files or self._writer.is_clearing or self._late:
            return
        keys = self._hashes.of(sequence.namespace, sequence.line[: end * size])
        last = first
        while last < end and self.store.holds(keys[last + 1]):
            last += 1
        tokens = last * size - sequence.computed
        if last == first or not self.rule.read_is_faster((last - first) * self._block_bytes, tokens):
            return
        restore = Restore(sequence, keys, first, last, time.monotonic() + self.rule.patience_s(tokens))
        sequence.restore = restore
        self._open.append(restore)
        self._reader.start(restore)

    def deliver(self) -> list[Sequence]:
        """Put what has arrived into the pool; returns the sequences of whose lines more is computed now."""
        grown: dict[int, Sequence] = {}
        for arrival in self._reader.arrived():
            if self._take(arrival):
                grown[id(arrival.restore.sequence)] = arrival.restore.sequence
        for restore in self._open:
            if restore.is_wanted and time.monotonic() > restore.deadline_s:
                restore.sequence.restore = None
                self._late.append(restore)
                log.warning("the disk cache took too long: a line is computed after all")
        return list(grown.values())

    def _take(self, arrival: Arrival) -> bool:
        restore, sequence = arrival.restore, arrival.restore.sequence
        if arrival.kv is None:
            self._open.remove(restore)
            if restore in self._late:
                self._late.remove(restore)
        if not restore.is_wanted:
            return False
        if arrival.kv is None:
            sequence.restore = None
            return False
        try:
            self._kv.import_block(sequence.blocks[arrival.number], arrival.kv)
        except Exception:
            log.exception("a block from the disk cache cannot be used")
            sequence.restore = None
            return False
        end = (arrival.number + 1) * self._kv.block_size
        sequence.restored += end - sequence.computed
        sequence.computed = end
        self._restored += 1
        return True

    def wait(self, seconds: float) -> None:
        """Until something arrives, for a sequence that has to wait for it."""
        self._reader.wait(seconds)

    # ---- the end of things

    def clear(self, caller: str | None = None) -> None:
        """Forget what this model has of a caller in the directory; None: of all."""
        for restore in self._open:
            if restore.is_wanted and caller in (None, restore.sequence.namespace.caller):
                restore.sequence.restore = None
        self._writer.clear(b"" if caller is None else mark_of(caller))

    def close(self, tails: Iterable[Tail] = ()) -> None:
        """Keep `tails` as far as the time allows, then stop both threads."""
        deadline_s = time.monotonic() + SAVE_S
        self._reader.close()
        for tail in tails:
            if time.monotonic() > deadline_s:
                break
            self.keep(tail, deadline_s)
        self._writer.close(max(0.0, deadline_s - time.monotonic()))
