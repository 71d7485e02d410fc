"""Serve and answer from the default install alone, in a new environment: no PyTorch, and nothing of what it brings.

Installs tokenline with the pins of the lock into a temporary environment, as a user does, starts `tokenline serve` with
the default model (fetched if need be), and asks for one chat answer and one of a JSON schema. Prints how large the
environment is, how long it took to the first tokens, and how much memory the server has then.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ABSENT = ("torch", "triton", "transformers", "xgrammar")
MAX_MEGABYTES = 450
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the way out of this network is
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder))
        found = subprocess.run(
            [python, "-c", f"from importlib.util import find_spec; print(*filter(find_spec, {ABSENT}))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if found:
            sys.exit(f"the default install brings {', '.join(found)}")
        serve_and_ask(python, kind="first")  # compiles the kernels
        serve_and_ask(python, kind="later")
        megabytes = size(Path(folder) / "venv")
        print(f"environment: {megabytes:.0f} MB, compiled kernels included")
        if megabytes > MAX_MEGABYTES:
            sys.exit(f"that is more than {MAX_MEGABYTES} MB")


def install(folder: Path) -> Path:
    """A new environment with tokenline in it; its Python."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    started = time.perf_counter()
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "requirements.lock"), str(source)],
        check=True,
    )
    print(f"install: {time.perf_counter() - started:.0f} s")
    shutil.rmtree(source)
    return python


def serve_and_ask(python: Path, *, kind: str) -> None:
    """Start the server, ask it twice, stop it."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TOKENLINE_API_KEY")}
    command = [python, "-m", "tokenline.cli.main", "serve", "--port", "0", "--announce"]
    started = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            sys.exit("the server did not start")
        where = json.loads(line)
        url, model = where["url"], where["model"]
        ready = time.perf_counter() - started
        answer = ask(url, model, max_tokens=1)
        first = time.perf_counter() - started
        if answer["usage"]["completion_tokens"] != 1:
            sys.exit(f"no token was generated: {answer}")
        memory = resident(server.pid)
        form = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
        asked = time.perf_counter()
        content = ask(url, model, max_tokens=60, response_format=form)["choices"][0]["message"]["content"]
        seconds = time.perf_counter() - asked
        weather = json.loads(content)
        if weather.keys() != {"city", "degrees"} or weather["city"] not in ("Paris", "Rome"):
            sys.exit(f"the answer does not match its schema: {content}")
        server.communicate()  # closes stdin, at which the server stops
    print(
        f"{kind} start: ready after {ready:.2f} s, first token after {first:.2f} s, then {memory}; "
        f"first JSON answer in {seconds:.2f} s: {content}"
    )


def ask(url: str, model: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = json.dumps({"model": model, "messages": messages, "temperature": 0, **options}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with LOCAL.open(request) as answer:
        return json.load(answer)


def resident(pid: int) -> str:
    """Memory of a process, where the system says it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "memory unknown"
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return f"{kilobytes * 1024 / 1e6:.0f} MB"


def size(folder: Path) -> float:
    """Megabytes that a folder takes on the disk."""
    files = (path.lstat() for path in folder.rglob("*"))
    return sum(getattr(file, "st_blocks", -(-file.st_size // 512)) * 512 for file in files) / 1e6


if __name__ == "__main__":
    main()
