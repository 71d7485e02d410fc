"""Running `tokenline` as a user does: in a process of its own, with pipes or with a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.limits import HANG_S

TOKENLINE = [sys.executable, "-m", "tokenline.cli.main"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x01\x02\r]")


def run(*args: object, stdin: str = "", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`tokenline ARGS` with pipes."""
    environment = {key: value for key, value in os.environ.items() if key != "TOKENLINE_API_KEY"} | dict(env or {})
    command = [*TOKENLINE, *map(str, args)]
    data = stdin.encode(errors="surrogateescape")
    done = subprocess.run(command, input=data, env=environment, capture_output=True, timeout=HANG_S)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """It failed as a command should: exit code 2, one line on stderr that has the parts, nothing on stdout."""
    assert (done.returncode, done.stdout) == (2, ""), done
    last = done.stderr.splitlines()[-1] if done.stderr else ""
    assert last.startswith("tokenline: "), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("tokenline: ") == 1
    for part in parts:
        assert part in last


@dataclass
class OnTerminal:
    """`tokenline ARGS` with a terminal of its own, which can be typed at and read from."""

    args: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    seen: str = ""  # all that was read, without colours
    received: bytes = b""  # all that was read, as it came
    _position: int = 0  # in `seen`: where the next `read_until` begins to look

    def __enter__(self) -> "OnTerminal":
        pid, self._terminal = pty.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # where the tests run in the background it is ignored
                os.execvpe(TOKENLINE[0], [*TOKENLINE, *self.args], os.environ | {"TERM": "xterm"} | self.env)
            finally:
                os._exit(127)
        self.pid = pid
        return self

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def press_until(self, key: str, text: str) -> str:
        """Press `key`, again each second as a person would, and read until `text` comes.

        For Ctrl-C at a prompt: Python's `input` sees one that falls between the prompt and its waiting only at the
        next key.
        """
        self.type(key)
        return self.read_until(text, again=key)

    def read_until(self, text: str, again: str = "") -> str:
        """What comes up to and including the next `text`; `again` is typed each second until then."""
        start = self._position
        deadline = time.monotonic() + HANG_S
        pressed = time.monotonic()
        while text not in self.seen[start:]:
            if again and time.monotonic() > pressed + 1:
                self.type(again)
                pressed = time.monotonic()
            assert time.monotonic() < deadline, f"{text!r} did not come; what came: {self.seen[start:]!r}"
            assert self._read(0.1), f"ended before {text!r} came; what came: {self.seen[start:]!r}"
        self._position = self.seen.index(text, start) + len(text)
        return self.seen[start : self._position]

    def _read(self, seconds: float) -> bool:
        """Add to `seen` what comes; false at the end."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.received += data  # a read may end within a character or a colour
        self.seen = ESCAPES.sub("", self.received.decode(errors="replace"))
        return bool(data)

    def wait(self) -> int:
        """The exit code, once all that was written has been read."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            if not self._read(0.05):
                time.sleep(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                while select.select([self._terminal], [], [], 0)[0] and self._read(0):
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running; the last that came: {self.seen[-500:]!r}")

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)
