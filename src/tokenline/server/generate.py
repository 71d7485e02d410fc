"""The path that every generated answer takes: lines go to the engine, its steps come back as pieces of choices.

    Job (line, engine request) -> Engine.generate -> Step -> OutputStream of the choice -> Piece

Streaming and non-streaming answers, chat and text completions are all made from the same pieces. Knows neither HTTP nor
the shape of an answer. A `Generation` owns its engine requests: closing it, whenever, frees them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

from tokenline.engine.engine import Engine
from tokenline.engine.request import CacheUse, FinishReason, Request, RequestRefused, Step, TokenLogprob
from tokenline.parse.delta import Delta, OutputParser, TokenBytes
from tokenline.parse.message import Message
from tokenline.parse.stream import OutputStream
from tokenline.render.line import Line
from tokenline.server.answers import Usage
from tokenline.server.errors import from_refusal, internal_error, shutting_down
from tokenline.server.log import RequestRecord, logger


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One line to continue, `request.n` times."""

    line: Line
    request: Request
    stop: tuple[str, ...] = ()
    make_parser: Callable[[], OutputParser | None] = lambda: None
    continues_text: bool = False  # the prompt ends within a text that the answer continues
    on_answer: Callable[[Sequence[int]], None] | None = None  # called with all ids of each choice that has finished


@dataclass(slots=True, eq=False)
class Piece:
    """What one engine step added to one choice. Choices are numbered through all jobs."""

    choice: int
    deltas: list[Delta]
    ids: list[int] = field(default_factory=list)  # those that count, the end id included
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one an id, if asked for
    offsets: list[int] = field(default_factory=list)  # of each id in the choice's text
    ended: bool = False  # the last of `ids` is an end id, which is no text
    finish_reason: str | None = None  # set on the choice's last piece


class Generation:
    """The answers to some jobs, as they come. Use: `open()`, iterate `pieces()`, and `aclose()` in any case."""

    def __init__(self, engine: Engine, tokens: TokenBytes, jobs: Sequence[Job], record: RequestRecord):
        self.jobs = jobs
        self.record = record
        self._engine = engine
        self._streams = [
            OutputStream(
                tokens,
                stop=job.stop,
                parser=job.make_parser(),
                end_ids=job.request.params.stop_ids,
                continues_text=job.continues_text,
            )
            for job in jobs
            for _ in range(job.request.n)
        ]
        self._ids: list[list[int]] = [[] for _ in self._streams]
        self._finish_reasons: list[str | None] = [None] * len(self._streams)
        self._cache_use: list[CacheUse | None] = [None] * len(jobs)
        self._steps: AsyncGenerator[tuple[int, Step], None] | None = None
        self._first: asyncio.Task[tuple[int, Step]] | None = None

    async def open(self, wait_s: float | None) -> None:
        """Hand the lines to the engine; return with its first step, or after `wait_s`. Raises ApiError if refused."""
        try:
            for job in self.jobs:
                self._engine.check(job.request)  # all of them before any is begun
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        self._steps = self._all_steps()
        self._first = asyncio.ensure_future(anext(self._steps))
        done, _ = await asyncio.wait({self._first}, timeout=wait_s)
        if done:
            try:
                _, step = self._first.result()
            except RequestRefused as refusal:
                raise from_refusal(refusal) from None
            self._check_alive(step)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """All pieces, until every choice has finished. Raises ApiError when the engine fails or shuts down."""
        assert self._steps is not None
        assert self._first is not None
        try:
            job, step = await self._first
            while True:
                if (piece := self._piece(job, step)) is not None:
                    yield piece
                if all(self._finish_reasons):
                    return
                job, step = await anext(self._steps)
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        except StopAsyncIteration:
            raise RuntimeError("the engine's steps ended before its choices were finished") from None

    def _piece(self, job: int, step: Step) -> Piece | None:
        if step.cache_use is not None:
            self._cache_use[job] = step.cache_use
        self._check_alive(step)
        choice = sum(self.jobs[earlier].request.n for earlier in range(job)) + step.choice
        if self._finish_reasons[choice] is not None:
            return None  # a step that was under way when the choice was stopped
        stream = self._streams[choice]
        counted = stream.completion_tokens
        deltas = stream.feed(step.ids)
        new = stream.completion_tokens - counted
        piece = Piece(
            choice,
            deltas,
            ids=list(step.ids[:new]),
            logprobs=list(step.logprobs[:new]),
            offsets=stream.token_offsets[counted:],
            ended=stream.ended,
        )
        self._ids[choice] += piece.ids
        if stream.stopped and step.finish_reason is None:
            self._engine.stop_choice(self.jobs[job].request.request_id, step.choice)
        if stream.stopped or step.finish_reason is not None:
            piece.deltas += stream.finish(cut=step.finish_reason is FinishReason.LENGTH)
            piece.finish_reason = self._finish_reasons[choice] = stream.finish_reason
            on_answer = self.jobs[job].on_answer
            if on_answer is not None and not stream.stopped:  # a text cut at a stop string is another one
                on_answer(self._ids[choice])
        return piece

    def _check_alive(self, step: Step) -> None:
        """Raise an ApiError if the engine has failed on this request or is shutting down."""
        if step.finish_reason is FinishReason.ERROR:
            logger.error("request %s failed in the engine: %s", self.record.id, step.error)
            self.record.finish, self.record.error = "error", "engine_failed"
            raise internal_error(self.record.id)
        if step.finish_reason is FinishReason.ABORT:
            self.record.error = "shutting_down"
            raise shutting_down()

    async def _all_steps(self) -> AsyncGenerator[tuple[int, Step], None]:
        """The steps of all jobs, each with the number of its job."""
        if len(self.jobs) == 1:
            async with aclosing(self._engine.generate(self.jobs[0].request)) as steps:
                async for step in steps:
                    yield 0, step
            return
        queue: asyncio.Queue[tuple[int, Step] | BaseException | None] = asyncio.Queue()

        async def run(number: int, job: Job) -> None:
            try:
                async with aclosing(self._engine.generate(job.request)) as steps:
                    async for step in steps:
                        queue.put_nowait((number, step))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(run(number, job)) for number, job in enumerate(self.jobs)]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def message(self, choice: int, deltas: Sequence[Delta]) -> Message:
        """The whole message of a finished choice, from all of its deltas."""
        return self._streams[choice].message(deltas)

    def usage(self) -> Usage:
        """Counted in ids by the engine and the streams. Choices do not multiply their prompt."""
        prompt = sum(len(job.line) for job in self.jobs)
        completion = self._completion_tokens()
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(use.cached for use in self._cache_use if use)},
            "completion_tokens_details": {"reasoning_tokens": sum(s.reasoning_tokens for s in self._streams)},
        }

    def _completion_tokens(self) -> int:
        return sum(stream.completion_tokens for stream in self._streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Free the engine's requests, whatever state they are in, and write down what became of them."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        if self._steps is not None:
            await self._steps.aclose()
        self._fill_record()

    def _fill_record(self) -> None:
        record = self.record
        record.prompt = sum(len(job.line) for job in self.jobs)
        record.output = self._completion_tokens()
        if all(self._finish_reasons):
            record.finish = "+".join(sorted({reason for reason in self._finish_reasons if reason}))
        elif record.finish is None:
            record.finish = "abort"
        uses = [use for use in self._cache_use if use is not None]
        if uses:
            record.cached = sum(use.cached for use in uses)
            record.computed = sum(use.computed for use in uses)
            record.queue_ms = round(max(use.queue_s for use in uses) * 1000, 1)
            record.prefill_ms = round(max(use.prefill_s for use in uses) * 1000, 1)
