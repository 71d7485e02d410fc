"""POST /v1/completions: one prompt or several, as text or as ids, each continued `n` times."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from tokenline.engine.request import Namespace, Request, TokenLogprob
from tokenline.render.line import Line
from tokenline.server.answers import Completion, CompletionChoice, CompletionLogprobs, ErrorBody
from tokenline.server.body import read_body
from tokenline.server.constraints import completion_constraint
from tokenline.server.disconnect import unless_gone
from tokenline.server.errors import invalid, shown
from tokenline.server.generate import Generation, Job, Piece
from tokenline.server.head import Head
from tokenline.server.log import name_request
from tokenline.server.logprobs import completion_logprobs
from tokenline.server.rendering import text_line
from tokenline.server.sampling import check_ids, check_ids_fit, sampling_params
from tokenline.server.schema import takes
from tokenline.server.sse import AnswerStream
from tokenline.server.state import ServerState
from tokenline.server.unsupported import COMPLETION
from tokenline.server.wire import CompletionBody

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this route
MAX_PROMPTS = 256


def completion_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        responses={200: {"model": Completion}, 400: {"model": ErrorBody}},
        openapi_extra=takes(CompletionBody),
    )
    async def completions(http: HTTPRequest) -> Response:
        """Continue a text."""
        return await answer_completion(state, http)

    return router


async def answer_completion(state: ServerState, http: HTTPRequest) -> Response:
    record = name_request(http, "cmpl-")
    caller = state.caller(http)
    body = await read_body(http, CompletionBody, max_bytes=state.settings.max_body_bytes, unsupported=COMPLETION)
    head = Head(record.id, state.model_name(body.model), bool(body.return_token_ids))
    jobs = await make_jobs(state, body, record.id, Namespace(caller=caller, salt=body.cache_salt))
    generation = Generation(state.engine, state.renderer.tokenizer, jobs, record)
    if body.stream:
        return await AnswerStream.open(
            http, generation, completion_chunks(state, generation, body, head), state.settings
        )
    return JSONResponse(await unless_gone(http, completion(state, generation, body, head)))


async def make_jobs(state: ServerState, body: CompletionBody, request_id: str, namespace: Namespace) -> list[Job]:
    """One job a prompt. Raises ApiError."""
    if body.stream_options is not None and not body.stream:
        raise invalid("'stream_options' is only for 'stream': true.", "stream_options")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid(
            f"'best_of' ({body.best_of}) other than 'n' ({body.n or 1}) cannot be honoured.",
            "best_of",
            code="unsupported_parameter",
        )
    if body.echo and body.logprobs is not None:
        raise invalid(
            "'logprobs' with 'echo' cannot be honoured: log probabilities of the prompt are not supported.",
            "logprobs",
            code="unsupported_parameter",
        )
    constraint = await completion_constraint(state.constrainer, body)
    prompts = read_prompts(body.prompt, state.vocab_size, state.engine.limits.max_model_len)
    jobs: list[Job] = []
    for index, (param, prompt) in enumerate(prompts):
        line = await _line(state, body, prompt, param, namespace)
        params = sampling_params(
            state,
            body,
            prompt_tokens=len(line),
            prompt_param=param,
            max_tokens=body.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=body.logprobs,
        )
        own_id = request_id if len(prompts) == 1 else f"{request_id}-{index}"
        jobs.append(
            Job(
                line=line,
                request=Request(own_id, line.ids, params, namespace, body.n or 1, constraint),
                stop=tuple(body.stop or ()),
                continues_text=True,
            )
        )
    return jobs


def read_prompts(given: Any, vocab_size: int, max_model_len: int | None = None) -> list[tuple[str, str | list[int]]]:
    """The prompts of a request, each with its place, from any of the four forms. Raises a 400.

    With `max_model_len`, ids that cannot fit are refused before each of them is looked at.
    """

    def ids(values: list[Any], param: str) -> list[int]:
        if max_model_len is not None:
            check_ids_fit(max_model_len, values, param)
        return check_ids(values, vocab_size, param)

    if isinstance(given, str):
        return [("prompt", given)]
    accepted = "a string, an array of strings, an array of token ids, or an array of those"
    if not isinstance(given, list) or not given:
        raise invalid(f"'prompt' must be {accepted}; got {shown(given)}.", "prompt", code="invalid_type")
    if type(given[0]) is int:
        return [("prompt", ids(given, "prompt"))]
    if len(given) > MAX_PROMPTS:
        raise invalid(f"'prompt' may have up to {MAX_PROMPTS} prompts; got {len(given)}.", "prompt")
    prompts: list[tuple[str, str | list[int]]] = []
    for index, one in enumerate(given):
        param = f"prompt[{index}]"
        if isinstance(one, str):
            prompts.append((param, one))
        elif isinstance(one, list) and one:
            prompts.append((param, ids(one, param)))
        else:
            raise invalid(
                f"'{param}' must be a string or a non-empty array of token ids; got {shown(one)}.",
                param,
                code="invalid_type",
            )
    return prompts


async def _line(
    state: ServerState, body: CompletionBody, prompt: str | list[int], param: str, namespace: Namespace
) -> Line:
    if isinstance(prompt, str):
        line = await text_line(state, body, prompt, param, namespace)
    else:
        line = state.renderer.ids(prompt)
    if len(line) == 0:
        raise invalid(f"'{param}' has no tokens; there is nothing to continue.", param)
    return line


async def completion(state: ServerState, generation: Generation, body: CompletionBody, head: Head) -> Completion:
    """The whole answer, put together from the same pieces that a stream would send."""
    texts = [_Text(state, body, job) for job in generation.jobs for _ in range(job.request.n)]
    finish_reasons: list[str | None] = [None] * len(texts)
    async with generation:
        await generation.open(wait_s=None)
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                texts[piece.choice].add(piece)
                finish_reasons[piece.choice] = piece.finish_reason
        choices: list[CompletionChoice] = []
        for index, text in enumerate(texts):
            choices.append(text.take(index, finish_reasons[index]))
            if head.token_ids:
                choices[index]["prompt_token_ids"] = text.job.line.ids.tolist()
        return {**_opening(head), "choices": choices, "usage": generation.usage()}


async def completion_chunks(
    state: ServerState, generation: Generation, body: CompletionBody, head: Head
) -> AsyncGenerator[Mapping[str, Any], None]:
    """The chunks of a stream; the first of each choice repeats its prompt with `echo`."""
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)

    def chunk(*choices: CompletionChoice) -> Completion:
        made: Completion = {**_opening(head), "choices": list(choices)}
        if include_usage:
            made["usage"] = None
        return made

    texts = [_Text(state, body, job) for job in generation.jobs for _ in range(job.request.n)]
    for index, text in enumerate(texts):
        if body.echo or head.token_ids:
            choice = text.take(index, None)
            if head.token_ids:
                choice["prompt_token_ids"] = text.job.line.ids.tolist()
            yield chunk(choice)
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            text = texts[piece.choice]
            text.add(piece)
            if text.has_text or piece.finish_reason is not None:
                yield chunk(text.take(piece.choice, piece.finish_reason))
    if include_usage:
        final = chunk()
        final["usage"] = generation.usage()
        yield final


def _opening(head: Head) -> Completion:
    return {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model, "choices": []}


class _Text:
    """One choice: what has come since it was last taken, all of it or a chunk's worth."""

    def __init__(self, state: ServerState, body: CompletionBody, job: Job):
        self.job = job
        self._state = state
        self._body = body
        self._before = len(job.line.text) if body.echo else 0  # characters ahead of the generated text
        self._clear()
        if body.echo:
            self._text.append(job.line.text)

    def _clear(self) -> None:
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._offsets: list[int] = []

    @property
    def has_text(self) -> bool:
        return any(self._text)

    def add(self, piece: Piece) -> None:
        self._text += [delta.content for delta in piece.deltas]
        self._ids += piece.ids
        self._logprobs += piece.logprobs
        self._offsets += piece.offsets

    def take(self, index: int, finish_reason: str | None) -> CompletionChoice:
        logprobs: CompletionLogprobs | None = None
        if self._body.logprobs is not None:
            offsets = [self._before + offset for offset in self._offsets]
            logprobs = completion_logprobs(self._state.renderer.tokenizer, self._ids, self._logprobs, offsets)
        choice: CompletionChoice = {
            "index": index,
            "text": "".join(self._text),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = self._ids
        self._clear()
        return choice
