"""POST /v1/chat/completions: wire in, and the events of the answer to a message or to its chunks."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from tokenline.engine.request import TokenLogprob
from tokenline.fields import Places
from tokenline.parse.delta import TokenBytes
from tokenline.server.body import takes
from tokenline.server.errors import ApiError, api_errors, openai_body
from tokenline.server.log import name_request
from tokenline.server.openai.answers import (
    DONE,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    DeltaWriter,
    finish_reason_of,
    message_object,
    now_s,
    progress_of,
    usage_of,
)
from tokenline.server.openai.custom_tools import custom_names
from tokenline.server.openai.logprobs import chat_entry, prompt_logprobs
from tokenline.server.openai.read import chat_request
from tokenline.server.openai.stream_usage import StreamUsage
from tokenline.server.openai.wire import ChatBody
from tokenline.server.respond import Whole, respond
from tokenline.server.sse import Frame, Frames
from tokenline.server.state import ServerState
from tokenline.service.answer import Answer
from tokenline.service.events import Piece, PromptAdvanced, PromptDone


def chat_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        responses={200: {"model": ChatCompletion}},
        openapi_extra=takes(ChatBody),
    )
    async def chat_completions(http: HTTPRequest) -> Response:
        """Continue a conversation."""
        record = name_request(http, "chatcmpl-")
        caller = state.caller(http)
        body = await state.bodies.read(http, ChatBody)
        model = state.model_name(body.model)
        with api_errors(record.id, Places(body.moved)):
            request = chat_request(body, record.id, caller)
        shell, stream = ChatShell(body, record.id, model, state.service.renderer.tokenizer), bool(body.stream)
        del body  # what was asked for and is not needed any more is not kept until the answer is through
        return await respond(http, state, request, shell, stream=stream)

    return router


class ChatShell:
    """How one chat answer is written."""

    def __init__(self, body: ChatBody, answer_id: str, model: str, tokens: TokenBytes):
        self._id = answer_id
        self._model = model
        self._created = now_s()
        self._tokens = tokens
        self._logprobs = bool(body.logprobs)
        self._top = body.top_logprobs or 0
        self._token_ids = bool(body.return_token_ids)
        self._prompt_logprobs = body.prompt_logprobs
        self._usage = StreamUsage(body.stream_options)
        self._custom = custom_names(body.tools)

    async def whole(self, answer: Answer) -> Whole:
        """The whole answer, put together from the same events that a stream would send."""
        gathered = [_Gathered() for _ in range(answer.num_choices)]
        scores: Sequence[TokenLogprob] = ()
        async for event in answer:
            if isinstance(event, PromptDone):
                scores = event.logprobs or ()
            if isinstance(event, Piece):
                gathered[event.choice].add(event)
        scored = sum(len(one.logprobs) for one in gathered) * (1 + self._top) + len(scores) * (
            1 + (self._prompt_logprobs or 0)
        )
        values = sum(len(one.ids) for one in gathered) + 4 * scored + len(answer.prompts[0].line)
        return Whole(values, lambda: self._completion(answer, gathered, scores))

    def _completion(
        self, answer: Answer, gathered: Sequence["_Gathered"], scores: Sequence[TokenLogprob]
    ) -> ChatCompletion:
        ends = answer.end_reasons()
        choices: list[ChatChoice] = []
        for index, (one, end) in enumerate(zip(gathered, ends, strict=True)):
            assert end is not None
            choice: ChatChoice = {
                "index": index,
                "message": {**message_object(answer.message(index), self._custom), "refusal": None},
                "logprobs": self._written(one) if self._logprobs else None,
                "finish_reason": finish_reason_of(end),
            }
            if self._token_ids:
                choice["token_ids"] = one.ids
            choices.append(choice)
        completion: ChatCompletion = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage_of(answer.usage()),
        }
        if self._token_ids:
            completion["prompt_token_ids"] = answer.prompts[0].line.ids.tolist()
        if (top := self._prompt_logprobs) is not None:
            completion["prompt_logprobs"] = prompt_logprobs(self._tokens, answer.prompts[0].line, scores, top)
        return completion

    async def frames(self, answer: Answer) -> Frames:
        """The role of each choice, what it says, why it ended; then the usage, if asked for."""
        for index in range(answer.num_choices):
            first = self._chunk(answer, _chunk_choice(index, {"role": "assistant", "content": ""}))
            if self._token_ids and index == 0:
                first["prompt_token_ids"] = answer.prompts[0].line.ids.tolist()
            yield Frame(first)
        # Ids and log probabilities whose text is still held back wait for the next chunk of their choice.
        waiting = [_Gathered() for _ in range(answer.num_choices)]
        writers = [DeltaWriter(self._custom) for _ in range(answer.num_choices)]
        async for event in answer:
            if isinstance(event, PromptAdvanced):
                chunk = self._chunk(answer, _chunk_choice(event.first_choice, {}))
                chunk["prompt_progress"] = progress_of(event.progress)
                yield Frame(chunk)
            if not isinstance(event, Piece):
                continue
            held = waiting[event.choice]
            held.add(event)
            writer = writers[event.choice]
            parts: list[ChatDelta] = [part for delta in event.deltas for part in writer.write(delta)]
            if event.end is not None:
                parts += [*writer.finish(), {}]
            for number, part in enumerate(parts):
                choice = _chunk_choice(event.choice, part)
                if event.end is not None and number == len(parts) - 1:
                    choice["finish_reason"] = finish_reason_of(event.end)
                if held.logprobs:
                    choice["logprobs"] = self._written(held)
                if self._token_ids:
                    choice["token_ids"] = held.ids
                held = waiting[event.choice] = _Gathered()
                yield Frame(self._chunk(answer, choice))
        if self._usage.is_included:
            final = self._chunk(answer)
            final["usage"] = usage_of(answer.usage())
            yield Frame(final)
        yield Frame(DONE)

    def error_frame(self, error: ApiError) -> Frame:
        return Frame(openai_body(error))

    def _chunk(self, answer: Answer, *choices: ChatChunkChoice) -> ChatCompletionChunk:
        chunk: ChatCompletionChunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": list(choices),
        }
        self._usage.add_to(chunk, answer)
        return chunk

    def _written(self, gathered: "_Gathered") -> ChatLogprobs:
        """Without the end of the turn, which is no token of the content."""
        entries = [chat_entry(self._tokens, token_id, logprob) for token_id, logprob in gathered.logprobs]
        return {"content": entries, "refusal": None}


class _Gathered:
    """Ids and log probabilities of one choice: all of them, or those of the next chunk."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[tuple[int, TokenLogprob]] = []  # of the tokens of the content, if they were asked for

    def add(self, piece: Piece) -> None:
        self.ids += piece.ids
        count = len(piece.ids) - (1 if piece.ended else 0)
        self.logprobs += zip(piece.ids[:count], piece.logprobs[:count], strict=False)


def _chunk_choice(index: int, delta: ChatDelta) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
