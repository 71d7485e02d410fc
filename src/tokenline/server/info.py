"""What a server says about itself: /, /v1/models, /health, /version, /props, /stats; and POST /reset_prefix_cache."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

import tokenline
from tokenline.engine.request import RequestRefused
from tokenline.server.errors import from_refusal
from tokenline.server.openai.answers import ModelCard, ModelList, Props
from tokenline.server.origins import refuse_simple
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

    @router.get("/", include_in_schema=False)
    async def root() -> Response:
        """For people who open the address in a browser, and programs that look whether somebody is there."""
        if state.settings.api_keys:
            who = "tokenline serves a model to those who have a key."
        else:
            who = f"tokenline {tokenline.__version__} serves {', '.join(state.settings.model_names)}."
        return PlainTextResponse(f"{who}\nThe API is at /v1, its description at /docs.\n")

    @router.get("/props", responses={200: {"model": Props}})
    async def props(http: HTTPRequest) -> Response:
        """What clients of llama.cpp's server ask for: the context, defaults of sampling, the chat template."""
        state.caller(http)
        return JSONResponse(_props(state))

    @router.get("/health")
    async def health() -> Response:
        """200 as long as requests can be answered."""
        if not (await state.service.engine.health()).ok:
            return JSONResponse({"status": "failed"}, 503)
        return JSONResponse({"status": "ok"})

    @router.get("/version")
    async def version(http: HTTPRequest) -> Response:
        state.caller(http)
        return JSONResponse({"version": tokenline.__version__})

    @router.get("/stats")
    async def stats(http: HTTPRequest) -> Response:
        """What the engine and its prefix cache hold and have done, as of the last step."""
        state.caller(http)
        return JSONResponse(asdict(await state.service.engine.stats()))

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(http: HTTPRequest) -> Response:
        """Forget held prefixes: the caller's own; all of them for an admin key, and where there are no keys.

        Running requests keep what they use. No body is needed, but its type or a key is.
        """
        whose = state.governed(http)
        refuse_simple(http)
        try:
            await state.service.engine.reset_prefix_cache(whose)
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        return JSONResponse({"status": "ok"})

    return router


def _props(state: ServerState) -> Props:
    service, sampling = state.service, state.service.room.default_sampling
    limits = service.engine.limits
    name = state.settings.model_names[0]
    return {
        "default_generation_settings": {
            "n_ctx": limits.max_model_len,
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "seed": -1,
                "max_tokens": -1,
                "n_predict": -1,
                "stop": [],
            },
        },
        "total_slots": limits.max_num_seqs,
        "model_alias": name,
        "model_path": name,  # where it lies on the disk is nobody's business
        "chat_template": service.chat_template,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"tokenline {tokenline.__version__}",
    }
