"""A real `tokenline serve` process with the default model, as a user would start it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.limits import HANG_S


class Served:
    """The address of a running server and the official clients for it."""

    def __init__(self, url: str, model: str):
        self.url = url
        self.model = model
        self.client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HANG_S)
        self.http = httpx.Client(base_url=url, timeout=HANG_S)

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)

    def ids(self, messages: list[dict], **more) -> list[int]:
        """The token line of a chat request."""
        body = {"messages": messages, "add_generation_prompt": True, **more}
        return self.http.post("/tokenize", json=body).raise_for_status().json()["tokens"]

    def forget(self) -> None:
        self.http.post("/reset_prefix_cache", json={}).raise_for_status()


@pytest.fixture(scope="session")
def served(smollm2: Path) -> Iterator[Served]:
    # float32: only there are the ids of a hit exactly those of a miss on every machine.
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", str(smollm2), "--port", "0", "--dtype", "float32"]
    command += ["--kv-cache-memory", "1GiB", "--announce"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server ended at its start"
        announced = json.loads(line)
        served = Served(announced["url"], announced["model"])
        yield served
        served.http.close()
        process.stdin.close()  # which ends it
        assert process.wait(HANG_S) == 0
