"""Equal files have equal names, and no others."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.limits import let_file_times_move_on
from tests.tiny import make_tiny
from tokenline.models import fingerprint
from tokenline.models.errors import ModelError
from tokenline.models.fingerprint import weights_fingerprint


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(70_000))
    return path


def test_every_byte_counts(file, monkeypatch):
    monkeypatch.setattr(fingerprint, "PIECE_BYTES", 16_384)
    monkeypatch.setattr(fingerprint, "READ_BYTES", 1000)
    content = bytearray(file.read_bytes())
    seen = {weights_fingerprint(file)}
    for place in (0, 1, 999, 1000, 16_383, 16_384, 32_768, 69_999):
        content[place] ^= 1
        file.write_bytes(content)
        seen.add(weights_fingerprint(file))
    for length in (69_999, 65_536, 16_384, 0):
        os.truncate(file, length)
        seen.add(weights_fingerprint(file))
    assert len(seen) == 13
    assert all(len(name) == 64 for name in seen)


def test_where_it_lies_does_not_count(file, tmp_path):
    copy = tmp_path / "elsewhere" / "copy.gguf"
    copy.parent.mkdir()
    shutil.copy(file, copy)
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    assert weights_fingerprint(file) == weights_fingerprint(copy) == weights_fingerprint(link)


def test_a_directory_is_its_configuration_and_all_its_weights(tmp_path):
    folder = make_tiny("qwen2", tmp_path / "a", sharded=True)
    name = weights_fingerprint(folder)
    assert weights_fingerprint(make_tiny("qwen2", tmp_path / "b", sharded=True)) == name
    (folder / "README.md").write_text("hello")
    assert weights_fingerprint(folder) == name
    seen = {name}
    for changed in ["config.json", *sorted(path.name for path in folder.glob("*.safetensors"))]:
        content = (folder / changed).read_bytes()
        (folder / changed).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        seen.add(weights_fingerprint(folder))
    one, two = sorted(folder.glob("*.safetensors"))[:2]
    one.rename(folder / "x.safetensors")
    two.rename(one)
    (folder / "x.safetensors").rename(two)
    seen.add(weights_fingerprint(folder))
    assert len(seen) == 3 + len(list(folder.glob("*.safetensors")))


def test_the_memo_spares_reading_what_has_not_changed(file, tmp_path, monkeypatch):
    memo = tmp_path / "deep" / "below" / "weights.json"
    name = weights_fingerprint(file, memo)
    read: list[Path] = []
    hash_piece = fingerprint._hash_piece
    monkeypatch.setattr(fingerprint, "_hash_piece", lambda path, start: read.append(path) or hash_piece(path, start))
    assert weights_fingerprint(file, memo) == name
    assert read == []
    times = file.stat()
    let_file_times_move_on(file)
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same time of change
    changed = weights_fingerprint(file, memo)
    assert changed != name
    assert read == [file]
    assert weights_fingerprint(file) == changed


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"x": 1}', b"\xff", b"[" * 100_000])
def test_a_broken_memo_is_replaced(file, tmp_path, content):
    memo = tmp_path / "weights.json"
    memo.write_bytes(content)
    name = weights_fingerprint(file, memo)
    assert name == weights_fingerprint(file)
    assert json.loads(memo.read_bytes())[str(file)]["sha256"]
    assert weights_fingerprint(file, memo) == name


def test_a_memo_that_lies_about_another_file_is_not_believed(file, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"other")
    memo = tmp_path / "weights.json"
    weights_fingerprint(other, memo)
    known = json.loads(memo.read_bytes())
    memo.write_text(json.dumps({str(file): known[str(other)]}))
    assert weights_fingerprint(file, memo) == weights_fingerprint(file)


def test_a_memo_that_cannot_be_written_is_no_error(file, tmp_path):
    (tmp_path / "plain").write_text("")
    assert weights_fingerprint(file, tmp_path / "plain" / "weights.json") == weights_fingerprint(file)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"none\.gguf: cannot be read: No such file"):
        weights_fingerprint(tmp_path / "none.gguf")


def test_progress_ends_at_the_total(file):
    calls: list[tuple[int, int]] = []
    weights_fingerprint(file, progress=lambda what, done, total: calls.append((done, total or 0)))
    assert calls[-1] == (70_000, 70_000)
