"""From the start of the process `tokenline serve` to the first streamed token, kernels compiled already or not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from bench.servers import free_port, log_path


def start_to_first_token_s(model: Path, threads: int, kernel_cache: Path) -> float:
    """`kernel_cache`: Numba's cache directory for this process; empty: everything is compiled."""
    port = free_port()
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", str(model), "--port", str(port)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        "NUMBA_CACHE_DIR": str(kernel_cache),
    }
    with log_path("startup").open("w") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _first_token(process, f"http://127.0.0.1:{port}")
            return time.perf_counter() - started
        finally:
            process.terminate()
            process.wait(30)


def _first_token(process: subprocess.Popen, url: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0, "stream": True}
    with httpx.Client(base_url=url, timeout=300) as client:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended at its start; see {log_path('startup')}")
            try:
                with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    for line in response.raise_for_status().iter_lines():
                        if _has_text(line):
                            return
                raise RuntimeError("the server's answer has no text")
            except httpx.ConnectError:
                time.sleep(0.02)


def _has_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    return any(choice["delta"].get("content") for choice in json.loads(line[len("data: ") :])["choices"])
