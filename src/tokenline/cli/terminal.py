"""The conversation of `tokenline chat`: commands and turns, streamed answers, and what the cache did.

Works with a person and with a pipe. `turns` reads a turn; `client` knows the wire.
"""

import contextlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenline.cli.console import print_error, printable, stdout
from tokenline.cli.turns import TurnReader
from tokenline.files import write_atomically

if TYPE_CHECKING:
    from tokenline.cli.client import ChatClient, Ending, PromptRead

HINT = "/help lists the commands, /exit or Ctrl-D leaves, Ctrl-C stops an answer."
HELP = """\
/new          starts a new conversation
/regen        answers your last message again
/read FILE    puts the text of a file in front of your next message
/save FILE    writes the conversation as a JSON request
/exit         leaves, as Ctrl-D does
Ctrl-C stops an answer. A pasted text of several lines is one message; so is what stands between two lines of \"\"\"."""
WITH_FILE = ("read", "save")
ERASE_LINE = "\r\x1b[K"
SLOW_PROMPT_MS = 1000  # a prompt that takes longer shows how far it is


@dataclass(slots=True)
class Conversation:
    """The messages so far. A turn is added when it is over, so a failed one is not part of it."""

    options: dict[str, Any]  # of every request: model and sampling
    system: str | None
    turns: list[dict[str, str]] = field(default_factory=list)

    def request(self, text: str | None = None) -> dict[str, Any]:
        """The body that asks for the answer to `text`; without it, the conversation as it is."""
        opening = [{"role": "system", "content": self.system}] if self.system is not None else []
        new = [{"role": "user", "content": text}] if text is not None else []
        return self.options | {"messages": [*opening, *self.turns, *new]}

    def add(self, text: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def take_back(self) -> list[dict[str, str]]:
        """Remove the last turn: its message and its answer. Empty: there is none."""
        old = self.turns[-2:]
        del self.turns[-2:]
        return old


class Terminal:
    """Reads turns, streams answers."""

    def __init__(self, client: "ChatClient", conversation: Conversation):
        self._client = client
        self._conversation = conversation
        self._out = stdout()
        self._interactive = sys.stdin.isatty()
        colour = self._out.color_system is not None and not self._out.no_color
        self._reader = TurnReader(self._interactive, colour=colour, say=self._say)
        self._read_files = ""  # texts of /read, for the next message
        self._failed = False

    def run(self) -> None:
        """Run until /exit or the end of input. With piped input, an error makes the exit code 2."""
        if self._interactive:
            self._say(f"{self._conversation.options['model']}: {HINT}")
        while (text := self._reader.read()) is not None:
            if not text.strip():
                continue
            command = command_in(text.strip())
            if command is None:
                said, self._read_files = self._read_files + text, ""
                self._turn(said)
            elif command[0] in ("exit", "quit"):
                break
            else:
                self._command(*command)
        if self._failed and not self._interactive:
            raise typer.Exit(2)

    def _command(self, name: str, argument: str) -> None:
        match name:
            case "new":
                self._conversation.turns.clear()
                self._read_files = ""
                self._say("New conversation.")
            case "help":
                self._say(HELP)
            case "regen":
                self._answer_again()
            case "read" | "save" if not argument:
                self._error(f"/{name} needs the name of a file")
            case "read":
                self._read_file(Path(argument).expanduser())
            case "save":
                self._save(Path(argument).expanduser())
            case _:
                self._error(f"there is no command /{name}; /help lists them")

    def _answer_again(self) -> None:
        old = self._conversation.take_back()
        if not old:
            self._error("there is no message to answer again")
            return
        said = old[0]["content"]
        before = len(self._conversation.turns)
        self._turn(said)
        if len(self._conversation.turns) == before:  # there is no new answer
            self._conversation.turns += old

    def _read_file(self, path: Path) -> None:
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = "it is not UTF-8 text" if isinstance(error, ValueError) else _reason(error)
            self._error(f"cannot read {path}: {reason}")
            return
        self._read_files += text if text.endswith("\n") else text + "\n"
        self._say(f"{path}: {len(text)} characters, in front of your next message")

    def _save(self, path: Path) -> None:
        text = json.dumps(self._conversation.request(), ensure_ascii=False, indent=2) + "\n"
        try:
            write_atomically(path, text.encode(errors="replace"), mode=0o666)
        except OSError as error:
            self._error(f"cannot write {path}: {_reason(error)}")
            return
        self._say(f"saved to {path}")

    def _say(self, text: str) -> None:
        self._out.print(text, style="dim")

    def _error(self, message: str) -> None:
        self._failed = True
        print_error(message)

    def _turn(self, text: str) -> None:
        from tokenline.cli.client import ChatError

        answer: list[str] = []
        ending: Ending | None = None
        stopped = False
        try:
            ending = self._stream(text, answer)
        except KeyboardInterrupt:
            stopped = True
        except ChatError as error:
            self._end_line(answer)
            self._error(str(error))
            return
        self._end_line(answer)
        if answer:
            self._conversation.add(text, "".join(answer))
        if stopped:
            kept = "stopped; the partial answer stays in the conversation" if answer else "stopped; nothing was added"
            self._say(kept)
        elif ending is not None:
            self._say(ending_line(ending))

    def _stream(self, text: str, answer: list[str]) -> "Ending | None":
        """Print the answer as it comes, adding its pieces to `answer`."""
        from tokenline.cli.client import Ending, PromptRead

        thinking = False
        shows_progress = False
        with contextlib.closing(self._client.stream(self._conversation.request(text))) as pieces:
            for piece in pieces:
                if isinstance(piece, PromptRead):
                    shows_progress = self._show_progress(piece) or shows_progress
                    continue
                if shows_progress:
                    shows_progress = False
                    self._out.file.write(ERASE_LINE)
                if isinstance(piece, Ending):
                    return piece
                if piece.reasoning:
                    thinking = True
                    self._print_piece(piece.reasoning, style="dim italic")
                if piece.content:
                    if thinking:
                        thinking = False
                        self._out.print()
                    answer.append(piece.content)
                    self._print_piece(piece.content)
        return None

    def _show_progress(self, read: "PromptRead") -> bool:
        """Show how far a long prompt is, on the line where the answer will begin. Whether something was shown."""
        if not self._out.is_terminal or read.time_ms < SLOW_PROMPT_MS:
            return False
        share = 100 * read.processed // max(1, read.total)
        self._out.file.write(f"{ERASE_LINE}reading the prompt: {read.processed:,} of {read.total:,} tokens ({share} %)")
        self._out.file.flush()
        return True

    def _print_piece(self, text: str, style: str | None = None) -> None:
        self._out.print(printable(text), end="", style=style)
        self._out.file.flush()

    def _end_line(self, answer: list[str]) -> None:
        if not answer or not answer[-1].endswith("\n"):
            self._out.print()


def command_in(text: str) -> tuple[str, str] | None:
    """The name and the argument of a command; None: the text is a message, as `/etc/hosts is a file` is."""
    name, _, argument = text.partition(" ")
    if not re.fullmatch("/[a-z]+", name) or "\n" in text or (argument and name[1:] not in WITH_FILE):
        return None
    return name[1:], argument.strip()


def ending_line(ending: "Ending") -> str:
    """`cached 812 of 861 prompt tokens (94.3 %), first token after 61 ms, 42.3 tokens/s`"""
    parts: list[str] = []
    if ending.prompt_tokens is None:
        parts.append("the server does not say how many tokens the prompt had")
    elif ending.cached_tokens is None:
        parts.append(f"{ending.prompt_tokens} prompt tokens, the server does not say how many were cached")
    else:
        share = 100 * ending.cached_tokens / ending.prompt_tokens if ending.prompt_tokens else 0.0
        parts.append(f"cached {ending.cached_tokens} of {ending.prompt_tokens} prompt tokens ({share:.1f} %)")
    if ending.first_token_s is not None:
        parts.append(f"first token after {ending.first_token_s * 1000:.0f} ms")
    if ending.tokens_per_s is not None:
        parts.append(f"{ending.tokens_per_s:.1f} tokens/s")
    if ending.finish_reason == "length":
        parts.append("stopped at the token limit")
    return ", ".join(parts)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
