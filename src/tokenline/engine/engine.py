"""The engine in this process, and the bridge to it: the only place where the event loop and the engine thread meet.

The loop side checks requests, hands them over and reads their steps. The thread side runs `EngineCore.step` as long as
there is work. Commands go over in a queue; steps come back with one `call_soon_threadsafe` for all requests of a step.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from tokenline.aside import Aside, Declined
from tokenline.engine.client import EngineStats, Health
from tokenline.engine.core import EngineCore, StepFailed
from tokenline.engine.queue_share import QueueShare
from tokenline.engine.request import (
    CompiledConstraint,
    Constraint,
    ConstraintCompiler,
    FinishReason,
    Request,
    RequestRefused,
    Requests,
    Step,
)
from tokenline.engine.settings import EngineLimits, EngineSettings, disk_settings, find_limits
from tokenline.fields import FieldError, Path
from tokenline.models.base import Model

log = logging.getLogger(__name__)

# After this many steps in a row in which the model computed nothing, the engine is taken to be broken.
MAX_FAILED_STEPS = 3

MAX_COMMANDS_S = 0.005  # between two steps
MAX_READING_S = 0.005  # of the event loop's time, for steps of one stream in a row


class Engine:
    """Runs one model on one device for many requests (see `client.EngineClient`). Belongs to one event loop."""

    def __init__(
        self,
        model: Model,
        settings: EngineSettings | None = None,
        constraints: ConstraintCompiler | None = None,
        forbidden_ids: Sequence[int] = (),
    ):
        """Allocate the KV pool. Raises SettingError or ModelError when it does not fit.

        `constraints`: compiles what requests describe; without it, a constraint is refused. `forbidden_ids`: are never
        sampled, since no token has them (`Tokenizer.unknown_ids`).
        """
        self.settings = settings or EngineSettings()
        self._limits = find_limits(model, self.settings)
        self._constraints = constraints
        self.core = EngineCore(
            model,
            self._limits.num_blocks,
            self._limits.block_size,
            self.settings.max_num_seqs,
            self.settings.max_batch_tokens,
            self._limits.max_model_len,
            disk_settings(self.settings),
            max_stall_s=self.settings.max_stall_s,
            evictions_remembered=self.settings.evictions_remembered,
            announce=self._deliver,
            forbidden_ids=forbidden_ids,
        )
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}  # by request id
        self._share = QueueShare(self.settings.max_waiting)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()  # the thread has
        self._closing = False
        self._compiling = Aside("compile")
        self._failure: str | None = None

    # ---- the loop's side

    @property
    def num_open(self) -> int:
        """Requests whose streams are not closed."""
        return len(self._streams)

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._constraints is not None:
            await self._compiling.run(self._constraints.prepare)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def health(self) -> Health:
        ok = self._failure is None and self._thread is not None and self._thread.is_alive()
        return Health(ok, self._failure)

    async def check(self, request: Request) -> None:
        await self._checked(request)

    async def _checked(self, request: Request) -> CompiledConstraint | None:
        """The request's compiled constraint. Raises RequestRefused for a request that can never run."""
        overflow = self._limits.overflow(len(request.prompt_ids), request.params.max_tokens)
        if overflow is not None:
            raise RequestRefused("context_length_exceeded", f"The prompt {overflow}")
        for token_id in (request.prompt_ids.min(), request.prompt_ids.max()):
            if not 0 <= token_id < self._limits.vocab_size:
                raise RequestRefused(
                    "invalid_value",
                    f"The prompt has a token with id {token_id}; the model knows 0 to {self._limits.vocab_size - 1}.",
                )
        if request.constraint is None:
            return None
        if self._constraints is None:
            raise RequestRefused("constraint", "This engine has no compiler for constraints.")
        try:
            compile_it = partial(self._constraints.compile, request.constraint, request.namespace)
            return await self._compiling.run(compile_it)
        except FieldError as fault:
            raise RequestRefused("constraint", str(fault), fault) from None
        except Declined as declined:
            raise RequestRefused(declined.code, str(declined)) from None

    async def generate(self, requests: Requests) -> "_Stream":
        self._refuse_if_ended()
        makers = [await self._checked(request) for request in requests]
        self._refuse_if_ended()
        # Everything that follows happens at once, so either all requests are begun or none.
        wanted: Counter[str | None] = Counter()
        for request in requests:
            wanted[request.caller] += request.n
        for caller, choices in wanted.items():
            if not self._share.fits(caller, choices):
                own = self._share.taken(caller)
                message = f"{own} answers of yours are waiting or running already; try again later."
                raise RequestRefused("queue_full", message)
        stream = _Stream(self, requests)
        stream.left_out = tuple(place for make in makers if make for place in make.left_out)
        for request, make in zip(requests, makers, strict=True):
            constraints = [make() if make else None for _ in range(request.n)]
            self._share.take(request.caller, request.n)
            self._streams[request.request_id] = stream
            self._commands.put(partial(self._add, request, constraints))
        return stream

    async def stop(self, request_id: str, choice: int) -> None:
        stream = self._streams.get(request_id)
        if stream is not None and stream.close_choice(request_id, choice):
            self._commands.put(lambda: self.core.abort(request_id, choice))

    def _abort(self, request_id: str, caller: str | None, unfinished: int) -> None:
        """A stream is closed. What is unfinished of its request ends: so many choices."""
        del self._streams[request_id]
        if unfinished:
            self._share.give_back(caller, unfinished)
            self._commands.put(lambda: self.core.abort(request_id))

    async def reset_prefix_cache(self, caller: str | None = None) -> None:
        await self.between_steps(lambda: self.core.reset_prefix_cache(caller))

    async def between_steps(self, function: Callable[[], None]) -> None:
        """Run a function on the engine thread, between two steps. Raises RequestRefused if the thread ends before."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def command() -> None:
            try:
                function()
            finally:
                loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

        self._refuse_if_ended()
        self._commands.put(command)
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({done, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not done.done():
            self._refuse_if_ended()

    def _refuse_if_ended(self) -> None:
        if self._closing:
            raise RequestRefused("shutting_down", "The server is shutting down.")
        if self._failure is not None:
            raise RequestRefused("engine_failed", f"The engine has stopped: {self._failure}")

    async def stats(self) -> EngineStats:
        return self.snapshot()

    def snapshot(self) -> EngineStats:
        """`stats`, for those in this process. Figures of the last step; reading them takes no lock."""
        core = self.core
        return EngineStats(
            running=len(core.scheduler.running),
            waiting=len(core.scheduler.waiting),
            blocks_free=core.pool.num_free,
            blocks_running=core.pool.num_running,
            blocks_cached=core.pool.num_cached_only,
            blocks_total=core.pool.num_blocks,
            preemptions=core.scheduler.preemptions,
            evicted_blocks=core.cache.evicted_blocks,
            totals=core.totals,
            disk=None if core.tier is None else core.tier.stats(),
        )

    async def close(self, grace_s: float = 10.0) -> None:
        self._closing = True
        self._compiling.close()
        if self._thread is None:
            return
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._streams and (await self.health()).ok and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # ---- the thread's side

    def _run(self) -> None:
        failed_steps = 0
        try:
            while self._take_commands():
                try:
                    self._deliver(self.core.step())
                    failed_steps = 0
                except StepFailed as failure:
                    failed_steps += 1
                    self._deliver(failure.steps)
                    if failed_steps == MAX_FAILED_STEPS:
                        raise
            self._deliver(self.core.abort_all())
            self.core.close()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            log.critical("the engine has stopped: %s", self._failure, exc_info=True)
            self._fail_open_streams(self._failure)
        finally:
            self._in_loop(self._ended.set)

    def _add(self, request: Request, constraints: list[Constraint | None]) -> None:
        try:
            self.core.add(request, constraints)
        except Exception as error:  # what cannot be begun ends this request alone
            log.exception("request %s could not be begun", request.request_id)
            message = f"{type(error).__name__}: {error}"
            self._deliver(
                [
                    Step(request.request_id, choice, (), finish_reason=FinishReason.ERROR, error=message)
                    for choice in range(request.n)
                ]
            )

    def _take_commands(self) -> bool:
        """Carry out what the loop asked for; wait for it when there is no work. False: stop.

        What takes long (many choices to begin) goes on after the next step, so that running streams need not wait.
        """
        until = time.monotonic() + MAX_COMMANDS_S
        while True:
            try:
                command = self._commands.get(block=self.core.is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            if not self.core.is_idle and (self._commands.empty() or time.monotonic() > until):
                return True

    def _deliver(self, steps: list[Step]) -> None:
        if steps:
            self._in_loop(lambda: self._put_steps(steps))

    def _put_steps(self, steps: list[Step]) -> None:
        for step in steps:
            stream = self._streams.get(step.request_id)
            if stream is not None:
                stream.put(step)

    def _fail_open_streams(self, message: str) -> None:
        def fail() -> None:
            for stream in set(self._streams.values()):
                stream.fail(message)

        self._in_loop(fail)

    def _in_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: nobody is left to hear it
            log.debug("the event loop is gone")


class _Stream:
    """The loop side of requests that were begun together (a `client.StepStream`)."""

    def __init__(self, engine: Engine, requests: Requests):
        self._engine = engine
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._open: dict[str, set[int]] = {request.request_id: set(range(request.n)) for request in requests}
        self._callers = {request.request_id: request.caller for request in requests}
        self._closed = False
        self._reading_since_s = 0.0  # time.monotonic() when other tasks last had their turn
        self.left_out: tuple[Path, ...] = ()

    def put(self, step: Step) -> None:
        self._steps.put_nowait(step)

    def fail(self, message: str) -> None:
        """End all open choices with an error."""
        for request_id, choices in self._open.items():
            for choice in choices:
                self.put(Step(request_id, choice, (), finish_reason=FinishReason.ERROR, error=message))

    def close_choice(self, request_id: str, choice: int) -> bool:
        """No more steps of this choice. False: it was over already."""
        choices = self._open[request_id]
        if choice not in choices:
            return False
        choices.discard(choice)
        self._engine._share.give_back(self._callers[request_id], 1)
        return True

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Step:
        while not self._closed and any(self._open.values()):
            if self._steps.empty():
                step = await self._steps.get()
                self._reading_since_s = time.monotonic()
            else:
                # Many choices make many steps at once, and to take one that is there gives nobody else a turn.
                if time.monotonic() - self._reading_since_s > MAX_READING_S:
                    await asyncio.sleep(0)
                    self._reading_since_s = time.monotonic()
                    continue
                step = self._steps.get_nowait()
            if step.choice not in self._open[step.request_id]:
                continue  # made before `stop` reached the engine
            if step.finish_reason is not None:
                self.close_choice(step.request_id, step.choice)
            return step
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            for request_id, choices in self._open.items():
                self._engine._abort(request_id, self._callers[request_id], len(choices))
