"""POST /v1/completions: one prompt or several, as text or as ids, each continued `n` times."""

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from tokenline.aside import Aside
from tokenline.engine.request import TokenLogprob
from tokenline.fields import Places
from tokenline.parse.delta import ContentDelta, TokenBytes
from tokenline.server.body import takes
from tokenline.server.errors import ApiError, api_errors, openai_body
from tokenline.server.json_answer import BYTES_PER_VALUE, encode
from tokenline.server.log import name_request
from tokenline.server.openai.answers import (
    DONE,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    PromptProgressObject,
    finish_reason_of,
    now_s,
    progress_of,
    usage_of,
)
from tokenline.server.openai.logprobs import completion_logprobs, echoed_logprobs, joined_logprobs, prompt_logprobs
from tokenline.server.openai.read import text_request
from tokenline.server.openai.stream_usage import StreamUsage
from tokenline.server.openai.wire import CompletionBody
from tokenline.server.respond import Whole, respond
from tokenline.server.sse import Frame, Frames
from tokenline.server.state import ServerState
from tokenline.service.answer import Answer, Prompt
from tokenline.service.events import Event, Piece, PromptAdvanced, PromptDone


def completion_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        responses={200: {"model": Completion}},
        openapi_extra=takes(CompletionBody),
    )
    async def completions(http: HTTPRequest) -> Response:
        """Continue a text."""
        record = name_request(http, "cmpl-")
        caller = state.caller(http)
        body = await state.bodies.read(http, CompletionBody)
        model = state.model_name(body.model)
        with api_errors(record.id, Places(body.moved)):
            request = text_request(body, record.id, caller)
        shell = CompletionShell(body, record.id, model, state.service.renderer.tokenizer, state.service.aside)
        return await respond(http, state, request, shell, stream=bool(body.stream))

    return router


class CompletionShell:
    """How the answers to one text completion are written."""

    def __init__(self, body: CompletionBody, answer_id: str, model: str, tokens: TokenBytes, aside: Aside):
        self._body = body
        self._aside = aside
        self._id = answer_id
        self._model = model
        self._created = now_s()
        self._tokens = tokens
        self._usage = StreamUsage(body.stream_options)

    async def whole(self, answer: Answer) -> Whole:
        """The whole answer, put together from the same events that a stream would send."""
        texts = self._texts(answer)
        prompts: list[PromptDone] = []
        async for event in answer:
            if isinstance(event, PromptDone):
                prompts.append(event)
            else:
                self._take(event, texts)

        def make() -> Completion:
            for event in prompts:
                self._take_scores(event, answer, texts)
            choices = [text.take(index) for index, text in enumerate(texts)]
            return {**self._chunk(*choices), "usage": usage_of(answer.usage())}

        return Whole(sum(text.values for text in texts) + sum(map(self._values, prompts)), make)

    def _values(self, event: PromptDone) -> int:
        """About how many numbers and texts the scores of a prompt make in each of its choices."""
        top = max(self._body.logprobs or 0, self._body.prompt_logprobs or 0)
        return 4 * len(event.logprobs or ()) * (1 + top) * (self._body.n or 1)

    async def frames(self, answer: Answer) -> Frames:
        """Each choice's text in pieces; the first repeats its prompt with `echo`, once its tokens are scored if they
        are to be.
        """
        texts = self._texts(answer)
        for index, text in enumerate(texts):
            if text.says_prompt and not text.is_waiting:
                yield self._frame(answer, text.take(index))
        async for event in answer:
            if isinstance(event, PromptAdvanced):
                yield self._frame(answer, _empty_choice(event.first_choice), progress_of(event.progress))
            self._take(event, texts)
            if isinstance(event, PromptDone):
                size = self._values(event) * BYTES_PER_VALUE
                await self._aside.run_if_large(size, lambda event=event: self._take_scores(event, answer, texts))
            if isinstance(event, PromptDone) and self._scores_echo:
                for index in answer.choices_of(event.prompt):
                    yield await self._large_frame(answer, texts[index], index)
            if isinstance(event, Piece):
                text = texts[event.choice]
                if not text.is_waiting and (text.has_text or event.end is not None):
                    yield self._frame(answer, text.take(event.choice))
        if self._usage.is_included:
            yield Frame({**self._chunk(), "usage": usage_of(answer.usage())})
        yield Frame(DONE)

    @property
    def _scores_echo(self) -> bool:
        return bool(self._body.echo) and self._body.logprobs is not None

    def _take(self, event: Event, texts: list["_Text"]) -> None:
        """Hand an event to the choice that it is about."""
        if isinstance(event, Piece):
            texts[event.choice].add(event)

    def _take_scores(self, event: PromptDone, answer: Answer, texts: list["_Text"]) -> None:
        """Hand the scores of a prompt to its choices."""
        if event.logprobs is None:
            return
        body, line, scores = self._body, answer.prompts[event.prompt].line, event.logprobs
        echoed, listed = None, None
        if body.logprobs is not None and self._scores_echo:
            echoed = echoed_logprobs(self._tokens, line, scores, body.logprobs)
        if body.prompt_logprobs is not None:
            listed = prompt_logprobs(self._tokens, line, scores, body.prompt_logprobs)
        for index in answer.choices_of(event.prompt):
            texts[index].take_scores(echoed, listed)

    def error_frame(self, error: ApiError) -> Frame:
        return Frame(openai_body(error))

    def _texts(self, answer: Answer) -> list["_Text"]:
        return [_Text(self._body, self._tokens, answer.prompt_of(choice)) for choice in range(answer.num_choices)]

    async def _large_frame(self, answer: Answer, text: "_Text", index: int) -> Frame:
        """What a choice has, written aside."""

        def make() -> Frame:
            return Frame(encode(self._frame(answer, text.take(index)).data).decode())

        return await self._aside.run_if_large(text.values * BYTES_PER_VALUE, make)

    def _frame(self, answer: Answer, choice: CompletionChoice, progress: PromptProgressObject | None = None) -> Frame:
        chunk = self._chunk(choice)
        if progress is not None:
            chunk["prompt_progress"] = progress
        self._usage.add_to(chunk, answer)
        return Frame(chunk)

    def _chunk(self, *choices: CompletionChoice) -> Completion:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": list(choices),
        }


