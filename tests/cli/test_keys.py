"""`tokenline keys add`, and key files as options of `tokenline serve`."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokenline.cli.main import app
from tokenline.server.keys import ApiKey, read_key_file


def keys_of(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], *options: object) -> Any:
    """The keys that `tokenline serve` would start with, or the line with which it refuses."""
    seen: list[tuple[ApiKey, ...]] = []

    def compose(options: Any, progress: Any) -> None:
        seen.append(options.all_keys)
        raise SystemExit

    monkeypatch.setattr("tokenline.cli.serve.compose", compose)
    result = CliRunner().invoke(app, ["serve", *map(str, options)], env=env)
    return seen[0] if seen else result.stderr.removeprefix("tokenline: ").rstrip()


def test_a_key_is_printed_once_and_kept_as_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    made = CliRunner().invoke(app, ["keys", "add", str(file), "alice"])
    admin = CliRunner().invoke(app, ["keys", "add", str(file), "root", "--admin"])
    assert (made.exit_code, admin.exit_code) == (0, 0)
    alice, root = ApiKey.of(made.stdout.strip()), ApiKey.of(admin.stdout.strip())
    assert {(key.digest, key.is_admin) for key in read_key_file(file)} == {(alice.digest, False), (root.digest, True)}
    # The file's word holds where a key is given twice, and all ways add up.
    env = {"TOKENLINE_API_KEY_FILE": str(file), "TOKENLINE_API_KEY": admin.stdout.strip()}
    keys = keys_of(monkeypatch, env)
    assert [(key.digest, key.is_admin) for key in keys] == [(alice.digest, False), (root.digest, True)]
    keys = keys_of(monkeypatch, {}, "--api-key-file", file, "--api-key", "other")
    assert [key.digest for key in keys] == [alice.digest, root.digest, ApiKey.of("other").digest]


def test_what_is_wrong_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    option = f"--api-key-file {file}"
    assert keys_of(monkeypatch, {}, "--api-key-file", file) == f"{option}: No such file or directory"
    file.write_text("")
    assert keys_of(monkeypatch, {}, "--api-key-file", file).startswith(f"{option}: has no key")
    assert keys_of(monkeypatch, {}, "--api-key-file", tmp_path).endswith("Is a directory")
    for name, folder in (("a b", tmp_path), ("a", tmp_path / "absent")):
        done = CliRunner().invoke(app, ["keys", "add", str(folder / "new.toml"), name])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sorted(tmp_path.iterdir()) == [file]
