"""POST /v1/chat/completions: messages to a line, pieces to a message or to its chunks."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from tokenline.engine.request import Namespace, Request
from tokenline.parse.delta import Delta, ToolCallDelta
from tokenline.server.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ErrorBody,
    FunctionCall,
    TokenLogprobEntry,
    ToolCall,
)
from tokenline.server.body import read_body
from tokenline.server.constraints import chat_constraint
from tokenline.server.disconnect import unless_gone
from tokenline.server.errors import invalid
from tokenline.server.generate import Generation, Job, Piece
from tokenline.server.head import Head
from tokenline.server.log import name_request
from tokenline.server.logprobs import chat_entry
from tokenline.server.parsers import check_output_options, make_output_parser
from tokenline.server.rendering import chat_line
from tokenline.server.sampling import sampling_params
from tokenline.server.schema import takes
from tokenline.server.sse import AnswerStream
from tokenline.server.state import ServerState
from tokenline.server.unsupported import CHAT
from tokenline.server.wire import ChatBody


def chat_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        responses={200: {"model": ChatCompletion}, 400: {"model": ErrorBody}},
        openapi_extra=takes(ChatBody),
    )
    async def chat_completions(http: HTTPRequest) -> Response:
        """Continue a conversation."""
        return await answer_chat(state, http)

    return router


async def answer_chat(state: ServerState, http: HTTPRequest) -> Response:
    record = name_request(http, "chatcmpl-")
    caller = state.caller(http)
    body = await read_body(http, ChatBody, max_bytes=state.settings.max_body_bytes, unsupported=CHAT)
    head = Head(record.id, state.model_name(body.model), bool(body.return_token_ids))
    job = await make_job(state, body, record.id, Namespace(caller=caller, salt=body.cache_salt))
    generation = Generation(state.engine, state.renderer.tokenizer, [job], record)
    if body.stream:
        return await AnswerStream.open(http, generation, chat_chunks(state, generation, body, head), state.settings)
    return JSONResponse(await unless_gone(http, chat_completion(state, generation, body, head)))


async def make_job(state: ServerState, body: ChatBody, request_id: str, namespace: Namespace) -> Job:
    """Check what the wire types could not, render the line, and say how it is to be continued. Raises ApiError."""
    check_output_options(state.parsers, body)
    if body.top_logprobs and not body.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid("'stream_options' is only for 'stream': true.", "stream_options")
    line = await chat_line(state, body, namespace)
    params = sampling_params(
        state,
        body,
        prompt_tokens=len(line),
        prompt_param="messages",
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    constraint = await chat_constraint(state.constrainer, state.parsers, body, line)
    return Job(
        line=line,
        request=Request(request_id, line.ids, params, namespace, body.n or 1, constraint, retention=retention(body)),
        stop=tuple(body.stop or ()),
        make_parser=lambda: make_output_parser(state.parsers, body, line),
        continues_text=bool(body.continue_final_message),
        # When the client sends this answer back as history, its line keeps the ids that were generated (invariant 7).
        on_answer=lambda ids: state.renderer.remember(line, ids, namespace=namespace),
    )


def retention(body: ChatBody) -> Literal["24h", "in_memory"] | None:
    """Whether the answer's line is asked to be kept on disk, or forbidden to go there (--cache-dir)."""
    if body.prompt_cache_retention is None:
        return None
    return "24h" if body.prompt_cache_retention == "24h" else "in_memory"


async def chat_completion(state: ServerState, generation: Generation, body: ChatBody, head: Head) -> ChatCompletion:
    """The whole answer, put together from the same pieces that a stream would send."""
    pieces_of: list[list[Piece]] = [[] for _ in range(body.n or 1)]
    async with generation:
        await generation.open(wait_s=None)
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                pieces_of[piece.choice].append(piece)
        completion: ChatCompletion = {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [_choice(state, generation, body, index, pieces) for index, pieces in enumerate(pieces_of)],
            "usage": generation.usage(),
        }
        if head.token_ids:
            completion["prompt_token_ids"] = generation.jobs[0].line.ids.tolist()
        return completion


