"""A real server process with a tiny model, to be attacked."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bench.attacks import target_of
from bench.bombs.bomb import Target

from tests.limits import HANG_S
from tests.tiny import make_tiny


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Its address and its process."""
    path = make_tiny("llama", tmp_path_factory.mktemp("attack") / "tiny", max_position_embeddings=4096)
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", str(path), "--port", "0"]
    command += ["--kv-cache-memory", "64MiB", "--dtype", "float32", "--announce"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server ended at its start"
        yield json.loads(line)["url"], process.pid
        process.stdin.close()  # which ends it
        assert process.wait(HANG_S) == 0


@pytest.fixture
def target(server: tuple[str, int]) -> Target:
    return target_of(*server)
