"""Wrong options of `tokenline serve`, each refused before anything is loaded."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenline.cli.main import app
from tokenline.cli.serve_options import comma_separated, is_loopback


def refusal(*options: object) -> str:
    """The one line with which the command refuses."""
    result = CliRunner().invoke(app, ["serve", *map(str, options)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("tokenline: ").rstrip()


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def compose(*args: object) -> None:
        raise AssertionError("these options were accepted")

    monkeypatch.setattr("tokenline.cli.serve.compose", compose)


@pytest.mark.parametrize("key", ["", "a b", "schlüssel", "a\n"])
def test_keys(key: str) -> None:
    assert refusal("--api-key", key) == "--api-key: a key must be printable ASCII without spaces, and not empty"


@pytest.mark.parametrize("name", ["", "  ", "a\tb"])
def test_names(name: str) -> None:
    assert refusal("--served-model-name", name) == "--served-model-name: a name must be printable and not empty"


def test_parsers() -> None:
    said = refusal("--tool-call-parser", "x")
    assert said.startswith("--tool-call-parser: must be one of auto, none, ")
    assert "hermes" in said
    assert said.endswith(", not 'x'")
    said = refusal("--reasoning-parser", "x")
    assert said.startswith("--reasoning-parser: must be one of auto, none, ")
    assert "deepseek_r1" in said


def test_chat_templates(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    assert refusal("--chat-template", file) == f"--chat-template {file}: No such file or directory"
    file.write_bytes(b"\xff")
    assert refusal("--chat-template", file).startswith(f"--chat-template {file}: not UTF-8 text")


def test_cache_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal("--cache-dir", tmp_path / "file") == f"--cache-dir {tmp_path}/file: not a directory"
    assert refusal("--cache-dir", "x" * 300).endswith(": File name too long")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "every user of this machine may write to it" in refusal("--cache-dir", tmp_path / "open")
    assert refusal("--cache-dir", "") == "--cache-dir: must name a directory, not ''"
    assert refusal("--cache-dir-size", "1GiB") == "--cache-dir-size: needs --cache-dir"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "65536"], "--port: must be 0-65535, not '65536'"),
        (["--port", "x"], "--port: must be a whole number, 0-65535, not 'x'"),
        (["--max-num-seqs", "0"], "--max-num-seqs: must be at least 1, not '0'"),
        (["--max-num-seqs", "1.5"], "--max-num-seqs: must be a whole number, at least 1, not '1.5'"),
        (["--dtype", "int4"], "--dtype: must be one of 'auto', 'float32', 'bfloat16', 'int8', not 'int4'"),
        (["--log-level", "x"], "--log-level: must be one of 'debug', 'info', 'warning', 'error', not 'x'"),
        (["--kv-cache-memory", "5X"], "--kv-cache-memory: '5X' is not a valid size; write it like 4GiB, 512M or 10"),
        (["--cache-dir", "a\0b"], "--cache-dir: 'a\\x00b': embedded null byte"),
    ],
)
def test_values_are_refused_in_our_words(options: list[str], said: str) -> None:
    """Neither Typer's nor pydantic's: "Value error, ...", "Input should be ..."."""
    assert refusal(*options).startswith(said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            "temperature=1",
            "not JSON (Expecting value: line 1 column 1 (char 0)); write it like '{\"temperature\": 0.5}'",
        ),
        ("[1]", "must be a JSON object such as '{\"temperature\": 0.5}'"),
        ('{"temperature": 3}', "'temperature' must be a number from 0 to 2; got 3."),
        ('{"top_k": 1.5}', "'top_k' must be an integer: 0 or -1 for off, or from 1 to 2147483647; got 1.5."),
        ('{"top_p": "much"}', "'top_p' must be a number from 0 to 1; got \"much\"."),
        ('{"min_p": true}', "'min_p' must be a number from 0 to 1; got true."),
        ('{"top_p": NaN}', "'top_p' must be a number from 0 to 1; got NaN."),
        ('{"top_k": Infinity}', "'top_k' must be an integer: 0 or -1"),
        (
            '{"best_of": 3}',
            "'best_of' is not a sampling value; use one of temperature, top_k, top_p, min_p, repetition_penalty.",
        ),
    ],
)
def test_sampling_defaults(values: str, said: str) -> None:
    refused = refusal("--override-generation-config", values)
    assert refused.startswith(f"--override-generation-config: {said}")


def test_pages_and_hosts() -> None:
    said = refusal("--cors-origins", "https://a.example,localhost:3000")
    assert said.startswith("--cors-origins: an origin is a scheme, a host")
    assert said.endswith('got "localhost:3000"')
    assert refusal("--allowed-hosts", "http://a.example").startswith("--allowed-hosts: a host is a name without scheme")
    assert comma_separated(["a, b", "b,c,"]) == ("a", "b", "c")
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1")] == [True] * 3 + [
        False
    ] * 2