def _choice(
    state: ServerState, generation: Generation, body: ChatBody, index: int, pieces: Sequence[Piece]
) -> ChatChoice:
    finish_reason = pieces[-1].finish_reason
    assert finish_reason is not None
    whole = generation.message(index, [delta for piece in pieces for delta in piece.deltas])
    message: ChatMessage = {"role": "assistant", "content": whole.content, "refusal": None}
    if whole.reasoning is not None:
        message["reasoning_content"] = message["reasoning"] = whole.reasoning
    if whole.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in whole.tool_calls
        ]
    logprobs: ChatLogprobs | None = None
    if body.logprobs:
        logprobs = {"content": [entry for piece in pieces for entry in _entries(state, piece)], "refusal": None}
    choice: ChatChoice = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}
    if body.return_token_ids:
        choice["token_ids"] = [token_id for piece in pieces for token_id in piece.ids]
    return choice


async def chat_chunks(
    state: ServerState, generation: Generation, body: ChatBody, head: Head
) -> AsyncGenerator[Mapping[str, Any], None]:
    """The chunks of a stream: the role of each choice, what it says, why it ended; then the usage, if asked for."""
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)

    def chunk(*choices: ChatChunkChoice) -> ChatCompletionChunk:
        made: ChatCompletionChunk = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": list(choices),
        }
        if include_usage:
            made["usage"] = None
        return made

    for index in range(body.n or 1):
        first = chunk(_chunk_choice(index, {"role": "assistant", "content": ""}))
        if head.token_ids and index == 0:
            first["prompt_token_ids"] = generation.jobs[0].line.ids.tolist()
        yield first
    # Ids and log probabilities whose text is still held back wait for the next chunk of their choice.
    waiting: dict[int, _Waiting] = {index: _Waiting() for index in range(body.n or 1)}
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            held = waiting[piece.choice]
            held.ids += piece.ids
            held.logprobs += _entries(state, piece)
            parts = [_chat_delta(delta) for delta in piece.deltas]
            if piece.finish_reason is not None:
                parts.append({})
            for number, part in enumerate(parts):
                last = number == len(parts) - 1
                choice = _chunk_choice(piece.choice, part, piece.finish_reason if last else None)
                if body.logprobs and held.logprobs:
                    choice["logprobs"] = {"content": held.logprobs, "refusal": None}
                if head.token_ids:
                    choice["token_ids"] = held.ids
                held = waiting[piece.choice] = _Waiting()
                yield chunk(choice)
    if include_usage:
        final = chunk()
        final["usage"] = generation.usage()
        yield final


class _Waiting:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobEntry] = []


def _chunk_choice(index: int, delta: ChatDelta, finish_reason: str | None = None) -> ChatChunkChoice:
    logprobs: ChatLogprobs | None = None
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _entries(state: ServerState, piece: Piece) -> list[TokenLogprobEntry]:
    """The log probabilities of a piece's tokens, without the end of the turn, which is no token of the content."""
    count = len(piece.ids) - (1 if piece.ended else 0)
    return [
        chat_entry(state.renderer.tokenizer, token_id, logprob)
        for token_id, logprob in zip(piece.ids[:count], piece.logprobs[:count], strict=False)
    ]


def _chat_delta(delta: Delta) -> ChatDelta:
    made: ChatDelta = {}
    if delta.content:
        made["content"] = delta.content
    if delta.reasoning:
        made["reasoning_content"] = made["reasoning"] = delta.reasoning
    if delta.tool_calls:
        made["tool_calls"] = [_call_piece(call) for call in delta.tool_calls]
    return made


def _call_piece(piece: ToolCallDelta) -> ToolCall:
    """A piece of a tool call. Clients add up what is there, so what is not said again is left out, not null."""
    function: FunctionCall = {"arguments": piece.arguments}
    call: ToolCall = {"index": piece.index, "function": function}
    if piece.id is not None:
        call["id"] = piece.id
        call["type"] = "function"
    if piece.name is not None:
        function["name"] = piece.name
    return call
