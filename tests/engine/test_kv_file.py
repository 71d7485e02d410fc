"""The file format: what was written comes back, and nothing else is ever taken for it."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenline.engine.kv_file import BadBlock, KVBlock, decode, encode, read_file

BLOCK = KVBlock(b"m" * 32, b"p" * 32, b"k" * 32, np.arange(4, dtype=np.int32), np.arange(96, dtype=np.uint8))
DATA = encode(BLOCK)


def same(a: KVBlock, b: KVBlock) -> bool:
    return a.is_for(b.model, b.parent, b.key, b.ids) and np.array_equal(a.kv, b.kv)


def test_a_block_comes_back_as_it_was():
    assert same(decode(DATA), BLOCK)
    assert decode(DATA).kv.dtype == np.uint8
    assert decode(DATA).ids.dtype == np.int32


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
@settings(max_examples=600, deadline=None)
def test_a_changed_byte_is_noticed_or_changes_nothing(place, change):
    data = bytearray(DATA)
    data[place] ^= change
    try:
        block = decode(bytes(data))
    except BadBlock:
        return
    assert same(block, BLOCK), "a block that is none of ours was taken for one"


@given(st.integers(0, len(DATA) - 1))
@settings(deadline=None)
def test_a_file_cut_short_is_no_block(length):
    with pytest.raises(BadBlock):
        decode(DATA[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\0" * len(DATA),
        b"\xff" * len(DATA),
        DATA + b"\0",
        (2).to_bytes(8, "little") + b"{}",
        (10**18).to_bytes(8, "little") + DATA[8:],
        (4).to_bytes(8, "little") + b"null",
        (30_000).to_bytes(8, "little") + b"[" * 30_000,
    ],
)
def test_other_bytes_are_no_block(data):
    with pytest.raises(BadBlock):
        decode(data)


@pytest.mark.parametrize(
    "other",
    [
        KVBlock(b"x" * 32, BLOCK.parent, BLOCK.key, BLOCK.ids, BLOCK.kv),
        KVBlock(BLOCK.model, b"x" * 32, BLOCK.key, BLOCK.ids, BLOCK.kv),
        KVBlock(BLOCK.model, BLOCK.parent, b"x" * 32, BLOCK.ids, BLOCK.kv),
        KVBlock(BLOCK.model, BLOCK.parent, BLOCK.key, BLOCK.ids + 1, BLOCK.kv),
        KVBlock(BLOCK.model, BLOCK.parent, BLOCK.key, BLOCK.ids[:3], BLOCK.kv),
    ],
)
def test_a_whole_block_is_only_for_what_it_was_made_for(other):
    assert not decode(encode(other)).is_for(BLOCK.model, BLOCK.parent, BLOCK.key, BLOCK.ids)


def test_only_plain_files_of_a_likely_size_are_read(tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(DATA)
    with pytest.raises(BadBlock, match="bytes"):
        read_file(plain, len(DATA) - 1)
    with pytest.raises(BadBlock, match="plain"):
        read_file(tmp_path, 100)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadBlock, match="plain"):
        read_file(pipe, 100)
    link = tmp_path / "link"
    link.symlink_to(plain)
    with pytest.raises(OSError, match="symbolic"):
        read_file(link, len(DATA))
    with pytest.raises(FileNotFoundError):
        read_file(Path(tmp_path / "none"), 100)
