"""POST /v1/chat/completions: messages to a line, pieces to a message or to its chunks."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

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
    check_output_options(body)
    if body.top_logprobs and not body.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid("'stream_options' is only for 'stream': true.", "stream_options")
    line = await chat_line(state, body)
    params = sampling_params(
        state,
        body,
        prompt_tokens=len(line),
        prompt_param="messages",
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return Job(
        line=line,
        request=Request(request_id, line.ids, params, namespace, n=body.n or 1),
        stop=tuple(body.stop or ()),
        make_parser=lambda: make_output_parser(body, line),
        continues_text=bool(body.continue_final_message),
    )


async def chat_completion(state: ServerState, generation: Generation, body: ChatBody, head: Head) -> ChatCompletion:
    """The whole answer, put together from the same pieces that a stream would send."""
    choices = [_Choice(state, body, index) for index in range(body.n or 1)]
    async with generation:
        await generation.open(wait_s=None)
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.choice].add(piece)
        completion: ChatCompletion = {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [choice.result() for choice in choices],
            "usage": generation.usage(),
        }
        if head.token_ids:
            completion["prompt_token_ids"] = generation.jobs[0].line.ids.tolist()
        return completion


class _Choice:
    """One choice of a non-streaming answer while it grows."""

    def __init__(self, state: ServerState, body: ChatBody, index: int):
        self._state = state
        self._body = body
        self._index = index
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[ToolCallDelta]] = {}
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobEntry] = []
        self._finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        for delta in piece.deltas:
            self._content.append(delta.content)
            self._reasoning.append(delta.reasoning)
            for call in delta.tool_calls:
                self._calls.setdefault(call.index, []).append(call)
        self._ids += piece.ids
        self._logprobs += _entries(self._state, piece)
        self._finish_reason = piece.finish_reason

    def result(self) -> ChatChoice:
        assert self._finish_reason is not None
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message: ChatMessage = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [_call(self._calls[index]) for index in sorted(self._calls)]
        choice: ChatChoice = {
            "index": self._index,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if self._body.logprobs else None,
            "finish_reason": self._finish_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = self._ids
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
        made["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        # A chunk has each index at most once: clients keep what they find under it.
        by_index: dict[int, list[ToolCallDelta]] = {}
        for call in delta.tool_calls:
            by_index.setdefault(call.index, []).append(call)
        made["tool_calls"] = [{"index": index, **_call(calls)} for index, calls in by_index.items()]
    return made


def _call(pieces: list[ToolCallDelta]) -> ToolCall:
    """One tool call, or one more piece of it; the id and the name are only there if they are in these pieces."""
    function: FunctionCall = {"arguments": "".join(piece.arguments for piece in pieces)}
    call: ToolCall = {"function": function}
    for piece in pieces:
        if piece.id is not None:
            call["id"] = piece.id
            call["type"] = "function"
        if piece.name is not None:
            function["name"] = piece.name
    return call
