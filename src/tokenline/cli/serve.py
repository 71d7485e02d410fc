"""`tokenline serve [MODEL]`: a server for one model, until it is told to stop.

Declares the options. `serve_options` checks them, `compose` builds the server, `ready` says that it is there.
"""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from tokenline.cli.compose import compose
from tokenline.cli.console import progress_bars
from tokenline.cli.pull import MODEL_HELP
from tokenline.cli.ready import announce as announce_to_parent
from tokenline.cli.ready import print_ready
from tokenline.cli.serve_options import ServeOptions, comma_separated, read_keys, read_sampling, read_template
from tokenline.sizes import parse_size


def size(text: str) -> int:
    """Bytes, of an option."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def folder(text: str) -> Path:
    """A directory, of an option; `--cache-dir=~/kv` reaches us with the ~ in it."""
    if not text.strip():
        raise typer.BadParameter("must name a directory, not ''")
    if "\0" in text:
        raise typer.BadParameter(f"{text!r}: embedded null byte")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user, or no home
        raise typer.BadParameter(str(error)) from error


def serve(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0: all network interfaces.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8000,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"],
        typer.Option(metavar="NAME", help="Where the model runs: auto, cpu, cuda or mps."),
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        typer.Option(metavar="NAME", help="Weight precision: auto, float32, bfloat16 or int8."),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            min=2,
            help="Maximum context (prompt + answer) in tokens.",
            show_default="the model's",
        ),
    ] = None,
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            parser=size,
            metavar="SIZE",
            help="Memory for the KV cache, e.g. 4GiB or 512M.",
            show_default="30 % of free memory, at most --max-num-seqs full contexts",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            parser=folder, metavar="PATH", help="Keep evicted prefixes on disk, in this directory, across restarts."
        ),
    ] = None,
    cache_dir_size: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Maximum size of --cache-dir.", show_default="10GiB"),
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Maximum number of answers generated at once.")
    ] = 64,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Model name for clients. Repeat the option for several names.",
            show_default="from MODEL",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Jinja chat template to use.", show_default="the model's"),
    ] = None,
    tool_call_parser: Annotated[
        str, typer.Option(metavar="NAME", help="Tool-call format; auto detects it, none disables it.")
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(metavar="NAME", help="Format of the model's reasoning; auto detects it, none disables it."),
    ] = "auto",
    generation_config: Annotated[
        Literal["auto", "none"],
        typer.Option(
            metavar="NAME",
            help="Sampling values of requests that give none. auto: the model's own, else temperature 0.8, top_k 40, "
            "top_p 0.95, min_p 0.05; none: temperature 1 and nothing cut off.",
        ),
    ] = "auto",
    override_generation_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Other values for --generation-config, e.g. '{\"temperature\": 0.5}'.",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="TOKENLINE_API_KEY",
            help="API key that clients must send. Repeat the option for several keys; each has its own cache. Other "
            "users of this machine can see a command line; the environment variable and --api-key-file they cannot.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="TOKENLINE_API_KEY_FILE",
            help="API keys as hashes, made by `tokenline keys add FILE NAME`.",
        ),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGINS",
            help="Web pages that may use the server, e.g. https://chat.example.com,app://obsidian.md; *: all.",
            show_default="none but its own",
        ),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Host names that the server may be called by, besides this machine's; *: any.",
            show_default="any, if --host is a network address",
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(metavar="LEVEL", help="debug, info (one line per request), warning or error."),
    ] = "warning",
    log_json: Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON objects.")] = False,
    announce: Annotated[
        bool, typer.Option("--announce", hidden=True, help="For `tokenline chat`: see `ready.announce`.")
    ] = False,
) -> None:
    """Serve a model with the OpenAI API."""
    started = time.perf_counter()
    options = ServeOptions(
        model=model,
        host=host,
        port=port,
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        kv_cache_memory=kv_cache_memory,
        cache_dir=cache_dir,
        cache_dir_size=cache_dir_size,
        max_num_seqs=max_num_seqs,
        served_model_names=tuple(dict.fromkeys(served_model_name or ())),
        chat_template=read_template(chat_template),
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        generation_config=generation_config,
        override_generation_config=read_sampling(override_generation_config),
        api_keys=tuple(dict.fromkeys(api_key or ())),
        listed_keys=read_keys(api_key_file),
        cors_origins=comma_separated(cors_origins),
        allowed_hosts=comma_separated(allowed_hosts),
        log_level=log_level,
        log_json=log_json,
    )
    with progress_bars() as progress:
        server = compose(options, progress)

    def on_ready(url: str) -> None:
        if announce:
            announce_to_parent(url, server.facts)
        else:
            print_ready(url, server.facts, time.perf_counter() - started)

    server.run(on_ready)
