"""Reading a person's turn: one line, a pasted text of several lines, or what stands between two \"\"\"."""

import contextlib
import io
import sys
from collections.abc import Callable

QUOTES = '"""'


class TurnReader:
    """Reads turns from a terminal or a pipe. `say` prints a line for the person."""

    def __init__(self, interactive: bool, *, colour: bool, say: Callable[[str], None]):
        self._interactive = interactive
        # \001 and \002 tell readline which characters take no space.
        self._prompt = "\001\033[1;36m\002> \001\033[0m\002" if colour else "> "
        self._say = say
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # gives input() editing and history

                # The terminal marks what is pasted, so its line breaks do not send it (GNU readline; others ignore it).
                readline.parse_and_bind("set enable-bracketed-paste on")
        elif isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")

    def read(self) -> str | None:
        """The next turn; None at the end of input."""
        line = self._line(self._prompt)
        if line is None or not line.lstrip().startswith(QUOTES):
            return line
        text = line.lstrip().removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            line = self._line(". ")
            if line is None:
                return text
            text += "\n" + line
        return text.rstrip().removesuffix(QUOTES).removeprefix("\n").removesuffix("\n")

    def _line(self, prompt: str) -> str | None:
        interrupted = False
        while True:
            try:
                if interrupted:  # printed inside the try: Ctrl-C may be pressed again meanwhile
                    self._say("\n(Ctrl-D or /exit leaves)")
                return input(prompt if self._interactive else "")
            except EOFError:
                if self._interactive:
                    self._say("")
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                interrupted = True
