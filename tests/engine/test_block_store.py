"""The directory: what is kept, what goes first; whatever lies in it or befalls it costs no more than a miss."""

import contextlib
import logging
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tokenline.engine import block_store
from tokenline.engine.block_store import BlockStore, use_ns
from tokenline.engine.errors import SettingError
from tokenline.engine.prefix_hashes import PrefixHashes
from tokenline.engine.request import Namespace

SIZE, KV_BYTES = 4, 4000
MODEL = b"m" * 32


def open_store(folder: Path, max_bytes: int = 10**6, model: bytes = MODEL) -> BlockStore:
    return BlockStore(folder, max_bytes, model=model, block_size=SIZE, block_bytes=KV_BYTES)


class Line:
    """A line of whole blocks and what is stored of it."""

    def __init__(self, first_id: int, blocks: int, model: bytes = MODEL):
        self.ids = np.arange(first_id, first_id + blocks * SIZE, dtype=np.int32)
        self.keys = PrefixHashes(SIZE, model).of(Namespace(), self.ids)
        self.used_ns = time.time_ns()

    def kv(self, number: int) -> np.ndarray:
        return np.full(KV_BYTES, (self.ids[0] + number) % 251, np.uint8)

    def write(self, store: BlockStore, number: int) -> bool:
        ids = self.ids[number * SIZE : (number + 1) * SIZE]
        return store.write(self.keys[number], self.keys[number + 1], ids, self.kv(number), use_ns(self.used_ns, number))

    def read(self, store: BlockStore, number: int) -> np.ndarray | None:
        ids = self.ids[number * SIZE : (number + 1) * SIZE]
        return store.read(self.keys[number], self.keys[number + 1], ids, use_ns(time.time_ns(), number))

    def has(self, store: BlockStore, number: int) -> bool:
        """Whether the block can be read; if so it must be the right one."""
        kv = self.read(store, number)
        assert kv is None or np.array_equal(kv, self.kv(number))
        return kv is not None

    def path(self, store: BlockStore, number: int) -> Path:
        return next(store.folder.glob(f"*-{self.keys[number + 1].hex()}.safetensors"))


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_what_was_written_is_read_by_this_store_and_by_the_next(tmp_path):
    store, line = open_store(tmp_path / "a" / "b"), Line(0, 3)
    assert not store.holds(line.keys[1])
    for number in range(3):
        assert line.write(store, number)
        assert store.holds(line.keys[number + 1])
    for again in (store, open_store(tmp_path / "a" / "b")):
        assert all(again.holds(key) for key in line.keys[1:])
        assert all(line.has(again, number) for number in range(3))
        assert again.total_bytes == disk_bytes(again.folder)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_another_model_finds_nothing(tmp_path):
    store, line = open_store(tmp_path), Line(0, 1)
    line.write(store, 0)
    other = open_store(tmp_path, model=b"n" * 32)
    assert not other.holds(line.keys[1])
    assert not line.has(other, 0)
    assert store.holds(line.keys[1])


def test_the_bound_is_kept_at_every_moment(tmp_path):
    store = open_store(tmp_path, max_bytes=100_000)
    for number in range(100):
        Line(number * 100, 1).write(store, 0)
        assert disk_bytes(tmp_path) <= 100_000
        assert store.total_bytes == disk_bytes(tmp_path)
    assert disk_bytes(tmp_path) > 80_000, "it is used, too"
    assert Line(9900, 1).has(store, 0)
    assert not Line(0, 1).has(store, 0)


def test_the_least_recently_used_goes_first_and_reading_is_use(tmp_path):
    store = open_store(tmp_path, max_bytes=100_000)
    old = Line(1_000_000, 1)
    old.write(store, 0)
    for number in range(40):
        Line(number * 100, 1).write(store, 0)
        assert old.has(store, 0), "it is in use all the time"


def test_a_line_loses_its_end_before_its_beginning(tmp_path):
    store, line = open_store(tmp_path, max_bytes=100_000), Line(0, 10)
    for number in range(10):
        line.write(store, number)
    lengths = []
    for number in range(1, 40):
        Line(number * 100, 1).write(store, 0)
        held = [store.holds(key) for key in line.keys[1:]]
        assert held == sorted(held, reverse=True)
        lengths.append(sum(held))
    assert lengths[0] == 10
    assert lengths[-1] == 0


