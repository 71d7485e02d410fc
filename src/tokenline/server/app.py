"""The composition of the server: one renderer, one engine, one state object, and the routes over them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route

import tokenline
from tokenline.engine.client import EngineClient
from tokenline.render.errors import RenderError
from tokenline.render.renderer import Renderer
from tokenline.render.stability_words import summary
from tokenline.server.body import add_body_schemas
from tokenline.server.document import declare_security, document_routes
from tokenline.server.errors import ApiError, handle_http_exception
from tokenline.server.info import info_routes
from tokenline.server.log import logger
from tokenline.server.middleware import RequestLog, handle_api_error
from tokenline.server.openai.answers import ErrorObject
from tokenline.server.openai.chat import chat_routes
from tokenline.server.openai.completions import completion_routes
from tokenline.server.openai.tokens import token_routes
from tokenline.server.openai.wire import BODIES
from tokenline.server.origins import CorsHeaders, PageGuard
from tokenline.server.settings import ServerSettings
from tokenline.server.state import ServerState
from tokenline.server.targets import Targets
from tokenline.service.default_sampling import PLAIN, DefaultSampling
from tokenline.service.parsers import ParserChoice
from tokenline.service.service import Service


def create_app(renderer: Renderer, engine: EngineClient, settings: ServerSettings) -> FastAPI:
    """The ASGI application. Its lifespan starts the engine and closes it; `app.state.server` is the ServerState.

    Raises ValueError for a parser that is not known, FieldError for a sampling default that is not valid.
    """
    base = DefaultSampling.of(renderer.default_sampling) if settings.generation_config == "auto" else PLAIN
    defaults = DefaultSampling.of(settings.override_generation_config, base)
    parsers = ParserChoice.of(renderer, settings.tool_call_parser, settings.reasoning_parser)
    state = ServerState(Service(renderer, engine, parsers, defaults), settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        _log_stability(renderer)
        try:
            yield
        finally:
            await state.close()
            state.service.aside.close()

    app = FastAPI(title="tokenline", version=tokenline.__version__, lifespan=lifespan, openapi_url=None)
    app.state.server = state
    routers = (
        chat_routes(state),
        completion_routes(state),
        token_routes(state),
        info_routes(state),
        document_routes(state, app),
    )
    for router in routers:
        app.include_router(router, responses={"default": {"model": ErrorObject, "description": "Refused, or failed"}})
    add_body_schemas(app, BODIES)
    if settings.api_keys:
        declare_security(app)
    app.add_exception_handler(ApiError, handle_api_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    # From the inside out: a refused page is logged too, and also errors say that a page may read them.
    app.add_middleware(
        PageGuard, origins=settings.cors_origins, hosts=settings.allowed_hosts, has_keys=bool(settings.api_keys)
    )
    app.add_middleware(RequestLog)
    app.add_middleware(CorsHeaders, origins=settings.cors_origins)
    paths = [route.path for router in routers for route in router.routes if isinstance(route, Route)]
    app.add_middleware(Targets, routes=paths)
    return app


def _log_stability(renderer: Renderer) -> None:
    """Say once if the chat template breaks the cached prefix from turn to turn."""
    try:
        found = renderer.stability(explain=False)
    except RenderError:  # no template: then there are no chats either
        return
    if not found.stable:
        logger.warning("%s Details: tokenline template check %s", summary(found), renderer.template_source)
