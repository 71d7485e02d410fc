"""The engine's contract: what the rest of the program may ask of an engine, in this process or in another.

Everything given and returned is plain data that survives pickling. `engine.Engine` is the one in this process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from tokenline.engine.disk_tier import DiskStats
from tokenline.engine.request import Request, Requests, Step
from tokenline.engine.settings import EngineLimits
from tokenline.fields import Path


@dataclass(slots=True)
class Totals:
    """Counters since the start. Tokens of a prompt are counted once, when its prefill ends (invariant 1)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    restored_tokens: int = 0  # of the cached ones, those from the disk
    evicted_tokens: int = 0  # of the computed ones, those that were held once and evicted
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0


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


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine takes requests. `failure`: what broke it, if anything did."""

    ok: bool
    failure: str | None = None


class StepStream(Protocol):
    """The steps of some requests, interleaved, until all choices have finished."""

    @property
    def left_out(self) -> Sequence[Path]:
        """The places of what could not be enforced of the requests' constraints, and is left to the model."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Step: ...

    async def aclose(self) -> None:
        """Abort what is unfinished. May be called at any time, also again."""
        ...


class EngineClient(Protocol):
    """One model on one device (or several that look like one), for many requests."""

    @property
    def limits(self) -> EngineLimits:
        """How large a request can be. Known before `start`."""
        ...

    async def start(self) -> None:
        """Begin to take requests. Call it in the event loop that will read the steps."""
        ...

    async def check(self, request: Request) -> None:
        """Raise RequestRefused for a request that can never run (invariant 9). Compiles its constraint."""
        ...

    async def generate(self, requests: Requests) -> StepStream:
        """Check all of these and begin them all, or raise RequestRefused and begin none.

        A failure later is a Step with FinishReason.ERROR.
        """
        ...

    async def stop(self, request_id: str, choice: int) -> None:
        """End one choice of a running request; no further step of it comes. The others go on."""
        ...

    async def reset_prefix_cache(self, caller: str | None = None) -> None:
        """Forget the prefixes held in a caller's namespaces (None: in all), on disk too. Raises RequestRefused.

        Running requests keep what they use.
        """
        ...

    async def stats(self) -> EngineStats: ...

    async def health(self) -> Health: ...

    async def close(self, grace_s: float = 10.0) -> None:
        """Take no new request, let the running ones finish for `grace_s` seconds, then end the rest."""
        ...
