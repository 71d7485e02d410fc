"""The answer to one request as it is made: the engine's steps become events of choices.

    engine.Step -> parse.OutputStream of the choice -> Piece

Answers that stream and answers that do not, chats and texts are all made of the same events. Knows no protocol. An
`Answer` owns its engine requests: closing it, whenever, frees them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tokenline.engine.client import EngineClient, StepStream
from tokenline.engine.request import CacheUse, FinishReason, Request, RequestRefused, Step
from tokenline.fields import FieldError, Path
from tokenline.grammar.spec import ConstraintSpec
from tokenline.parse.delta import Delta, OutputParser, TokenBytes
from tokenline.parse.message import Message
from tokenline.parse.stream import EndReason, OutputStream
from tokenline.render.line import Line
from tokenline.service.events import Event, Piece, PromptAdvanced, PromptDone, Usage, total


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One line to continue, `request.n` times."""

    line: Line
    request: Request
    stop: tuple[str, ...] = ()
    make_parser: Callable[[], OutputParser | None] = lambda: None
    continues_text: bool = False  # the line ends within a text that the answer continues
    tool_places: tuple[int, ...] = ()  # where in the request the tools stand that its constraint is made of
    on_answer: Callable[[Sequence[int]], None] | None = None  # called with the ids of a choice of which no more comes


class AnswerFailed(Exception):
    """The engine failed on this request after it was begun. The message is for the log, not for the client."""


class Answer:
    """Use: `open()`, iterate the events, and `aclose()` in any case (or `async with`).

    `open` raises FieldError where the engine cannot hold an answer to its constraint. Both `open` and iterating raise
    RequestRefused (also while the server shuts down) and AnswerFailed.
    """

    def __init__(self, engine: EngineClient, tokens: TokenBytes, prompts: Sequence[Prompt]):
        self.prompts = prompts
        self._engine = engine
        self._numbers = {prompt.request.request_id: number for number, prompt in enumerate(prompts)}
        self._first_choice: list[int] = []  # of each prompt
        self._choices: list[_Choice] = []
        for prompt in prompts:
            self._first_choice.append(len(self._choices))
            self._choices += [_Choice(tokens, prompt) for _ in range(prompt.request.n)]
        self._cache_uses: dict[int, CacheUse] = {}  # by number of the prompt
        self._steps: StepStream | None = None
        self._first: asyncio.Task[Step] | None = None
        self._events: deque[Event] = deque()  # of the latest step
        self._closed = False

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def prompt_of(self, choice: int) -> Prompt:
        return self._choices[choice].prompt

    def choices_of(self, prompt: int) -> range:
        """The choices of a prompt, by its number."""
        first = self._first_choice[prompt]
        return range(first, first + self.prompts[prompt].request.n)

    async def open(self, wait_s: float | None = None) -> None:
        """Hand the prompts to the engine; return with its first step, or after `wait_s`."""
        try:
            self._steps = await self._engine.generate([prompt.request for prompt in self.prompts])
        except RequestRefused as refusal:
            if refusal.code == "constraint":
                raise _constraint_fault(self.prompts[0], refusal) from None
            raise
        self._first = asyncio.ensure_future(anext(self._steps))
        done, _ = await asyncio.wait({self._first}, timeout=wait_s)
        if done:
            _check_alive(self._first.result())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if all(choice.end for choice in self._choices):
                raise StopAsyncIteration
            await self._take(await self._next_step())
        return self._events.popleft()

    async def _next_step(self) -> Step:
        assert self._steps is not None, "open() comes first"
        first, self._first = self._first, None
        try:
            return await (anext(self._steps) if first is None else first)
        except StopAsyncIteration:
            raise RuntimeError("the engine's steps ended before its choices were finished") from None

    async def _take(self, step: Step) -> None:
        """The events of one step."""
        number = self._numbers[step.request_id]
        if step.progress is not None:
            self._events.append(PromptAdvanced(number, self._first_choice[number], step.progress))
            return
        if step.cache_use is not None:
            self._cache_uses[number] = step.cache_use
            self._events.append(PromptDone(number, step.cache_use, step.prompt_logprobs))
        _check_alive(step)
        index = self._first_choice[number] + step.choice
        choice = self._choices[index]
        if choice.end is not None:
            return  # a step that was under way when the choice was stopped
        self._events.append(choice.take(index, step))
        if choice.end is not None and step.finish_reason is None:
            await self._engine.stop(step.request_id, step.choice)

    def message(self, choice: int) -> Message:
        """The whole message of a finished choice."""
        return self._choices[choice].message()

    def end_reasons(self) -> list[EndReason | None]:
        """Why each choice is over; None: it is not."""
        return [choice.end for choice in self._choices]

    @property
    def left_out(self) -> Sequence[Path]:
        """The places in the request of what its schemas say and the grammar cannot enforce: it is left to the model."""
        if self._steps is None:
            return ()
        return [_place(self.prompts[0], path) for path in self._steps.left_out]

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(len(prompt.line) for prompt in self.prompts),
            completion_tokens=sum(choice.stream.completion_tokens for choice in self._choices),
            reasoning_tokens=sum(choice.stream.reasoning_tokens for choice in self._choices),
            cache=total(list(self._cache_uses.values())),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Free the engine's requests, whatever state they are in."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        if self._steps is not None:
            await self._steps.aclose()
        if not self._closed:
            self._closed = True
            for choice in self._choices:
                if choice.end is None:  # the client has gone, and may send back what it got
                    choice.remember()


