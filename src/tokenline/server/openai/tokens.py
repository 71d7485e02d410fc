"""Layer 2 over HTTP, without the engine: POST /tokenize, /detokenize and /apply-template."""

from contextlib import AbstractContextManager

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from tokenline.engine.request import Namespace
from tokenline.fields import FieldError, Places
from tokenline.render.check import check_ids
from tokenline.server.body import Body, takes
from tokenline.server.errors import api_errors
from tokenline.server.json_answer import BYTES_PER_VALUE, json_answer
from tokenline.server.log import record_of
from tokenline.server.openai.answers import InputTokens, PromptObject, TokensObject
from tokenline.server.openai.read import chat_input
from tokenline.server.openai.wire import ChatBody, DetokenizeBody, TemplateBody, TokenizeBody
from tokenline.server.state import ServerState
from tokenline.service.prepare import check_salt


def token_routes(state: ServerState) -> APIRouter:
    router = APIRouter()
    service = state.service
    tokenizer = service.renderer.tokenizer

    def faults(http: HTTPRequest, body: Body) -> AbstractContextManager[None]:
        return api_errors(record_of(http).id, Places(body.moved))

    @router.post("/tokenize", responses={200: {"model": TokensObject}}, openapi_extra=takes(TokenizeBody))
    async def tokenize(http: HTTPRequest) -> Response:
        """The ids of a prompt, exactly those that a completion of it would be given."""
        caller = state.caller(http)
        body = await state.bodies.read(http, TokenizeBody)
        state.model_name(body.model)
        with faults(http, body):
            ids = await tokenize_body(state, body, caller)

            def answer() -> TokensObject:
                limit = service.engine.limits.max_model_len
                written: TokensObject = {"count": len(ids), "max_model_len": limit, "tokens": ids}
                if body.return_token_strs:
                    written["token_strs"] = [tokenizer.token_bytes(i).decode(errors="replace") for i in ids]
                return written

            return await json_answer(service.aside, len(ids), answer)

    @router.post(
        "/v1/chat/completions/input_tokens", responses={200: {"model": InputTokens}}, openapi_extra=takes(ChatBody)
    )
    async def input_tokens(http: HTTPRequest) -> Response:
        """How many tokens the prompt of a chat completion has."""
        caller = state.caller(http)
        body = await state.bodies.read(http, ChatBody)
        state.model_name(body.model)
        with faults(http, body):
            check_salt(body.cache_salt)
            namespace = Namespace(caller=caller, salt=body.cache_salt)
            chat = chat_input(body)
            line = await service.chat_line(chat, namespace, body.size, to_count=True)
        answer: InputTokens = {"object": "response.input_tokens", "input_tokens": len(line)}
        return await json_answer(service.aside, 1, lambda: answer)

    @router.post("/detokenize", responses={200: {"model": PromptObject}}, openapi_extra=takes(DetokenizeBody))
    async def detokenize(http: HTTPRequest) -> Response:
        """The text of some ids."""
        state.caller(http)
        body = await state.bodies.read(http, DetokenizeBody)
        state.model_name(body.model)

        def answer() -> PromptObject:
            check_ids(body.tokens, tokenizer.vocab_size, ("tokens",))
            return {"prompt": tokenizer.decode(body.tokens)}

        with faults(http, body):
            return await json_answer(service.aside, len(body.tokens), answer)

    @router.post("/apply-template", responses={200: {"model": PromptObject}}, openapi_extra=takes(TemplateBody))
    async def template(http: HTTPRequest) -> Response:
        """The text that the chat template makes of a conversation."""
        state.caller(http)
        body = await state.bodies.read(http, TemplateBody)
        state.model_name(body.model)
        with faults(http, body):
            text = await service.chat_text(chat_input(body), body.size)
            return await json_answer(service.aside, len(text) // BYTES_PER_VALUE, lambda: {"prompt": text})

    return router


async def tokenize_body(state: ServerState, body: TokenizeBody, caller: str | None) -> list[int]:
    """The ids that the body asks for. Raises FieldError."""
    service = state.service
    check_salt(body.cache_salt)
    namespace = Namespace(caller=caller, salt=body.cache_salt)
    if body.messages is not None and body.prompt is None:
        return (await service.chat_line(chat_input(body), namespace, body.size, to_count=True)).ids.tolist()
    if body.prompt is None or body.messages is not None:
        raise FieldError(("prompt",), "or ", ("messages",), " is needed, and not both.")
    if body.add_special_tokens is False:
        return await service.text_ids(body.prompt, ("prompt",), body.size)
    line = await service.text_line(body.prompt, ("prompt",), namespace, body.size, to_count=True)
    return line.ids.tolist()
