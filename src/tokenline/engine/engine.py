"""The bridge between the server's event loop and the engine thread, and the only place where they meet.

The loop side checks requests, hands them over and reads one stream of steps a request. The thread side runs
`EngineCore.step` as long as there is work. Commands go over in a queue; steps come back with one
`call_soon_threadsafe` for all requests of a step.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from tokenline.engine.core import EngineCore, Outcome, StepFailed, Totals
from tokenline.engine.disk_tier import DiskStats
from tokenline.engine.request import FinishReason, Request, RequestRefused, Step
from tokenline.engine.settings import EngineSettings, disk_settings, find_limits
from tokenline.models.base import Model

log = logging.getLogger(__name__)

# After this many steps in a row that failed, the engine is taken to be broken.
MAX_FAILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine holds and has done, as of its last step."""

    running: int
    waiting: int
    blocks_free: int
    blocks_running: int  # held by running sequences
    blocks_cached: int  # held by the prefix cache alone
    blocks_total: int
    preemptions: int
    evicted_blocks: int
    totals: Totals = field(default_factory=Totals)
    disk: DiskStats | None = None  # without a cache_dir


@dataclass(slots=True)
class _Stream:
    """The loop side of one request."""

    request: Request
    steps: asyncio.Queue[Step]
    open_choices: set[int]


class Engine:
    """Runs one model on one device for many requests. All public methods belong to one event loop."""

    def __init__(self, model: Model, settings: EngineSettings | None = None):
        """Allocate the KV pool. Raises ModelError when it does not fit."""
        self.settings = settings or EngineSettings()
        self.limits = find_limits(model, self.settings)
        self.core = EngineCore(
            model,
            self.limits.num_blocks,
            self.limits.block_size,
            self.settings.max_num_seqs,
            self.settings.max_batch_tokens,
            self.limits.max_model_len,
            disk_settings(self.settings),
            max_stall_s=self.settings.max_stall_s,
        )
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()  # the thread has
        self._closing = False
        self._failure: str | None = None

    # ---- the loop's side

    def start(self) -> None:
        """Start the engine thread. Call it in the running event loop that will read the steps."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._failure is None and self._thread is not None and self._thread.is_alive()

    @property
    def failure(self) -> str | None:
        """What broke the engine, if anything did."""
        return self._failure

    def check(self, request: Request) -> None:
        """Raise RequestRefused for a request that can never run, or not now (invariant 9)."""
        prompt, max_tokens, limit = len(request.prompt_ids), request.params.max_tokens, self.limits.max_model_len
        if prompt + max_tokens > limit:
            reason = "context length"
            if limit < (self.settings.max_model_len or self.core.model.config.max_positions):
                reason = f"context length that the KV cache has room for (--kv-cache-memory: {limit} tokens)"
            raise RequestRefused(
                "context_length_exceeded",
                f"This model's {reason} is {limit} tokens, but the prompt has {prompt} tokens and max_tokens is "
                f"{max_tokens}, together {prompt + max_tokens}.",
            )
        self._refuse_if_ended()
        if len(self._streams) >= self.settings.max_waiting:
            raise RequestRefused(
                "queue_full", f"{len(self._streams)} requests are waiting or running already; try again later."
            )

    async def generate(self, request: Request) -> AsyncGenerator[Step, None]:
        """Run a request; steps of its `n` choices come interleaved. Closing the iterator aborts what is unfinished.

        Raises RequestRefused before the first step. A failure later is a Step with FinishReason.ERROR.
        """
        self.check(request)
        stream = _Stream(request, asyncio.Queue(), set(range(request.n)))
        self._streams[request.request_id] = stream
        self._commands.put(lambda: self.core.add(request))
        try:
            while stream.open_choices:
                step = await stream.steps.get()
                if step.choice not in stream.open_choices:
                    continue  # made before `stop_choice` reached the engine
                if step.finish_reason is not None:
                    stream.open_choices.discard(step.choice)
                yield step
        finally:
            del self._streams[request.request_id]
            if stream.open_choices:
                self._commands.put(lambda: self.core.abort(request.request_id))

    def stop_choice(self, request_id: str, choice: int) -> None:
        """End one choice of a running request; no further step of it comes. The others go on."""
        stream = self._streams.get(request_id)
        if stream is not None and choice in stream.open_choices:
            stream.open_choices.discard(choice)
            self._commands.put(lambda: self.core.abort(request_id, choice))

    async def reset_prefix_cache(self) -> None:
        """Forget all held prefixes, on disk too. Running requests keep what they use."""
        await self._call(self.core.reset_prefix_cache)

    async def _call(self, function: Callable[[], None]) -> None:
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

    def stats(self) -> EngineStats:
        """Figures of the last step; reading them takes no lock."""
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
        """Take no new request, let the running ones finish for `grace_s` seconds, end the rest, stop the thread."""
        self._closing = True
        if self._thread is None:
            return
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._streams and self.healthy and asyncio.get_running_loop().time() < deadline:
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
                    log.exception("a step failed; its requests end with an error")
                    self._deliver(failure.outcomes)
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

    def _take_commands(self) -> bool:
        """Carry out what the loop asked for; wait for it when there is no work. False: stop."""
        while True:
            try:
                command = self._commands.get(block=self.core.is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            if not self.core.is_idle and self._commands.empty():
                return True

    def _deliver(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._in_loop(lambda: self._put_steps(outcomes))

    def _put_steps(self, outcomes: list[Outcome]) -> None:
        for request, step in outcomes:
            stream = self._streams.get(request.request_id)
            if stream is not None:
                stream.steps.put_nowait(step)

    def _fail_open_streams(self, message: str) -> None:
        def fail() -> None:
            for stream in self._streams.values():
                for choice in stream.open_choices:
                    stream.steps.put_nowait(Step(choice, (), finish_reason=FinishReason.ERROR, error=message))

        self._in_loop(fail)

    def _in_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: nobody is left to hear it
            log.debug("the event loop is gone")
