"""The server that `tokenline chat` starts for itself when it is given no --url."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import typer

from tokenline.cli.console import progress_bars


@dataclass(frozen=True, slots=True)
class OwnServer:
    url: str
    model: str
    api_key: str


@contextlib.contextmanager
def own_server(model: str | None, options: Sequence[str] = ()) -> Iterator[OwnServer]:
    """`tokenline serve` as a child on a free port, with a key that only this process knows; stopped at the end.

    It runs in a session of its own, so that Ctrl-C stops an answer and not the server. It stops by itself when its
    stdin closes, which happens when this process ends, in whatever way. `options`: more of `tokenline serve`.
    """
    from tokenline.models.fetch import resolve_model

    with progress_bars() as progress:
        resolve_model(model, progress=progress)  # here, so that a wrong name is reported once, by this process
    key = secrets.token_urlsafe(32)
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", "--port", "0", "--announce"]
    command += ["--log-level", "error", *options, *(["--", model] if model is not None else [])]
    child = subprocess.Popen(
        command,
        env=os.environ | {"TOKENLINE_API_KEY": key},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            child.wait(30)
            raise typer.Exit(2)  # the child has said why on the stderr that we share
        announced = json.loads(line)
        yield OwnServer(announced["url"], announced["model"], key)
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        child.wait(15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
