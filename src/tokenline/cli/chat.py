"""`tokenline chat`: a conversation in the terminal, and what the cache did for each turn.

Knows terminals and turns; `client` knows the wire. With --url it talks to a running server; without, it starts one and
stops it at exit.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenline.cli.console import CommandError, print_error, printable, progress_bars, stdout
from tokenline.cli.pull import MODEL_HELP

if TYPE_CHECKING:
    from tokenline.cli.client import ChatClient, Ending

HELP = "/new starts a new conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def chat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of a running server, e.g. http://127.0.0.1:8000; MODEL is then a name that it serves. "
            "Without it, chat starts a server.",
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="TOKENLINE_API_KEY", help="The server's API key.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            max=2,
            help="Sampling temperature; 0: always the most likely token.",
            show_default="the server's",
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            max=1,
            help="Sample from the most likely tokens that together have this probability.",
            show_default="the server's",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Sampling seed; the same seed gives the same answers.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", min=1, help="Maximum tokens per answer.", show_default="the server's"),
    ] = None,
) -> None:
    """Talk to a model in the terminal."""
    from tokenline.cli.client import ChatClient, ChatError

    options = {"temperature": temperature, "top_p": top_p, "seed": seed, "max_tokens": max_tokens}
    with contextlib.ExitStack() as stack:
        try:
            if url is None:
                server = stack.enter_context(own_server(model))
                client, name = ChatClient(server.url, server.api_key), server.model
                stack.callback(client.close)
            else:
                client = ChatClient(url, api_key)
                stack.callback(client.close)
                name = model or _first_model(client.models())
        except ChatError as error:
            raise CommandError(str(error)) from error
        given = {key: value for key, value in options.items() if value is not None}
        conversation = Conversation({"model": name, **given}, system)
        Terminal(client, conversation).run()


def _first_model(names: list[str]) -> str:
    if not names:
        raise CommandError("the server serves no model")
    return names[0]


@dataclass(slots=True)
class Conversation:
    """The messages so far. A turn is added when it is over, so a failed one is not part of it."""

    options: dict[str, Any]  # of every request: model and sampling
    system: str | None
    turns: list[dict[str, str]] = field(default_factory=list)

    def request(self, text: str) -> dict[str, Any]:
        """The body that asks for the answer to `text`."""
        opening = [{"role": "system", "content": self.system}] if self.system is not None else []
        return self.options | {"messages": [*opening, *self.turns, {"role": "user", "content": text}]}

    def add(self, text: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


class Terminal:
    """Reads lines, streams answers. Works with a person and with a pipe."""

    def __init__(self, client: "ChatClient", conversation: Conversation):
        self._client = client
        self._conversation = conversation
        self._out = stdout()
        self._interactive = sys.stdin.isatty()
        self._failed = False

    def run(self) -> None:
        """Run until /exit or the end of input. With piped input, an error makes the exit code 2."""
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  gives input() editing and history
            self._out.print(f"{self._conversation.options['model']}: {HELP}", style="dim")
        elif hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        while (text := self._read()) is not None:
            match text.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    break
                case "/new":
                    self._conversation.turns.clear()
                    self._out.print("New conversation.", style="dim")
                case "/help":
                    self._out.print(HELP, style="dim")
                case _:
                    self._turn(text)
        if self._failed and not self._interactive:
            raise typer.Exit(2)

    def _read(self) -> str | None:
        """The next line; None at the end of input."""
        interrupted = False
        while True:
            try:
                if interrupted:  # printed inside the try: Ctrl-C may be pressed again meanwhile
                    self._out.print("\n(Ctrl-D or /exit leaves)", style="dim")
                # \001 and \002 tell readline which characters take no space.
                return input("\001\033[1;36m\002> \001\033[0m\002" if self._interactive else "")
            except EOFError:
                if self._interactive:
                    self._out.print()
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                interrupted = True

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
            self._failed = True
            self._end_line(answer)
            print_error(str(error))
            return
        self._end_line(answer)
        if answer:
            self._conversation.add(text, "".join(answer))
        if stopped:
            kept = "stopped; the partial answer stays in the conversation" if answer else "stopped; nothing was added"
            self._out.print(kept, style="dim")
        elif ending is not None:
            self._out.print(ending_line(ending), style="dim")

    def _stream(self, text: str, answer: list[str]) -> "Ending | None":
        """Print the answer as it comes, adding its pieces to `answer`."""
        from tokenline.cli.client import Ending

        thinking = False
        with contextlib.closing(self._client.stream(self._conversation.request(text))) as pieces:  # type: ignore[type-var]
            for piece in pieces:
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

    def _print_piece(self, text: str, style: str | None = None) -> None:
        self._out.print(printable(text), end="", style=style)
        self._out.file.flush()

    def _end_line(self, answer: list[str]) -> None:
        if not answer or not answer[-1].endswith("\n"):
            self._out.print()


def ending_line(ending: "Ending") -> str:
    """`cached 812 of 861 prompt tokens (94.3 %), first token after 61 ms`"""
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
    if ending.finish_reason == "length":
        parts.append("stopped at the token limit")
    return ", ".join(parts)


# --- a server of its own ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnServer:
    url: str
    model: str
    api_key: str


@contextlib.contextmanager
def own_server(model: str | None) -> Iterator[OwnServer]:
    """`tokenline serve` as a child on a free port, with a key that only this process knows; stopped at the end.

    It runs in a session of its own, so that Ctrl-C stops an answer and not the server. It stops by itself when its
    stdin closes, which happens when this process ends, in whatever way.
    """
    from tokenline.models.fetch import resolve_model

    with progress_bars() as progress:
        resolve_model(model, progress=progress)  # here, so that a wrong name is reported once, by this process
    key = secrets.token_urlsafe(32)
    command = [sys.executable, "-m", "tokenline.cli.main", "serve", "--port", "0", "--announce"]
    command += ["--log-level", "error", *(["--", model] if model is not None else [])]
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