def _empty_choice(index: int) -> CompletionChoice:
    return {"index": index, "text": "", "logprobs": None, "finish_reason": None}


class _Text:
    """One choice: what has come since it was last taken, all of it or a chunk's worth. It begins with what is said of
    its prompt.
    """

    def __init__(self, body: CompletionBody, tokens: TokenBytes, prompt: Prompt):
        self.prompt = prompt
        self.says_prompt = bool(body.echo or body.return_token_ids)  # and has not done so yet
        self.is_waiting = bool(body.echo) and body.logprobs is not None  # for the log probabilities of its prompt
        self._body = body
        self._tokens = tokens
        self._before = len(prompt.line.text) if body.echo else 0  # characters ahead of the generated text
        self._finish_reason: str | None = None
        self._echoed: CompletionLogprobs | None = None
        self._prompt_logprobs: PromptLogprobs | None = None
        self._clear()

    def _clear(self) -> None:
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._offsets: list[int] = []

    @property
    def values(self) -> int:
        """About how many texts and numbers `take` would give, without the prompt's scores that it lacks yet."""
        scores = 0 if self._echoed is None else len(self._echoed["tokens"])
        own = len(self._ids) + len(self.prompt.line) * self.says_prompt
        return own + 4 * (len(self._logprobs) + scores) * (1 + (self._body.logprobs or 0))

    @property
    def has_text(self) -> bool:
        return any(self._text)

    def take_scores(self, echoed: CompletionLogprobs | None, listed: PromptLogprobs | None) -> None:
        """The log probabilities of the prompt, as `logprobs` and as `prompt_logprobs` have them."""
        self._echoed, self._prompt_logprobs, self.is_waiting = echoed, listed, False

    def add(self, piece: Piece) -> None:
        self._text += [delta.text for delta in piece.deltas if isinstance(delta, ContentDelta)]
        self._ids += piece.ids
        self._logprobs += piece.logprobs
        self._offsets += piece.offsets
        if piece.end is not None:
            self._finish_reason = finish_reason_of(piece.end)

    def take(self, index: int) -> CompletionChoice:
        body, text = self._body, "".join(self._text)
        logprobs: CompletionLogprobs | None = None
        if body.logprobs is not None:
            offsets = [self._before + offset for offset in self._offsets]
            logprobs = completion_logprobs(self._tokens, self._ids, self._logprobs, offsets, body.logprobs)
            if self._echoed is not None:
                logprobs, self._echoed = joined_logprobs(self._echoed, logprobs), None
        if self.says_prompt and body.echo:
            text = self.prompt.line.text + text
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self._finish_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = self._ids
            if self.says_prompt:
                choice["prompt_token_ids"] = self.prompt.line.ids.tolist()
        if self._prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs
        self.says_prompt = False
        self._clear()
        return choice
