"""What goes into the engine and what comes out. All of it is plain data that survives pickling: the engine may run in
another process (see `client`).

A `Request` goes in; a stream of `Step`s comes back and, once per request, when its prefill ends, a `CacheUse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenline.fields import FieldError, Path
from tokenline.models.base import TokenLogprob


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-turn id, or one of the request's stop ids
    LENGTH = "length"  # max_tokens reached
    ABORT = "abort"  # the client went away, or the server is shutting down
    ERROR = "error"  # the step that computed this request failed


class Namespace(NamedTuple):
    """Who may share with whom: two requests share cached tokens only if all three parts are equal.

    A structured key, never a joined string, so that an adapter "X" is not a salt "X" (invariant 6).
    """

    caller: str | None = None  # what the server knows of the caller: a digest of the API key
    adapter: str | None = None
    salt: str | None = None  # the client's own; it can only divide the caller's cache further


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next id is chosen. Ranges are checked before: errors name the client's own field."""

    max_tokens: int  # new ids at most; 0: only the prompt is computed
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0  # over generated ids, as OpenAI defines it
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and generated ids, as Hugging Face defines it
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # None: none; k: the chosen id and the k most likely ones
    stop_ids: frozenset[int] = frozenset()  # end-of-turn ids and stop_token_ids
    min_tokens: int = 0  # stop ids cannot be sampled before this many new ids


class Constraint(Protocol):
    """What may come next in one answer, e.g. by a grammar. One object a choice, used by the engine thread only."""

    def mask(self) -> np.ndarray:
        """int32 [ceil(vocab / 32)]: bit i of word w is set if id 32 * w + i may come next. Not kept by the engine."""
        ...

    def accept(self, token_id: int) -> None:
        """The id has been sampled."""
        ...


class CompiledConstraint(Protocol):
    """Makes a Constraint for each choice, which is cheap."""

    @property
    def left_out(self) -> Sequence[Path]:
        """The places of what could not be enforced, and is left to the model."""
        ...

    def __call__(self) -> Constraint: ...


class ConstraintCompiler(Protocol):
    """Makes constraints of descriptions, on the engine's side. Thread-safe; keeps what it has compiled."""

    def prepare(self) -> None:
        """Do now what the first `compile` would have to wait for."""
        ...

    def compile(self, spec: Any, namespace: "Namespace", /) -> CompiledConstraint:
        """Called once a request. FieldError: it cannot be enforced."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One line of ids to continue, `n` times."""

    request_id: str
    prompt_ids: np.ndarray  # int32 [prompt], at least 1
    params: SamplingParams
    namespace: Namespace = field(default_factory=Namespace)
    n: int = 1  # choices; they share one prefill
    constraint: Any = None  # a description, picklable, that the engine's ConstraintCompiler understands
    # How long its keys and values are to be kept. None: in memory, and on disk (if there is a disk tier) once they are
    # evicted. 0: in memory only. More: they also go to the disk when the request ends, to stay this long, if there is
    # room.
    retention_s: float | None = None
    # None: none; k: log probabilities of the prompt's own ids, and of the k most likely ones at their places. Such a
    # prompt is computed as a whole: what the prefix cache holds of it has no logits.
    prompt_logprobs: int | None = None
    reports_progress: bool = False  # its steps also say how far its prompt is computed
    sender: str | None = None  # whose turn it takes, see `turns`; None: the caller's of its namespace

    @property
    def caller(self) -> str | None:
        """Among whom time and the queue are divided. Only the namespace says who shares what is cached."""
        return self.namespace.caller if self.sender is None else self.sender


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Where a prompt's tokens came from. `cached + computed == prompt` and `cached <= prompt - 1` (invariant 1)."""

    prompt: int
    cached: int
    computed: int
    queue_s: float = 0.0  # from arrival to first being scheduled
    prefill_s: float = 0.0  # from first being scheduled to the end of prefill
    restored: int = 0  # of the cached tokens, those that came from the disk
    # What the cache knows of the gap: so many more tokens of this line were held once, in whole blocks, and evicted.
    evicted: int = 0
    evicted_ago_s: float | None = None
    longest_match: int = 0  # tokens from the start that some earlier line had, held now or evicted, as far as is known


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt is computed."""

    total: int  # tokens of the prompt
    cached: int  # of these, those that were found in the cache
    processed: int  # of these, those whose keys and values are there by now, the cached ones included
    elapsed_s: float  # since the prompt was first scheduled


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step made for one choice of a request."""

    request_id: str
    choice: int  # 0 .. n - 1
    ids: tuple[int, ...]  # new ids, in order; a stop id is the last of them
    logprobs: tuple[TokenLogprob, ...] = ()  # one an id, if asked for
    finish_reason: FinishReason | None = None
    cache_use: CacheUse | None = None  # on the first step of choice 0, once per request
    error: str | None = None  # with FinishReason.ERROR: what happened, for the log
    constraint_failed: bool = False  # with FinishReason.ERROR: it was the request's own, so `error` is for the client
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # with the cache use, if asked for; of ids 1, 2, ...
    # With `reports_progress`, in steps of choice 0 that have no ids: before its first chunk is computed, then after
    # each one, so that the last says that all is processed.
    progress: PromptProgress | None = None


class RequestRefused(Exception):
    """The engine will never be able to run this request, or cannot take it now. Nothing was queued.

    `code`: "context_length_exceeded" (the message has the figures), "queue_full", "shutting_down", "engine_failed",
    "constraint" (then `fault` says what of the request's constraint cannot be enforced).
    """

    def __init__(self, code: str, message: str, fault: FieldError | None = None):
        super().__init__(code, message, fault)
        self.code = code
        self.message = message
        self.fault = fault

    def __str__(self) -> str:
        return self.message


Requests = Sequence[Request]
