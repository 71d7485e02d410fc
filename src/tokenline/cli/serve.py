"""`tokenline serve [MODEL]`: compose the rooms into a server and run it until it is told to stop.

Knows every room's constructor and nothing of what they do. What a user can get wrong ends as one line (`main`), and as
early as it can be known: names before libraries are imported, the port and the template before weights are loaded.
"""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokenline.cli.console import CommandError, ended_by_ctrl_c, progress_bars, stderr, stdout
from tokenline.cli.pull import MODEL_HELP

if TYPE_CHECKING:
    from tokenline.engine.engine import Engine

IMPORTING = "starting"
PREPARING = "preparing the model (the first start also compiles kernels for this CPU)"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SIZE_UNITS = {"": 1, "b": 1} | {
    unit + suffix: base**power
    for power, unit in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def parse_size(text: str) -> int:
    """Bytes: "4GiB" and "4G" are 4 * 1024**3, "4GB" is 4 * 1000**3, "4096" is 4096."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    unit = SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or len(match[1]) > 30:
        raise typer.BadParameter(f"{text!r} is no size; write it like 4GiB, 512M or 1073741824")
    size = int(float(match[1]) * unit)
    if size < 1:
        raise typer.BadParameter(f"{text!r} must be at least one byte")
    return size


def serve(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where the model runs.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"], typer.Option(help="What the weights are kept as.")
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens of a prompt and its answer at most; without it what the model was made for."),
    ] = None,
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Memory for the KV cache, e.g. 4GiB, 512M; without it a share of what is free.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A local directory where prefixes that leave the KV cache are kept, also from one start to the next.",
        ),
    ] = None,
    cache_dir_size: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="What lies in --cache-dir at most; without it 10GiB."),
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Answers that are computed at the same time.")] = 64,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name that clients use; may be given several times. Without it: from MODEL."),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Jinja chat template to use in place of the model's own.")
    ] = None,
    tool_call_parser: Annotated[
        str, typer.Option(metavar="NAME", help="How tool calls are read; auto: by the chat template; none.")
    ] = "auto",
    reasoning_parser: Annotated[
        str, typer.Option(metavar="NAME", help="How reasoning is told from the answer; auto: by the template; none.")
    ] = "auto",
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="TOKENLINE_API_KEY",
            help="A key that clients must send; may be given several times. Keys share no cache.",
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="info: one line a request.")
    ] = "warning",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.")] = False,
    announce: Annotated[
        bool, typer.Option("--announce", hidden=True, help="For `tokenline chat`: see `_announce`.")
    ] = False,
) -> None:
    """Serve a model with the OpenAI API."""
    started = time.perf_counter()
    keys = _checked_keys(api_key or [])
    template = read_template(chat_template)
    names = _checked_names(served_model_name or [])
    _check_parsers(tool_call_parser, reasoning_parser)
    _check_cache_dir(cache_dir, cache_dir_size)

    with progress_bars() as progress:
        from tokenline.models.fetch import resolve_model

        path = resolve_model(model, progress=progress)
        with ended_by_ctrl_c():
            progress(IMPORTING, 0, None)
            from tokenline.engine.engine import Engine
            from tokenline.engine.settings import CACHE_DIR_BYTES, EngineSettings
            from tokenline.models.fingerprint import weights_fingerprint
            from tokenline.models.load import load_model
            from tokenline.models.weights import GGUFCheckpoint, open_checkpoint
            from tokenline.render.renderer import Renderer
            from tokenline.server.app import create_app
            from tokenline.server.run import ServerError, bind, run
            from tokenline.server.settings import ServerSettings

            try:
                listener = bind(host, port)
            except ServerError as error:
                raise CommandError(str(error)) from error
            checkpoint = open_checkpoint(path)  # what is no model at all is said before anything else about it
            gguf = checkpoint.file if isinstance(checkpoint, GGUFCheckpoint) else None
            renderer = Renderer.from_model(path, chat_template=template, gguf=gguf)
            progress(PREPARING, 0, None)
            loaded = load_model(checkpoint, device=device, dtype=dtype, progress=progress)
            del checkpoint, gguf  # a vocabulary's worth of strings
            fingerprint = ""
            if cache_dir is not None:
                weights = weights_fingerprint(path, cache_dir / "weights.json", progress)
                fingerprint = f"{weights} {dtype}"
    engine = Engine(
        loaded,
        EngineSettings(
            max_model_len=max_model_len,
            kv_cache_memory=kv_cache_memory,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max(EngineSettings().max_batch_tokens, 2 * max_num_seqs),  # room for prefill beside them
            cache_dir=cache_dir,
            cache_dir_size=cache_dir_size or CACHE_DIR_BYTES,
            model_fingerprint=fingerprint,
        ),
    )
    names = names or (name_of(model, path),)
    settings = ServerSettings(
        model_names=names,
        api_keys=keys,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        log_level=log_level,
        log_json=log_json,
    )
    app = create_app(renderer, engine, settings)
    parsers = app.state.server.parsers
    facts = {
        "model": f"{names[0]}  ({loaded.config.family}, {loaded.config.num_layers} layers, {path})",
        "device": f"{loaded.device}, {loaded.precision}",
        "KV cache": f"{engine.limits.pool_tokens:,} tokens, at most {engine.limits.max_model_len:,} a conversation",
        **_disk_fact(cache_dir, engine),
        "parsers": f"tool calls {parsers.tool_parser or 'none'}, reasoning {parsers.reasoning_parser or 'none'}",
    }

    def on_ready(url: str) -> None:
        if announce:
            _announce(url, names[0])
        else:
            _print_ready(url, names[0], facts | {"address": url}, bool(keys), time.perf_counter() - started)
            if host not in LOOPBACK and not keys:
                _warn_of_open_door(host or "this machine")

    try:
        run(app, listener=listener, on_ready=on_ready)
    except ServerError as error:
        raise CommandError(str(error)) from error


def _check_cache_dir(folder: Path | None, size: int | None) -> None:
    """Before a model is loaded for it."""
    if folder is None:
        if size is not None:
            raise CommandError("--cache-dir-size: there is no --cache-dir")
        return
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"--cache-dir {folder}: not a directory")


def _disk_fact(folder: Path | None, engine: "Engine") -> dict[str, str]:
    disk = engine.stats().disk
    if disk is None:
        return {}
    return {"disk cache": f"{disk.bytes / 2**20:,.0f} of {disk.max_bytes / 2**20:,.0f} MiB in {folder}"}


def read_template(file: Path | None) -> str | None:
    """The text of a --chat-template FILE."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"--chat-template {file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise CommandError(f"--chat-template {file}: {error.strerror}") from error


def name_of(model: str | None, path: Path) -> str:
    """What clients call the model: a hub id as it was given, else the file's or folder's name."""
    from tokenline.models.fetch import DEFAULT_MODEL
    from tokenline.models.hub import HubName

    if model is None:
        return DEFAULT_MODEL.name.split(".")[0]
    hub_name = HubName.parse(model.strip())
    if hub_name is not None and not Path(model.strip()).exists():
        return str(hub_name)
    path = path.resolve()
    return (path.stem if path.suffix == ".gguf" else path.name) or "model"


def _checked_keys(keys: list[str]) -> tuple[str, ...]:
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise CommandError("--api-key: a key must be printable ASCII without spaces, and not empty")
    return tuple(dict.fromkeys(keys))


def _check_parsers(tool_call_parser: str, reasoning_parser: str) -> None:
    from tokenline.parse.registry import reasoning_parsers, tool_parsers

    for option, name, known in (
        ("--tool-call-parser", tool_call_parser, tool_parsers()),
        ("--reasoning-parser", reasoning_parser, reasoning_parsers()),
    ):
        if name not in ("auto", "none", *known):
            raise CommandError(f"{option}: {name!r} is not known; there are auto, none, {', '.join(known)}")


def _checked_names(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or not name.isprintable():
            raise CommandError("--served-model-name: a name must not be empty, and must be printable")
    return tuple(dict.fromkeys(names))


def _announce(url: str, model: str) -> None:
    """Tell the parent process, in one line of JSON, where the server is; stop when the parent closes stdin or dies."""
    print(json.dumps({"url": url, "model": model}), flush=True)
    stdin = sys.stdin.fileno()

    def wait_for_parent() -> None:
        while os.read(stdin, 4096):  # not `sys.stdin.read`: Python aborts if that is under way when it ends
            pass
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait_for_parent, name="parent", daemon=True).start()


def _print_ready(url: str, model: str, facts: dict[str, str], needs_key: bool, seconds: float) -> None:
    console = stdout()
    console.print(f"\ntokenline is ready after {seconds:.1f} s", style="bold green")
    width = max(map(len, facts))
    for name, value in facts.items():
        console.print(f"  {name:<{width}}  ", end="", style="dim")
        console.print(value)
    console.print(f"\n{curl_line(url, model, needs_key)}\n")
    console.print(f"{client_snippet(url, model, needs_key)}\n")
    console.print("Ctrl-C stops it.", style="dim")


def _warn_of_open_door(host: str) -> None:
    stderr().print(f"Anybody who can reach {host} can use this server; --api-key KEY changes that.", style="yellow")


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
