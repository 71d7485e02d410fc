"""What a server says about itself: /v1/models, /health, /version, /stats; and POST /reset_prefix_cache."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

import tokenline
from tokenline.engine.request import RequestRefused
from tokenline.server.errors import from_refusal
from tokenline.server.openai.answers import ModelCard, ModelList
from tokenline.server.state import ServerState


def info_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    def card(name: str) -> ModelCard:
        return {
            "id": name,
            "object": "model",
            "created": state.settings.created,
            "owned_by": "tokenline",
            "max_model_len": state.service.engine.limits.max_model_len,
        }

    @router.get("/v1/models", responses={200: {"model": ModelList}})
    async def models(http: HTTPRequest) -> Response:
        """The names of the served model."""
        state.caller(http)
        answer: ModelList = {"object": "list", "data": [card(name) for name in state.settings.model_names]}
        return JSONResponse(answer)

    @router.get("/v1/models/{name:path}", responses={200: {"model": ModelCard}})
    async def model(http: HTTPRequest, name: str) -> Response:
        """One of them."""
        state.caller(http)
        return JSONResponse(card(state.model_name(name)))

    @router.get("/health")
    async def health() -> Response:
        """200 as long as requests can be answered."""
        if not (await state.service.engine.health()).ok:
            return JSONResponse({"status": "failed"}, 503)
        return JSONResponse({"status": "ok"})

    @router.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": tokenline.__version__})

    @router.get("/stats")
    async def stats(http: HTTPRequest) -> Response:
        """What the engine and its prefix cache hold and have done, as of the last step."""
        state.caller(http)
        return JSONResponse(asdict(await state.service.engine.stats()))

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(http: HTTPRequest) -> Response:
        """Forget all held prefixes. Running requests keep what they use."""
        state.caller(http)
        try:
            await state.service.engine.reset_prefix_cache()
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        return JSONResponse({"status": "ok"})

    return router
