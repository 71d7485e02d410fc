"""A real tiny model with the real renderer and engine behind the real application; nothing here is a stand-in."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from tests.limits import HANG_S
from tests.tiny import make_tiny
from tokenline.engine.engine import Engine
from tokenline.engine.settings import EngineSettings
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.models.base import Model
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer
from tokenline.server.app import create_app
from tokenline.server.keys import ApiKey
from tokenline.server.run import bind, make_server, url_of
from tokenline.server.settings import ServerSettings

CONTEXT = 4096
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True)
class Tiny:
    """A random model of 600 tokens and a context of 4,096."""

    path: Path
    model: Model
    renderer: Renderer


@dataclass
class Served:
    """One running application."""

    app: FastAPI
    engine: Engine
    renderer: Renderer
    http: httpx.AsyncClient
    url: str


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = make_tiny("llama", tmp_path_factory.mktemp("server") / "tiny", max_position_embeddings=CONTEXT)
    return Tiny(path, load_model(path, device="cpu", dtype="float32"), Renderer.from_model(path))


@asynccontextmanager
async def serving(tiny: Tiny, *, live: bool, model: Model | None = None, **options: Any) -> AsyncIterator[Served]:
    """Serve the tiny model: `live` on a port of 127.0.0.1, otherwise in process. Options are settings' fields."""
    engine_fields = set(EngineSettings.__dataclass_fields__)
    own = {name: options.pop(name) for name in list(options) if name in engine_fields}
    tokenizer, vocab_size = tiny.renderer.tokenizer, tiny.model.config.vocab_size
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, vocab_size, tiny.renderer.end_ids, close_objects=True)
    forbidden = tokenizer.unknown_ids(vocab_size)
    engine = Engine(model or tiny.model, EngineSettings(**{"kv_cache_memory": 16 << 20, **own}), compiler, forbidden)
    # However busy the machine is, an answer that fails at its first token is a plain error, and no ping comes between.
    patient = {"shutdown_grace_s": 2.0, "stream_open_after_s": HANG_S, "ping_s": int(HANG_S)}
    options["api_keys"] = tuple(map(_key, options.get("api_keys", ())))
    settings = ServerSettings(**{"model_names": ("tiny", "tiny-too"), **patient, **options})
    app = create_app(tiny.renderer, engine, settings)
    async with AsyncExitStack() as stack:
        if live:
            url = await stack.enter_async_context(_listening(app))
            http = httpx.AsyncClient(base_url=url, timeout=HANG_S)
        else:
            await stack.enter_async_context(app.router.lifespan_context(app))
            url = "http://localhost"
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url, timeout=HANG_S)
        await stack.enter_async_context(http)
        yield Served(app, engine, tiny.renderer, http, url)


def _key(key: str | ApiKey) -> ApiKey:
    return ApiKey.of(key) if isinstance(key, str) else key


@asynccontextmanager
async def _listening(app: FastAPI) -> AsyncIterator[str]:
    listener = bind("127.0.0.1", 0)
    ready = asyncio.Event()
    server = make_server(app, ready.set)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait_for(ready.wait(), HANG_S)
        yield url_of(listener)
    finally:
        server.should_exit = True
        await running


Serve = Callable[..., Awaitable[Served]]


@pytest_asyncio.fixture
async def serve(tiny: Tiny) -> AsyncIterator[Serve]:
    """A function that serves the tiny model with some settings until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(live: bool = False, **options: Any) -> Served:
            return await stack.enter_async_context(serving(tiny, live=live, **options))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tiny: Tiny) -> AsyncIterator[Served]:
    """One server for all tests of a file that only send it what it refuses; they need `in_module_loop`."""
    async with serving(tiny, live=False) as one:
        yield one


in_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture
async def served(serve: Serve) -> Served:
    """The tiny model in process, with the default settings."""
    return await serve()
