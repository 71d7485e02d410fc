"""Key files: made by `add_key`, hashes only, never half written; what is wrong in one is said by its name."""

import hashlib
import stat
from pathlib import Path

import pytest

from tokenline.server.keys import MAX_FILE_BYTES, ApiKey, add_key, read_key_file

DIGEST = hashlib.sha256(b"secret").hexdigest()


def test_keys_that_are_added(tmp_path: Path):
    file = tmp_path / "keys.toml"
    alice, root = add_key(file, "alice", is_admin=False), add_key(file, "root-1", is_admin=True)
    assert alice != root
    assert len(alice) > 40
    text = file.read_text()
    assert alice not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key_file(file) == (
        ApiKey(ApiKey.of(alice).digest, "alice"),
        ApiKey(ApiKey.of(root).digest, "root-1", is_admin=True),
    )


def test_what_a_person_wrote_stays(tmp_path: Path):
    file = tmp_path / "keys.toml"
    file.write_text(f'# the team\n[bob]\nsha256 = "{DIGEST.upper()}"  # 你好\n')
    file.chmod(0o640)
    (tmp_path / "link").symlink_to(file)
    add_key(tmp_path / "link", "alice", is_admin=False)
    assert file.read_text().startswith("# the team\n[bob]\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [key.name for key in read_key_file(file)] == ["bob", "alice"]
    assert read_key_file(file)[0].digest == DIGEST


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "名", 'a"]\nadmin', "a\n"])
def test_names_that_cannot_be(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="a name has"):
        add_key(tmp_path / "keys.toml", name, is_admin=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no key"),
        (b"# nothing\n", "has no key"),
        (b"\xff", "not UTF-8"),
        (b"[a", "not TOML"),
        (b"a = " + b"[" * 100_000, "not TOML"),
        (b"a = 1", "must be a table"),
        (b"[a]", r"\[a\] sha256 must be 64"),
        (b'[a]\nsha256 = "secret"', "must be 64"),
        (b"[a]\nsha256 = 5", "must be 64"),
        (f'[a]\nsha256 = "{DIGEST}"\nadmin = 1'.encode(), r"\[a\] admin must be true or false"),
        (f'[a]\nsha256 = "{DIGEST}"\nadmn = true'.encode(), 'has a field "admn"'),
        (f'[a]\nsha256 = "{DIGEST}"\n[b]\nsha256 = "{DIGEST}"'.encode(), r"\[a\] and \[b\] are the same key"),
        (f'[a]\nsha256 = "{DIGEST}"\n[a]\n'.encode(), "not TOML"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than"),
    ],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, content: bytes, said: str):
    file = tmp_path / "keys.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_key_file(file)


def test_a_name_is_not_taken_twice(tmp_path: Path):
    file = tmp_path / "keys.toml"
    add_key(file, "a", is_admin=False)
    before = file.read_bytes()
    with pytest.raises(ValueError, match="already"):
        add_key(file, "a", is_admin=True)
    assert file.read_bytes() == before


def test_an_empty_key_would_let_everybody_in():
    with pytest.raises(ValueError, match="empty API key"):
        ApiKey.of("")
