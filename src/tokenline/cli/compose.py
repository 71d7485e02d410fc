"""The composition of a server: model files, renderer, model, engine and application, built in this order from options.

Knows every room's constructor and nothing of what they do. What is cheap to check comes first: the port before a model
is downloaded, the chat template and the limits before its weights are loaded. Rooms are imported here when they are
needed, so that a wrong option is reported without waiting for them.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenline.cli.console import CommandError, ended_by_ctrl_c
from tokenline.cli.ready import DiskFacts, ServerFacts
from tokenline.cli.serve_options import ServeOptions
from tokenline.fields import FieldError
from tokenline.models.progress import Progress

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tokenline.engine.engine import Engine
    from tokenline.engine.errors import SettingError
    from tokenline.engine.settings import EngineSettings
    from tokenline.models.base import Model
    from tokenline.models.config import ModelConfig
    from tokenline.render.renderer import Renderer

STARTING = "starting up"
PREPARING = "preparing the model (the first start also compiles kernels for this CPU: about half a minute)"


@dataclass(frozen=True, slots=True)
class ComposedServer:
    """A server that holds its port and has its model loaded, but answers nothing yet."""

    app: "FastAPI"
    listener: socket.socket
    facts: ServerFacts

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until a signal comes. `on_ready` is called with the base URL once requests are answered."""
        from tokenline.server.run import ServerError, run

        try:
            run(self.app, listener=self.listener, on_ready=on_ready)
        except ServerError as error:
            raise CommandError(str(error)) from error


def compose(options: ServeOptions, progress: Progress) -> ComposedServer:
    """Build the server. Raises CommandError, ModelError or RenderError."""
    from tokenline.models.fetch import resolve_model

    listener = _bind(options)  # first of all: a port that is taken is said before anything is downloaded
    path = resolve_model(options.model, progress=progress)
    with ended_by_ctrl_c():
        progress(STARTING, 0, None)
        from tokenline.models.load import load_model
        from tokenline.models.weights import GGUFCheckpoint, open_checkpoint
        from tokenline.render.renderer import Renderer
        from tokenline.server.app import create_app
        from tokenline.server.settings import ServerSettings
        from tokenline.service.fit import check_fit

        checkpoint = open_checkpoint(path)  # a path that holds no model is reported before anything else about it
        gguf = checkpoint.file if isinstance(checkpoint, GGUFCheckpoint) else None
        renderer = Renderer.from_model(path, chat_template=options.chat_template, gguf=gguf)
        check_fit(renderer, checkpoint.config.vocab_size)
        _check_limits(options, checkpoint.config)
        progress(PREPARING, 0, None)
        model = load_model(checkpoint, device=options.device, dtype=options.dtype, progress=progress)
        del checkpoint, gguf  # a vocabulary's worth of strings
        engine = _make_engine(options, path, model, renderer, progress)
        keys = options.all_keys
        settings = ServerSettings(
            model_names=options.served_model_names or (name_of(options.model, path),),
            api_keys=keys,
            cors_origins=options.cors_origins,
            allowed_hosts=options.guarded_hosts,
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
            generation_config=options.generation_config,
            override_generation_config=options.override_generation_config,
            log_level=options.log_level,
            log_json=options.log_json,
        )
        try:
            app = create_app(renderer, engine, settings)
        except FieldError as error:  # the options' own values have been checked
            raise CommandError(
                f"the model's generation config: {error} --generation-config none ignores it."
            ) from error
    disk = engine.snapshot().disk
    service = app.state.server.service
    facts = ServerFacts(
        name=settings.model_names[0],
        family=model.config.family,
        num_layers=model.config.num_layers,
        path=path,
        device=model.device,
        precision=model.precision,
        pool_bytes=model.kv_bytes_per_token() * engine.limits.pool_tokens,
        pool_tokens=engine.limits.pool_tokens,
        max_model_len=engine.limits.max_model_len,
        disk=DiskFacts(options.cache_dir, disk.bytes, disk.max_bytes) if options.cache_dir and disk else None,
        tool_parser=service.parsers.tool_parser,
        reasoning_parser=service.parsers.reasoning_parser,
        sampling=str(service.room.default_sampling),
        host=options.host,
        needs_key=bool(keys),
        is_default=_means_default_model(options.model),
    )
    return ComposedServer(app, listener, facts)


