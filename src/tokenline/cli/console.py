"""What the commands share in talking to a person: the two consoles, errors of one line, progress bars."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

from tokenline.models.progress import Progress


class CommandError(Exception):
    """Something the user can change; shown as one line on stderr, exit code 2."""


def stdout() -> Console:
    """For what was asked for. Text is printed as it is: no markup, no automatic colours, no wrapping."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False)


def stderr() -> Console:
    """For what happens meanwhile."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_error(message: str) -> None:
    line = " ".join(message.split())  # whatever a library says, it stays one line
    console = stderr()
    console.print("tokenline: ", end="", style="bold red" if console.is_terminal else None)
    console.print(line)


def printable(text: str) -> str:
    """`text` without the control characters by which a model or a server could steer the terminal."""
    return "".join(
        character if character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160) else "\ufffd"
        for character in text
    )


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Draws a bar for each piece of work that reports, one under the other; where nobody watches, a line for each."""
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
    with RichProgress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None, /) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def _progress_lines(console: Console) -> Progress:
    begun: set[str] = set()

    def report(what: str, done: int, total: int | None, /) -> None:
        if what not in begun:
            begun.add(what)
            console.print(what)

    return report
