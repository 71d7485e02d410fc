"""`tokenline serve --cache-dir`: a prefix outlives the server, with the default model and over HTTP."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cli.command import TOKENLINE, assert_one_line, run
from tests.limits import HANG_S

MESSAGES = [
    {"role": "system", "content": "You are the keeper of an archive. " * 9},
    {"role": "user", "content": "What do you keep?"},
]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """A server's URL and banner; it must end well when told to."""
    limits = ["--kv-cache-memory", "64MiB", "--max-model-len", "512", "--dtype", "float32"]
    options = ["--port", "0", *limits, "--cache-dir", folder]
    process = subprocess.Popen([*TOKENLINE, "serve", *map(str, options)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        banner = ""
        for line in process.stdout:
            banner += line
            if line.startswith("Press Ctrl-C"):
                break
        url = next(line.split()[1] for line in banner.splitlines() if line.strip().startswith("address"))
        yield url, banner
        process.terminate()
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()


def ask(url: str) -> tuple[str, int, int]:
    """The answer, the tokens of the prompt and how many of them were cached."""
    body = {"model": "SmolLM2-135M-Instruct", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG_S).json()
    usage = answer["usage"]
    text = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_the_second_server_finds_what_the_first_has_computed(smollm2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with serving(folder) as (url, banner):
        assert f"0 bytes of 10.0 GiB in {folder}" in banner
        text, prompt, cached = ask(url)
        assert cached == 0
        _, _, cached_again = ask(url)
        assert cached_again == prompt - 1
    assert os.stat(folder).st_mode & 0o077 == 0, "for nobody else to read"
    assert json.loads((folder / "weights.json").read_text())
    with serving(folder) as (url, banner):
        assert f"0 bytes of 10.0 GiB in {folder}" not in banner
        text_again, _, cached = ask(url)
        assert cached == (prompt - 1) // 32 * 32, "all whole blocks"
        assert text_again == text


def test_cache_dirs_that_cannot_be_used_are_one_line(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_one_line(run("serve", "--cache-dir", tmp_path / "file"), "--cache-dir", "not a directory")
    assert_one_line(run("serve", "--cache-dir-size", "1GiB"), "--cache-dir-size: needs --cache-dir")
    assert_one_line(run("serve", "--cache-dir", tmp_path, "--cache-dir-size", "much"), "much")