def _bind(options: ServeOptions) -> socket.socket:
    from tokenline.server.run import ServerError, bind

    try:
        return bind(options.host, options.port)
    except ServerError as error:
        raise CommandError(str(error)) from error


def _engine_settings(options: ServeOptions, fingerprint: str = "") -> "EngineSettings":
    from tokenline.engine.settings import CACHE_DIR_BYTES, EngineSettings

    return EngineSettings(
        max_model_len=options.max_model_len,
        kv_cache_memory=options.kv_cache_memory,
        max_num_seqs=options.max_num_seqs,
        # Room for prefill beside the sequences that decode.
        max_batch_tokens=max(EngineSettings().max_batch_tokens, 2 * options.max_num_seqs),
        cache_dir=options.cache_dir,
        cache_dir_size=options.cache_dir_size or CACHE_DIR_BYTES,
        model_fingerprint=fingerprint,
    )


def _check_limits(options: ServeOptions, config: "ModelConfig") -> None:
    """Refuse limits that this model or this machine cannot meet, before the weights are loaded."""
    from tokenline.engine.errors import SettingError
    from tokenline.engine.settings import check_before_loading
    from tokenline.models.load import runs_on_cpu
    from tokenline.models.memory import available_memory

    free = available_memory() if runs_on_cpu(options.device) else None
    try:
        check_before_loading(_engine_settings(options), config, free)
    except SettingError as error:
        raise _option_error(error) from error


def _option_error(error: "SettingError") -> CommandError:
    return CommandError(f"--{error.setting.replace('_', '-')} {error.reason}")


def _make_engine(
    options: ServeOptions, path: Path, model: "Model", renderer: "Renderer", progress: Progress
) -> "Engine":
    from tokenline.engine.engine import Engine
    from tokenline.engine.errors import SettingError
    from tokenline.grammar.compiler import GrammarCompiler
    from tokenline.models.fingerprint import weights_fingerprint

    fingerprint = ""
    if options.cache_dir is not None:
        weights = weights_fingerprint(path, options.cache_dir / "weights.json", progress)
        fingerprint = f"{weights} {options.dtype}"
    settings = _engine_settings(options, fingerprint)
    tokenizer, vocab_size = renderer.tokenizer, model.config.vocab_size
    compiler = GrammarCompiler(
        tokenizer,
        tokenizer.vocab_size,
        vocab_size,
        renderer.end_ids,
        encode=lambda text: tokenizer.encode_with_offsets(text, continued=True)[0],
        close_objects=True,
    )
    try:
        return Engine(model, settings, compiler, tokenizer.unknown_ids(vocab_size))
    except SettingError as error:
        raise _option_error(error) from error


def _is_here(model: str | None) -> bool:
    """Whether MODEL is a path."""
    return model is not None and os.path.exists(model.strip())


def _means_default_model(model: str | None) -> bool:
    from tokenline.models.fetch import is_default_model

    return not _is_here(model) and is_default_model(model)


def name_of(model: str | None, path: Path) -> str:
    """What clients call the model: a hub id or short name as it was given, else the name of the file or folder."""
    from tokenline.models.fetch import DEFAULT_NAME
    from tokenline.models.hub_names import HubName

    if _means_default_model(model):
        return DEFAULT_NAME
    if model is not None and not _is_here(model) and (hub_name := HubName.parse(model.strip())):
        return str(hub_name)
    path = path.resolve()
    return (path.stem if path.suffix == ".gguf" else path.name) or "model"
