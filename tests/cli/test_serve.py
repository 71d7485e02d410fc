"""`tokenline serve` with the real default model: what it prints works, and what is wrong is said in one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.command import TOKENLINE, OnTerminal, assert_one_line, run
from tests.cli.conftest import RunningServer
from tests.limits import HANG_S


def test_the_banner_says_what_runs(server: RunningServer) -> None:
    facts = dict(line.strip().split(None, 1) for line in server.banner.splitlines() if line.startswith("  "))
    assert facts["model"].startswith("SmolLM2-135M-Instruct  (llama, 30 layers, ")
    assert facts["device"].startswith(("cpu, ", "cuda, ", "mps, "))
    found = re.fullmatch(r"cache  ([\d.]+) MiB \(([\d,]+) tokens\), up to 1,024 per conversation", facts["KV"])
    assert found is not None, facts["KV"]
    tokens = int(found[2].replace(",", ""))
    assert tokens * 90 * 64 * 2 <= 128 << 20 < (tokens + 64) * 90 * 64 * 2 * 4, "bounded by --kv-cache-memory"
    assert 120 < float(found[1]) <= 128
    assert httpx.get(f"{facts['address']}/health", timeout=HANG_S).status_code == 200


def test_the_printed_curl_line_works(server: RunningServer) -> None:
    command = server.banner[server.banner.index("curl ") :].split("\n\n")[0]
    assert server.api_key not in server.banner, "a banner ends in log files and on screens"
    shell = {**os.environ, "TOKENLINE_API_KEY": server.api_key}
    done = subprocess.run(["sh", "-c", command], env=shell, capture_output=True, text=True, timeout=HANG_S)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"]
    wrong = subprocess.run(
        ["sh", "-c", command], env={**shell, "TOKENLINE_API_KEY": "x"}, capture_output=True, text=True
    )
    assert json.loads(wrong.stdout)["error"]["code"] == "invalid_api_key"


def test_the_banner_says_what_can_be_done_next(server: RunningServer) -> None:
    chat, better = server.banner.splitlines()[-3:-1]
    said, command = chat.split(": ", 1)
    assert said == "To talk to it in another terminal"
    shell = {**os.environ, "TOKENLINE_API_KEY": server.api_key}
    done = subprocess.run(["sh", "-c", command], input="/exit\n", env=shell, capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    assert better.startswith("This is a tiny model, to try the server. A better one: ")
    assert better.endswith("tokenline serve qwen3:0.6b")


def test_the_printed_client_snippet_works(server: RunningServer) -> None:
    snippet = server.banner[server.banner.index("import os\n") :].split("\n\n")[0]
    shell = {**os.environ, "TOKENLINE_API_KEY": server.api_key}
    done = subprocess.run([sys.executable, "-c", snippet], env=shell, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()[-1].split()
    assert words[1::2] == ["of", "cached"]
    assert int(words[0]) < int(words[2])


def test_a_port_that_is_taken_is_one_line(server: RunningServer) -> None:
    port = server.url.rsplit(":", 1)[1]
    assert_one_line(run("serve", "--port", port), f"cannot listen on 127.0.0.1:{port}", "--port")
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # before anything is downloaded
    assert_one_line(run("serve", "qwen3:0.6b", "--port", port, env=environment), f"cannot listen on 127.0.0.1:{port}")


def test_an_address_that_is_not_of_this_machine_is_one_line() -> None:
    assert_one_line(run("serve", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1:8000")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--max-model-len", "1000000"], "--max-model-len must be from 2 to the model's own 8192 tokens, not 1000000"),
        (["--kv-cache-memory", "100"], "--kv-cache-memory of 100 bytes is too small: it must be at least 1.4 MiB"),
        (["--kv-cache-memory", "900TiB"], "--kv-cache-memory of 900.0 TiB is more than the "),
    ],
)
def test_limits_that_cannot_be_met_are_one_line_before_the_weights_are_loaded(options: list[str], part: str) -> None:
    done = run("serve", "--port", "0", "--device", "cpu", *options)
    assert_one_line(done, part)
    assert "preparing the model" not in done.stderr


def test_a_template_that_cannot_be_compiled_is_one_line(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for %}")
    assert_one_line(run("serve", "--port", "0", "--chat-template", template), "template")


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    assert_one_line(run("serve", "--port", "0", tmp_path / "broken.gguf"), "broken.gguf")
    (tmp_path / "empty").mkdir()
    assert_one_line(run("serve", "--port", "0", tmp_path / "empty"), "config.json")


def test_on_a_terminal_it_shows_bars_and_ctrl_c_ends_it(smollm2: Path) -> None:
    options = ["serve", "--port", "0", "--kv-cache-memory", "64M", "--max-model-len", "256", "--max-num-seqs", "600"]
    with OnTerminal([*options, "--served-model-name", "a", "--served-model-name", "b"]) as terminal:
        shown = terminal.read_until("Press Ctrl-C to stop.")
        assert "MB" in shown.split("tokenline is ready")[0], "a bar with the bytes loaded"
        url = next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("address"))
        names = [model["id"] for model in httpx.get(f"{url}/v1/models", timeout=HANG_S).json()["data"]]
        assert names == ["a", "b"]
        terminal.type("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.seen
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(url.rsplit(":", 1)[1])))


def test_told_to_stop_while_its_parent_lives_it_ends_well(smollm2: Path) -> None:
    """`tokenline chat` starts it like this; a thread waits for the parent all the time."""
    options = ["serve", str(smollm2), "--port", "0", "--kv-cache-memory", "64M", "--max-model-len", "256", "--announce"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*TOKENLINE, *options], text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "url" in json.loads(process.stdout.readline())
        process.terminate()
        said = process.stderr.read()
        assert process.wait(HANG_S) == 0, said
        assert "Fatal" not in said


def test_interrupted_while_loading_it_ends_without_a_traceback(smollm2: Path) -> None:
    with OnTerminal(["serve", "--port", "0"]) as terminal:
        terminal.read_until("starting up")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.wait() == -signal.SIGINT  # 130 for a shell
        assert "Traceback" not in terminal.seen
        assert b"\x1b[?25h" in terminal.received, "the cursor is shown again"
