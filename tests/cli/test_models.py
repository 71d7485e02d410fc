"""`tokenline models`: what is here, and removing it. The hub's client fills its cache from a server of this machine."""

import os
from pathlib import Path

import pytest

from tests.cli.command import OnTerminal, assert_one_line, run
from tests.models.test_hub import Hub, fetch, hub

__all__ = ["hub"]  # a fixture


@pytest.fixture
def env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """A cache with the default model's file, a repository with safetensors, and three GGUF files of two others."""
    for name in ("org/model", "org/gguf:Q4_0", "org/gguf:Q8_0", "qwen3:0.6b"):
        assert "path" in fetch(name, tmp_path, hub.url)
    (tmp_path / "tokenline" / "models").mkdir(parents=True)
    (tmp_path / "tokenline" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(bytes(2048))
    return {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "TOKENLINE_CACHE": str(tmp_path / "tokenline")}


def names(env: dict[str, str]) -> list[str]:
    return [line.split()[0] for line in run("models", env=env).stdout.splitlines()]


def test_what_is_here_is_listed_and_removed(env: dict[str, str]) -> None:
    listed = run("models", env=env)
    assert (listed.returncode, listed.stderr) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in listed.stdout.splitlines()}
    assert list(rows) == ["org/gguf:Q4_0", "org/gguf:Q8_0", "org/model", "qwen3:0.6b", "SmolLM2-135M-Instruct"]
    assert rows["SmolLM2-135M-Instruct"][:2] == ["2.0", "KiB"]
    assert rows["org/model"][:2] == ["12.9", "MiB"]
    for name, (_, _, path) in rows.items():
        assert Path(path).exists()
        if name != "SmolLM2-135M-Instruct":  # what the listing calls them is what other commands take
            assert fetch(name, Path(env["HF_HOME"]), env["HF_ENDPOINT"])["path"] == path

    assert_one_line(run("models", "rm", "org/absent", "--yes", env=env), "no downloaded model 'org/absent'")
    assert_one_line(run("models", "rm", "org/model", env=env), "without a terminal, give --yes")
    assert len(names(env)) == 5, "nothing was removed unasked"

    done = run("models", "rm", "org/gguf:q4_0", "--yes", env=env)
    assert (done.returncode, done.stdout) == (0, "removed org/gguf:Q4_0 (10 bytes)\n")
    assert not os.path.lexists(rows["org/gguf:Q4_0"][2])
    assert Path(rows["org/gguf:Q8_0"][2]).read_bytes() == b"GGUF big", "the other file of the repository stays"
    assert run("models", "rm", "qwen3:0.6b", "--yes", env=env).returncode == 0
    assert run("models", "rm", "https://huggingface.co/org/model", "--yes", env=env).returncode == 0
    assert run("models", "rm", "smollm2:135m", "-y", env=env).returncode == 0
    assert names(env) == ["org/gguf:Q8_0"]
    assert run("models", "rm", "org/gguf", "--yes", env=env).returncode == 0
    assert run("models", env=env).stdout == "No model is downloaded yet.\n"
    blobs = [path for path in Path(env["HF_HOME"]).rglob("blobs/*") if path.is_file()]
    assert blobs == [], "the disk has its room back"


def test_what_tokenline_cache_holds_is_listed_and_removed(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fetch("org/gguf:Q4_0", tmp_path, hub.url, TOKENLINE_CACHE=str(cache))
    fetch("qwen3:0.6b", tmp_path, hub.url)
    env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "TOKENLINE_CACHE": str(cache)}
    assert names(env) == ["org/gguf:Q4_0", "qwen3:0.6b"]
    assert run("models", "rm", "org/gguf", "--yes", env=env).returncode == 0
    assert names(env) == ["qwen3:0.6b"]
    assert not list((cache / "hub").glob("models--*"))


def test_a_person_is_asked_first(tmp_path: Path) -> None:
    file = tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(bytes(2048))
    env = {"HF_HOME": str(tmp_path), "TOKENLINE_CACHE": str(tmp_path)}
    for answer, code in (("n", 1), ("y", 0)):
        with OnTerminal(["models", "rm", "SmolLM2-135M-Instruct"], env) as terminal:
            assert "2.0 KiB" in terminal.read_until("Remove? [y/N]: ")
            terminal.type(f"{answer}\n")
            assert terminal.wait() == code
        assert file.exists() is (answer == "n")