def test_order_of_use_survives_a_restart(tmp_path):
    store = open_store(tmp_path, max_bytes=100_000)
    lines = [Line(number * 100, 1) for number in range(20)]
    for line in lines:
        line.write(store, 0)
    assert lines[0].has(store, 0)
    store = open_store(tmp_path, max_bytes=100_000)
    for number in range(100, 110):
        Line(number * 100, 1).write(store, 0)
    assert lines[0].has(store, 0)
    assert not lines[1].has(store, 0)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def swap(path: Path) -> None:
    """Another whole block under this one's name."""
    store = open_store(path.parent)
    other = Line(77, 1)
    other.write(store, 0)
    os.replace(other.path(store, 0), path)


def other_model(path: Path) -> None:
    """A block of the same line by another model, under this model's name."""
    model = b"n" * 32
    store, line = open_store(path.parent, model=model), Line(0, 3)
    line.keys[0:] = PrefixHashes(SIZE, MODEL).of(Namespace(), line.ids)
    line.write(store, 1)
    os.replace(path.parent / path.name.replace(MODEL.hex()[:16], model.hex()[:16]), path)


DAMAGE = {
    "data": lambda path: flip(path, 1500),
    "header": lambda path: flip(path, 60),
    "length of the header": lambda path: flip(path, 1),
    "last byte": lambda path: flip(path, -1),
    "cut short": lambda path: os.truncate(path, 2000),
    "header only": lambda path: os.truncate(path, 300),
    "empty": lambda path: os.truncate(path, 0),
    "too long": lambda path: os.truncate(path, 10**9),
    "another block": swap,
    "another model": other_model,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_a_miss_and_goes(tmp_path, kind, caplog):
    store, line = open_store(tmp_path), Line(0, 3)
    for number in range(3):
        line.write(store, number)
    path = line.path(store, 1)
    DAMAGE[kind](path)
    assert not line.has(store, 1)
    assert not path.exists()
    assert not store.holds(line.keys[2])
    assert len(caplog.records) == 1
    assert path.name in caplog.text
    assert line.has(store, 0)
    assert line.has(store, 2)
    assert line.write(store, 1)
    assert line.has(store, 1)


def test_what_is_no_file_is_left_alone(tmp_path):
    store, line = open_store(tmp_path), Line(0, 3)
    for number in range(3):
        line.write(store, number)
    paths = [line.path(store, number) for number in range(3)]
    outside = tmp_path.parent / "outside"
    outside.write_bytes(paths[1].read_bytes())
    for path in paths:
        path.unlink()
    paths[0].mkdir()
    paths[1].symlink_to(outside)
    os.mkfifo(paths[2])
    for again in (store, open_store(tmp_path)):
        assert not any(line.has(again, number) for number in range(3))
        assert not line.write(again, 0)
    assert paths[0].is_dir()
    assert outside.exists()
    for number in (1, 2):
        assert line.write(store, number), "a link or a pipe is replaced"
        assert line.has(store, number)


def test_files_of_others_are_neither_counted_nor_touched(tmp_path):
    names = ["notes.txt", "kv-.safetensors", "kv-" + "0" * 16 + "-" + "0" * 63 + ".safetensors", "model.safetensors"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100_000)
    store = open_store(tmp_path, max_bytes=20_000)
    assert store.total_bytes == 0
    for number in range(20):
        assert Line(number * 100, 1).write(store, 0)
    store.clear()
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_a_killed_process_left_is_removed_after_a_while(tmp_path):
    left = tmp_path / f"kv-{'0' * 16}-{'0' * 64}.safetensors.123-abcd.tmp"
    left.write_bytes(b"x")
    open_store(tmp_path)
    assert left.exists(), "it may be in the making"
    os.utime(left, ns=(0, 0))
    open_store(tmp_path)
    assert not left.exists()


def test_clear_removes_the_blocks_of_this_model_only(tmp_path):
    store, other = open_store(tmp_path), open_store(tmp_path, model=b"n" * 32)
    line, others = Line(0, 2), Line(0, 2, b"n" * 32)
    for number in range(2):
        line.write(store, number)
        others.write(other, number)
    open_store(tmp_path).clear()
    assert not any(line.has(store, number) for number in range(2))
    assert all(others.has(other, number) for number in range(2))


def test_two_stores_on_one_directory_see_what_the_other_did(tmp_path, monkeypatch):
    one, two = open_store(tmp_path), open_store(tmp_path)
    monkeypatch.setattr(two, "_next_scan_s", math.inf)  # within a second, however slow the disk is
    a, b = Line(0, 1), Line(100, 1)
    a.write(one, 0)
    b.write(two, 0)
    assert not two.holds(a.keys[1]), "not yet"
    for store in (one, two):
        monkeypatch.setattr(store, "_next_scan_s", 0.0)  # a second later
        store.refresh()
        assert a.has(store, 0)
        assert b.has(store, 0)
    a.path(one, 0).unlink()
    assert two.holds(a.keys[1])
    assert not a.has(two, 0)
    assert not two.holds(a.keys[1])


def test_what_another_store_writes_in_the_same_tick_of_the_clock_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(block_store, "TICK_NS", 10**18)  # no machine is so slow that it is over
    one, two = open_store(tmp_path), open_store(tmp_path)
    a, b = Line(0, 1), Line(100, 1)
    a.write(one, 0)
    monkeypatch.setattr(two, "_next_scan_s", 0.0)
    two.refresh()
    seen = tmp_path.stat()
    b.write(one, 0)
    os.utime(tmp_path, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # as if the clock had stood still
    monkeypatch.setattr(two, "_next_scan_s", 0.0)
    two.refresh()
    assert two.holds(b.keys[1])
    assert b.has(two, 0)


def test_the_directory_may_vanish_and_come_back(tmp_path, monkeypatch):
    store, line = open_store(tmp_path / "kv"), Line(0, 2)
    monkeypatch.setattr(store, "_next_scan_s", math.inf)  # within a second, however slow the disk is
    line.write(store, 0)
    shutil.rmtree(tmp_path / "kv")
    assert not line.has(store, 0)
    assert not line.write(store, 1), "noticed here"
    assert not line.write(store, 1), "no second try at once"
    monkeypatch.setattr(store, "_paused_until_s", 0.0)  # a minute later
    monkeypatch.setattr(store, "_next_scan_s", 0.0)
    assert line.write(store, 1)
    assert line.has(store, 1)


def test_a_full_disk_makes_it_smaller_and_is_logged_once(small_disk, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    store = open_store(small_disk, max_bytes=10**9)
    written = 0
    for number in range(400):
        monkeypatch.setattr(store, "_paused_until_s", 0.0)
        written += Line(number * 100, 1).write(store, 0)
        assert not list(small_disk.glob("*.tmp"))
    assert written > 300, "it goes on within what there is"
    assert store.max_bytes <= 1 << 20
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert Line(39_900, 1).has(store, 0)
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    for number in range(400, 500):
        monkeypatch.setattr(store, "_paused_until_s", 0.0)
        Line(number * 100, 1).write(store, 0)
    assert store.total_bytes <= store.max_bytes
    assert ballast.exists()


def test_a_full_disk_is_left_in_peace_for_a_while(small_disk):
    store = open_store(small_disk, max_bytes=10**9)
    number = 0
    while Line(number * 100, 1).write(store, 0):
        number += 1
    held = store.total_bytes
    assert not Line(10**6, 1).write(store, 0)
    assert store.total_bytes == held


@pytest.mark.parametrize("max_bytes", [0, 1, KV_BYTES])
def test_a_bound_below_one_block_is_refused(tmp_path, max_bytes):
    with pytest.raises(SettingError, match=rf"cache_dir_size of {max_bytes:,} bytes"):
        open_store(tmp_path, max_bytes=max_bytes)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/self/kv"])
def test_a_place_that_is_no_directory_is_refused_by_name(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cache_dir .*" + place):
        open_store(tmp_path / place)
