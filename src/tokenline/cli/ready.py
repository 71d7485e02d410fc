"""What `tokenline serve` says when it is ready: to a person, what runs and how to use it; to a parent process, a line.

Knows text and the terminal. What runs comes as plain data from `compose`.
"""

import json
import os
import shlex
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tokenline.cli.console import stderr, stdout
from tokenline.sizes import format_bytes

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class DiskFacts:
    folder: Path
    used_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is served, and how."""

    name: str  # for clients
    family: str
    num_layers: int
    path: Path
    device: str
    precision: str
    pool_bytes: int
    pool_tokens: int
    max_model_len: int  # tokens
    disk: DiskFacts | None
    tool_parser: str | None
    reasoning_parser: str | None
    sampling: str  # of requests that give no values
    host: str  # as it was asked for
    needs_key: bool
    is_default: bool  # the model that is served if none is named

    def rows(self) -> dict[str, str]:
        """The lines of the banner: name and text."""
        rows = {
            "model": f"{self.name}  ({self.family}, {self.num_layers} layers, {self.path})",
            "device": f"{self.device}, {self.precision}",
            "KV cache": f"{format_bytes(self.pool_bytes)} ({self.pool_tokens:,} tokens), "
            f"up to {self.max_model_len:,} per conversation",
        }
        if self.disk is not None:
            used, limit = format_bytes(self.disk.used_bytes), format_bytes(self.disk.max_bytes)
            rows["disk cache"] = f"{used} of {limit} in {self.disk.folder}"
        rows["sampling"] = f"{self.sampling}, unless a request says otherwise"
        rows["parsers"] = f"tool calls {self.tool_parser or 'none'}, reasoning {self.reasoning_parser or 'none'}"
        return rows


def print_ready(url: str, facts: ServerFacts, seconds: float) -> None:
    """For a person. `seconds`: how long the start took."""
    console = stdout()
    console.print(f"\ntokenline is ready after {seconds:.1f} s", style="bold green")
    rows = facts.rows() | {"address": url}
    width = max(map(len, rows))
    for name, value in rows.items():
        console.print(f"  {name:<{width}}  ", end="", style="dim")
        console.print(value)
    if facts.needs_key:
        console.print(
            "\nIn the terminal where you use these, set the key first: export TOKENLINE_API_KEY=...", style="dim"
        )
    console.print(f"\n{curl_line(url, facts.name, facts.needs_key)}\n")
    console.print(f"{client_snippet(url, facts.name, facts.needs_key)}\n")
    command = command_of_this_program()
    console.print(f"To talk to it in another terminal: {command} chat --url {url}", style="dim")
    if facts.is_default:
        console.print(f"This is a tiny model, to try the server. A better one: {command} serve qwen3:0.6b", style="dim")
    console.print("Press Ctrl-C to stop.", style="dim")
    if facts.host not in LOOPBACK and not facts.needs_key:
        warning = f"Anybody who can reach {facts.host or 'this machine'} can use this server; set --api-key KEY."
        stderr().print(warning, style="yellow")


def command_of_this_program() -> str:
    """How another terminal calls it, in whatever folder that is."""
    script = Path(sys.executable).with_name("tokenline")
    on_path = shutil.which("tokenline")
    if on_path is not None and script.exists() and os.path.samefile(on_path, script):
        return "tokenline"
    if script.exists():
        return shlex.quote(str(script))
    return f"{shlex.quote(sys.executable)} -m tokenline"


def curl_line(url: str, model: str, needs_key: bool) -> str:
    """A command that works when pasted into a shell, whatever the model is called."""
    message = {"role": "user", "content": "Hello!"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 64}, ensure_ascii=False)
    target = f"{url}/v1/chat/completions"
    parts = [f"curl {target}" if "[" not in url else f"curl --globoff {shlex.quote(target)}"]
    if needs_key:
        parts.append('-H "Authorization: Bearer $TOKENLINE_API_KEY"')
    parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    return " \\\n  ".join(parts)


def client_snippet(url: str, model: str, needs_key: bool) -> str:
    """Python for the official client, which wants a key even where the server asks for none."""
    key = 'os.environ["TOKENLINE_API_KEY"]' if needs_key else '"none"'
    return "\n".join(
        [
            *(["import os"] if needs_key else []),
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{url}/v1", api_key={key})',
            'messages = [{"role": "user", "content": "Hello!"}]',
            f"answer = client.chat.completions.create(model={json.dumps(model)}, messages=messages, max_tokens=64)",
            "print(answer.choices[0].message.content)",
            "print(answer.usage.prompt_tokens_details.cached_tokens, 'of', answer.usage.prompt_tokens, 'cached')",
        ]
    )


def announce(url: str, facts: ServerFacts) -> None:
    """For the parent process (`tokenline chat`): say in one line of JSON where the server is, and from then on end it
    when the parent closes stdin or dies.
    """
    print(json.dumps({"url": url, "model": facts.name, "sampling": facts.sampling}), flush=True)
    stdin = sys.stdin.fileno()

    def wait_for_parent() -> None:
        while os.read(stdin, 4096):  # not `sys.stdin.read`: Python aborts if that is under way when it ends
            pass
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait_for_parent, name="parent", daemon=True).start()
