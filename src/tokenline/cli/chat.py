"""`tokenline chat`: a conversation in the terminal, and what the cache did for each turn.

Declares the options. `terminal` holds the conversation; `own_server` starts a server where --url names none.
"""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenline.cli.console import CommandError
from tokenline.cli.own_server import own_server
from tokenline.cli.pull import MODEL_HELP
from tokenline.cli.terminal import Conversation, Terminal


def _of_serve(metavar: str) -> Any:
    """An option that is handed on to the server that chat starts."""
    panel = "Options of the server that chat starts (not with --url)"
    return typer.Option(metavar=metavar, help="As for serve.", rich_help_panel=panel)


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
    device: Annotated[str | None, _of_serve("NAME")] = None,
    dtype: Annotated[str | None, _of_serve("NAME")] = None,
    max_model_len: Annotated[int | None, _of_serve("TOKENS")] = None,
    kv_cache_memory: Annotated[str | None, _of_serve("SIZE")] = None,
    cache_dir: Annotated[Path | None, _of_serve("PATH")] = None,
    chat_template: Annotated[Path | None, _of_serve("FILE")] = None,
    reasoning_parser: Annotated[str | None, _of_serve("NAME")] = None,
) -> None:
    """Talk to a model in the terminal. /help there lists the commands."""
    from tokenline.cli.client import ChatClient, ChatError

    options = {"temperature": temperature, "top_p": top_p, "seed": seed, "max_tokens": max_tokens}
    serving = {
        "--device": device, "--dtype": dtype, "--max-model-len": max_model_len, "--kv-cache-memory": kv_cache_memory,
        "--cache-dir": cache_dir, "--chat-template": chat_template, "--reasoning-parser": reasoning_parser,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        try:
            if url is None:
                server = stack.enter_context(own_server(model, _arguments(serving)))
                client, name = ChatClient(server.url, server.api_key), server.model
                stack.callback(client.close)
            else:
                if given := [option for option, value in serving.items() if value is not None]:
                    raise CommandError(f"{given[0]} is for a server that chat starts; it cannot be combined with --url")
                client = ChatClient(url, api_key)
                stack.callback(client.close)
                name = model or _first_model(client.models())
        except ChatError as error:
            raise CommandError(str(error)) from error
        given_options = {key: value for key, value in options.items() if value is not None}
        conversation = Conversation({"model": name, **given_options}, system)
        Terminal(client, conversation).run()


def _arguments(options: dict[str, Any]) -> list[str]:
    return [text for option, value in options.items() if value is not None for text in (option, str(value))]


def _first_model(names: list[str]) -> str:
    if not names:
        raise CommandError("the server serves no model")
    return names[0]
