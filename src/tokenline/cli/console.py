"""How the commands talk to a person: the two consoles, errors of one line, progress bars."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from tokenline.models.progress import Progress
from tokenline.sizes import format_bytes


class CommandError(Exception):
    """Something the user can change; shown as one line on stderr, exit code 2."""


def stdout() -> Console:
    """For the result. Text is printed as it is: no markup, no automatic colours, no wrapping."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False)


def stderr() -> Console:
    """For progress, warnings and errors."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_error(message: str) -> None:
    line = printable(" ".join(message.split()))  # a library's message may have several lines, a file's name anything
    console = stderr()
    console.print("tokenline: ", end="", style="bold red" if console.is_terminal else None)
    console.print(line)


def printable(text: str) -> str:
    """`text` without control characters, with which a model or a server could steer the terminal."""
    return "".join(
        character if character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160) else "\ufffd"
        for character in text
    )


def shortened(text: str, limit: int = 60) -> str:
    """`text`, cut in the middle if it is longer than `limit` characters."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Within it Ctrl-C ends the process by the signal (130 for a shell), at once and without an exception.

    For work that imports large libraries and leaves nothing to tidy up. A KeyboardInterrupt inside such a library is
    sometimes swallowed (measured: once in 180 times) or turned into another error.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # our parent has set another one: `nohup`, `&` in a script
        yield
        return

    def end(*_: Any) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # bars hide the cursor; print() may be interrupted midway
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Draw a bar for each piece of work that reports. Without a terminal, print a line for each."""
    console = stderr()
    if not console.is_terminal:
        yield _progress_lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with _Bars(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None, /) -> None:
            if what not in tasks:
                for task in [task for task in bars.tasks if task.total is None]:
                    bars.remove_task(task.id)  # work of unknown size has ended once the next begins
                tasks[what] = bars.add_task(what, total=total)
            elif tasks[what] in bars.task_ids:
                bars.update(tasks[what], completed=done, total=total)

        yield report
        for task in [task for task in bars.tasks if task.total is None]:
            bars.remove_task(task.id)


class _Bars(RichProgress):
    """A bar for work of known size, a line of text for the rest."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table([task for task in self.tasks if task.total is not None])
        for task in self.tasks:
            if task.total is None:
                waited = int(task.elapsed or 0)  # seconds: shows that it is alive
                yield Text(f"{task.description} …{f' {waited} s' if waited >= 3 else ''}", style="dim")


def _progress_lines(console: Console) -> Progress:
    begun: set[str] = set()

    def report(what: str, done: int, total: int | None, /) -> None:
        if what not in begun:
            begun.add(what)
            console.print(what if total is None else f"{what} ({format_bytes(total)})")

    return report
