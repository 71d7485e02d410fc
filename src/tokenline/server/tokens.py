"""Layer 2 over HTTP, without the engine: POST /tokenize, /detokenize and /apply-template."""

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from tokenline.engine.request import Namespace
from tokenline.server.answers import Prompt, Tokens
from tokenline.server.body import read_body
from tokenline.server.errors import invalid
from tokenline.server.rendering import chat_line, template_text, text_line
from tokenline.server.sampling import check_ids
from tokenline.server.schema import takes
from tokenline.server.state import ServerState
from tokenline.server.wire import DetokenizeBody, TemplateBody, TokenizeBody


def token_routes(state: ServerState) -> APIRouter:
    router = APIRouter()
    max_bytes = state.settings.max_body_bytes

    @router.post("/tokenize", responses={200: {"model": Tokens}}, openapi_extra=takes(TokenizeBody))
    async def tokenize(http: HTTPRequest) -> Response:
        """The ids of a prompt, exactly those that a completion of it would be given."""
        caller = state.caller(http)
        body = await read_body(http, TokenizeBody, max_bytes=max_bytes)
        state.model_name(body.model)
        ids = await tokenize_body(state, body, Namespace(caller=caller, salt=body.cache_salt))
        answer: Tokens = {"count": len(ids), "max_model_len": state.engine.limits.max_model_len, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = [state.renderer.tokenizer.token_bytes(i).decode(errors="replace") for i in ids]
        return JSONResponse(answer)

    @router.post("/detokenize", responses={200: {"model": Prompt}}, openapi_extra=takes(DetokenizeBody))
    async def detokenize(http: HTTPRequest) -> Response:
        """The text of some ids."""
        state.caller(http)
        body = await read_body(http, DetokenizeBody, max_bytes=max_bytes)
        state.model_name(body.model)
        ids = check_ids(body.tokens, state.renderer.tokenizer.vocab_size, "tokens")
        return JSONResponse({"prompt": state.renderer.tokenizer.decode(ids)})

    @router.post("/apply-template", responses={200: {"model": Prompt}}, openapi_extra=takes(TemplateBody))
    async def template(http: HTTPRequest) -> Response:
        """The text that the chat template makes of a conversation."""
        state.caller(http)
        body = await read_body(http, TemplateBody, max_bytes=max_bytes)
        state.model_name(body.model)
        return JSONResponse({"prompt": await template_text(state, body)})

    return router


async def tokenize_body(state: ServerState, body: TokenizeBody, namespace: Namespace) -> list[int]:
    """The ids that the body asks for. Raises a 400."""
    if body.messages is not None and body.prompt is None:
        return (await chat_line(state, body, namespace, to_count=True)).ids.tolist()
    if body.prompt is None or body.messages is not None:
        raise invalid("Either 'prompt' or 'messages' is needed, and not both.", "prompt")
    line = await text_line(state, body, body.prompt, "prompt", namespace, to_count=True)
    if body.add_special_tokens is False:
        return state.renderer.tokenizer.encode(body.prompt, parse_special=True)
    return line.ids.tolist()
