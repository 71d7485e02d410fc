"""One real server for the tests of this folder: `tokenline serve` with the default model and an API key."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.command import TOKENLINE
from tests.limits import HANG_S

API_KEY = "key-of-the-tests"

# What makes Rich and Typer take a pipe for a terminal, or a terminal for another one; a CI may have set it.
for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)


@dataclass(frozen=True)
class RunningServer:
    url: str
    model: str
    api_key: str
    banner: str  # what it printed when it was ready


@pytest.fixture(scope="session")
def server(smollm2: Path) -> Iterator[RunningServer]:
    options = ["--port", "0", "--kv-cache-memory", "128MiB", "--max-model-len", "1024"]
    process = subprocess.Popen(
        [*TOKENLINE, "serve", *options],
        env=os.environ | {"TOKENLINE_API_KEY": API_KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Press Ctrl-C"):
                break
        banner = "".join(lines)
        url = next(line.split()[1] for line in lines if line.strip().startswith("address"))
        body = json.loads(banner.split("-d '")[1].split("'")[0])
        yield RunningServer(url, body["model"], API_KEY, banner)
        process.terminate()
        assert process.wait(HANG_S) == 0, "SIGTERM is how a server is told to stop, and not a failure"
    finally:
        process.kill()
