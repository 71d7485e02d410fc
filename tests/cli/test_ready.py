"""What `tokenline serve` says when it is ready; `test_serve` runs what it prints against a real server."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.cli.ready import DiskFacts, ServerFacts, client_snippet, curl_line, print_ready

FACTS = ServerFacts(
    name="tiny",
    family="llama",
    num_layers=2,
    path=Path("/models/tiny.gguf"),
    device="cpu",
    precision="float32",
    pool_bytes=3 << 29,
    pool_tokens=65536,
    max_model_len=8192,
    disk=DiskFacts(Path("/kv"), 5 << 20, 10 << 30),
    tool_parser="hermes",
    reasoning_parser=None,
    sampling="temperature 0.8, top_k 40",
    host="127.0.0.1",
    needs_key=False,
    is_default=False,
)


@given(model=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_the_printed_commands_can_be_pasted_whatever_the_model_is_called(model: str) -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000", model, needs_key=False).replace("\\\n", ""))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1])["model"] == model
    snippet = client_snippet("http://127.0.0.1:8000", model, needs_key=False)
    compile(snippet, "snippet", "exec")
    assert json.dumps(model) in snippet


def test_the_banner_says_how_large_the_caches_are() -> None:
    assert FACTS.rows() == {
        "model": "tiny  (llama, 2 layers, /models/tiny.gguf)",
        "device": "cpu, float32",
        "KV cache": "1.5 GiB (65,536 tokens), up to 8,192 per conversation",
        "disk cache": "5.0 MiB of 10.0 GiB in /kv",
        "sampling": "temperature 0.8, top_k 40, unless a request says otherwise",
        "parsers": "tool calls hermes, reasoning none",
    }
    assert "disk cache" not in replace(FACTS, disk=None).rows()


@pytest.mark.parametrize(
    ("host", "needs_key", "warned"),
    [("127.0.0.1", False, False), ("localhost", False, False), ("0.0.0.0", True, False), ("0.0.0.0", False, True)],
)
def test_a_server_that_is_open_to_the_network_warns(
    host: str, needs_key: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_ready("http://127.0.0.1:8000", replace(FACTS, host=host, needs_key=needs_key), 1.0)
    said = capsys.readouterr()
    assert said.out.endswith("Press Ctrl-C to stop.\n")
    assert ("Anybody who can reach 0.0.0.0" in said.err) is warned