class _Choice:
    """One choice of one prompt."""

    def __init__(self, tokens: TokenBytes, prompt: Prompt):
        self.prompt = prompt
        self.stream = OutputStream(
            tokens,
            stop=prompt.stop,
            parser=prompt.make_parser(),
            end_ids=prompt.request.params.stop_ids,
            continues_text=prompt.continues_text,
        )
        self.end: EndReason | None = None
        self._ids: list[int] = []
        self._deltas: list[Delta] = []

    def take(self, index: int, step: Step) -> Piece:
        stream = self.stream
        counted = stream.completion_tokens
        deltas = stream.feed(step.ids)
        new = stream.completion_tokens - counted
        self._ids += step.ids[:new]
        if stream.stopped or step.finish_reason is not None:
            deltas += stream.finish(cut=step.finish_reason is FinishReason.LENGTH)
            self.end = stream.end_reason
            self.remember()
        self._deltas += deltas
        return Piece(
            index,
            deltas,
            ids=step.ids[:new],
            logprobs=step.logprobs[:new],
            offsets=stream.token_offsets[counted:],
            ended=stream.ended,
            end=self.end,
            stop_string=stream.stop_string,
        )

    def remember(self) -> None:
        """No more of the answer comes."""
        if self.prompt.on_answer is not None and self._ids:
            self.prompt.on_answer(self._ids)

    def message(self) -> Message:
        return self.stream.message(self._deltas)


def _check_alive(step: Step) -> None:
    """Raise if the engine has failed on this request or is shutting down."""
    if step.finish_reason is FinishReason.ERROR and step.constraint_failed:
        message = f"The answer's constraint cannot be followed any further: {step.error}."
        raise RequestRefused("constraint_failed", message)
    if step.finish_reason is FinishReason.ERROR:
        raise AnswerFailed(step.error or "no reason given")
    if step.finish_reason is FinishReason.ABORT:
        raise RequestRefused("shutting_down", "The server is shutting down.")


def _constraint_fault(prompt: Prompt, refusal: RequestRefused) -> FieldError:
    """What the engine said of a request's constraint, with a path of the request."""
    fault, spec = refusal.fault, prompt.request.constraint
    if fault is None or not isinstance(spec, ConstraintSpec):
        return FieldError(("output",), f"cannot be enforced: {refusal.message}", code="unsupported_value")
    return FieldError(_place(prompt, fault.path), *fault.parts, code=fault.code)


def _place(prompt: Prompt, path: Path) -> Path:
    """Where in the request something stands that the grammar says of a constraint."""
    match path:
        case ("tools", int(index), *rest):
            return ("tools", prompt.tool_places[index], *rest)
        case ("tools", *_):
            return path
        case _:
            return ("output", *path)
