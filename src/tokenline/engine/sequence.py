"""One line that is being continued: its ids, how much of it is computed, and its blocks."""

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokenline.engine.edits import Edits
from tokenline.engine.eviction_log import Evicted
from tokenline.engine.request import Constraint, FinishReason, Namespace, Request, SamplingParams
from tokenline.models.base import TokenLogprob

if TYPE_CHECKING:
    from tokenline.engine.block_reader import Restore

MIN_IDS = 64  # for which there is room once there is an answer


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request. Owned by the engine thread."""

    request: Request
    choice: int
    arrived_s: float  # time.monotonic()
    capacity: int  # tokens at most: prompt and max_tokens
    constraint: Constraint | None = None
    shared: InitVar[Edits | None] = None  # by the choices of the request
    edits: Edits = field(init=False)
    ids: np.ndarray = field(init=False)  # int32, of which the first `length` are valid; the prompt's own at first
    length: int = field(init=False)  # prompt and generated ids
    computed: int = 0  # ids whose keys and values are in the pool
    blocks: list[int] = field(default_factory=list)
    restore: "Restore | None" = None  # blocks on their way from the disk; nothing is computed as long as it is there
    restored: int = 0  # of the computed ids, those that came from the disk
    counts: dict[int, int] = field(default_factory=dict)  # generated id -> how often
    new_ids: list[int] = field(default_factory=list)  # those of them that the prompt lacks, if a penalty asks for them
    scored: list[TokenLogprob] = field(default_factory=list)  # of the prompt's ids 1, 2, ..., if asked for
    random: np.random.Generator | None = None
    drawn: float | None = None  # see `uniform`
    first_scheduled_s: float | None = None
    cached: int | None = None  # tokens held when it was first scheduled; never changed after (invariant 1)
    cached_restored: int = 0  # of these, those that came from the disk
    longest_match: int = 0  # tokens of the prompt that were held then, the last one included
    evicted: Evicted | None = None  # what more of the prompt was held once
    cache_use_reported: bool = False
    progress_reported: int | None = None  # tokens of the prompt that were said to be processed
    progress_logged_s: float | None = None  # when the log last said how far the prompt is
    finish_reason: FinishReason | None = None

    def __post_init__(self, shared: Edits | None) -> None:
        self.ids = self.request.prompt_ids  # copied when more is to follow: a request may have many choices
        self.length = len(self.ids)
        self.edits = shared or Edits(self.request)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def namespace(self) -> Namespace:
        return self.request.namespace

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        return self.length - self.prompt_length

    @property
    def line(self) -> np.ndarray:
        """All ids so far, int32 [length]."""
        return self.ids[: self.length]

    @property
    def unscored(self) -> int:
        """Ids of the prompt whose log probabilities are asked for and not known yet. The first has none."""
        if self.request.prompt_logprobs is None or self.choice != 0:
            return 0
        return self.prompt_length - 1 - len(self.scored)

    @property
    def reusable(self) -> np.ndarray:
        """The ids whose keys and values may come from the cache: all before the first whose logits are needed. That
        is the last one, or one whose successor in the prompt is not scored.
        """
        return self.ids[: len(self.scored) if self.unscored else self.length - 1]

    @property
    def remaining(self) -> int:
        """Ids that have to be computed before the next one can be sampled: 1 when decoding."""
        return self.length - self.computed

    @property
    def is_prefilling(self) -> bool:
        return self.remaining > 1

    @property
    def is_restoring(self) -> bool:
        return self.restore is not None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def uniform(self) -> float:
        """The number in [0, 1) that draws the next id; the same one until that id is appended."""
        if self.random is None:  # made when it is needed: a request may have many choices
            seed = self.request.params.seed
            # Philox keyed by (seed, choice): the same numbers whatever else is in the batch, and after a preemption.
            entropy = None if seed is None else np.random.SeedSequence([seed & 0xFFFF_FFFF_FFFF_FFFF, self.choice])
            self.random = np.random.Generator(np.random.Philox(entropy))
        if self.drawn is None:
            self.drawn = self.random.random()
        return self.drawn

    def append(self, token_id: int) -> None:
        """Add a sampled id. Then `finish_reason` says whether the sequence ends with it."""
        self.drawn = None
        if self.length == len(self.ids):
            longer = np.empty(min(self.capacity, max(2 * self.length, MIN_IDS)), np.int32)
            longer[: self.length] = self.ids
            self.ids = longer
        self.ids[self.length] = token_id
        self.length += 1
        times = self.counts[token_id] = self.counts.get(token_id, 0) + 1
        if times == 1 and self.params.repetition_penalty != 1 and not self.edits.is_in_prompt(token_id):
            self.new_ids.append(token_id)
        if token_id in self.params.stop_ids:
            self.finish_reason = FinishReason.STOP
        elif self.num_generated >= self.params.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        elif self.constraint is not None:
            self.constraint.accept(token_id)
