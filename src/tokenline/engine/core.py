"""One step of the engine: schedule -> run -> sample. Synchronous; the engine thread is its only caller.

Owns the scheduler, the cache and the KV pool of one model. Knows nothing of threads, streams or clients.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.client import Totals
from tokenline.engine.disk_tier import DiskSettings, DiskTier, model_key
from tokenline.engine.edits import Edits
from tokenline.engine.eviction_log import EvictionLog
from tokenline.engine.prefill_budget import MAX_STALL_S, PrefillBudget, PrefillSpeed
from tokenline.engine.prefix_cache import PrefixCache, Tail
from tokenline.engine.prefix_hashes import PrefixHashes
from tokenline.engine.progress import log_long_prefill, progress_step
from tokenline.engine.request import CacheUse, Constraint, FinishReason, Request, Step, TokenLogprob
from tokenline.engine.runner import Runner
from tokenline.engine.sampler import ConstraintFailed, SamplingError
from tokenline.engine.scheduler import Scheduler
from tokenline.engine.scoring import is_broken
from tokenline.engine.sequence import Sequence
from tokenline.models.base import Model

log = logging.getLogger(__name__)

MASKS_S = 0.05  # of a step, for what constraints allow
SCORED_LOGITS_BYTES = 16 << 20  # at most, of a step's logits that score prompts
DISK_WAIT_S = 0.02  # how often it looks for commands while it waits for the disk only


@dataclass
class EngineCore:
    """A model with its KV pool, prefix cache and scheduler."""

    model: Model
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_batch_tokens: int
    context_limit: int  # tokens of a line at most: prompt and answer
    disk: DiskSettings | None = None  # where blocks go that leave the pool; None: nowhere
    max_stall_s: float = MAX_STALL_S  # see EngineSettings
    evictions_remembered: int = 65_536
    forbidden_ids: SequenceOf[int] = ()  # never sampled
    scored_logits_bytes: int = SCORED_LOGITS_BYTES
    clock: Callable[[], float] = time.monotonic
    announce: Callable[[list[Step]], None] = lambda steps: None  # takes steps that are not to wait for `step` to end
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.kv = self.model.new_kv_pool(self.num_blocks, self.block_size)
        self.runner = Runner(self.model, self.kv, self.forbidden_ids)
        self.pool = BlockPool(self.num_blocks, self.block_size)
        self.evictions = EvictionLog(self.block_size, self.clock, self.evictions_remembered)
        self.cache = PrefixCache(self.pool, self._on_evict)
        root = b"" if self.disk is None else model_key(self.disk.model, self.model, self.kv)
        self.prefill_speed = PrefillSpeed()
        self._hashes = PrefixHashes(self.block_size, root)
        self.tier = None if self.disk is None else DiskTier(self.disk, self.kv, self._hashes, self.prefill_speed)
        self.scheduler = Scheduler(
            self.pool,
            self.cache,
            max_num_seqs=self.max_num_seqs,
            max_batch_tokens=self.max_batch_tokens,
            max_scored_tokens=max(1, self.scored_logits_bytes // (4 * self.model.config.vocab_size)),
            prefill_budget=PrefillBudget(self.prefill_speed, self.max_stall_s),
            copy_block_prefix=self.kv.copy_block_prefix,
            tier=self.tier,
        )
        self._late: set[Sequence] = set()
        self._sequences: dict[str, list[Sequence]] = {}  # by request id: its unfinished choices

    @property
    def is_idle(self) -> bool:
        return not self._sequences

    def add(self, request: Request, constraints: SequenceOf[Constraint | None] | None = None) -> None:
        """Queue all choices of a request that fits (see `engine.Engine.check`). `constraints`: one a choice."""
        now = self.clock()
        capacity = min(len(request.prompt_ids) + request.params.max_tokens, self.context_limit)
        edits = Edits(request)
        sequences = [
            Sequence(request, choice, now, capacity, constraint, edits)
            for choice, constraint in enumerate(constraints or [None] * request.n)
        ]
        self._sequences[request.request_id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request, or one choice of it. What is computed stays held; unknown ids are ignored."""
        for sequence in list(self._sequences.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._close(sequence, FinishReason.ABORT)

    def abort_all(self) -> list[Step]:
        """End every request with FinishReason.ABORT."""
        steps = []
        for sequence in [sequence for group in self._sequences.values() for sequence in group]:
            self._close(sequence, FinishReason.ABORT)
            steps.append(Step(sequence.request.request_id, sequence.choice, (), finish_reason=FinishReason.ABORT))
        return steps

    def step(self) -> list[Step]:
        """Compute one batch. A request whose part of it cannot be computed ends with an error; the others of the batch
        get the ids that they would have got without it. Raises StepFailed if nothing can be computed at all.
        """
        self.scheduler.take_restored()
        chunks = self.scheduler.schedule(self._late_masks())
        if not chunks:
            if self.tier is not None and self.scheduler.is_restoring:
                self.tier.wait(DISK_WAIT_S)
            elif not self.is_idle:
                raise RuntimeError("no request can be scheduled")  # rather than spin for ever
            return []
        now = self.clock()
        for sequence in (chunk.sequence for chunk in chunks if chunk.sequence.first_scheduled_s is None):
            sequence.first_scheduled_s = now
            sequence.cached, sequence.cached_restored = sequence.computed, sequence.restored
            if sequence.choice == 0:  # the one that gives the account
                keys = self._hashes.of(sequence.namespace, sequence.line)
                sequence.longest_match = self.cache.lookup(sequence.namespace, sequence.line).length
                # What a prompt that is scored did not use is held all the same.
                held = sequence.longest_match if sequence.unscored else sequence.cached
                sequence.evicted = self.evictions.ask(keys, held)
                if sequence.evicted is not None:
                    sequence.longest_match = max(sequence.longest_match, held + sequence.evicted.tokens)
            if (begun := progress_step(sequence, now)) is not None:
                self.announce([begun])
        steps: list[Step] = []
        outcome = self.runner.compute(chunks)
        if outcome.at_once:
            prefilled = sum(chunk.length for chunk in chunks if chunk.length > 1)
            self.prefill_speed.saw_step(prefilled, sum(chunk.length for chunk in chunks), self.clock() - now)
        for request, error in outcome.failed:
            # What the failed step wrote for it is not to be trusted, and does not enter the tree.
            log.error("request %s ends with an error", request.request_id, exc_info=error)
            steps += self._fail(request, f"{type(error).__name__}: {error}")
        if not outcome.computed and self._is_broken():
            raise StepFailed(steps)
        computed = [one for one in outcome.computed if not one.chunk.sequence.finished]  # by a sibling's failure
        for chunk in (result.chunk for result in computed):
            self.scheduler.computed(chunk)
            if chunk.length > 1 or chunk.sequence.request.reports_progress:
                log_long_prefill(chunk.sequence, self.clock())
                if (step := progress_step(chunk.sequence, self.clock())) is not None:
                    steps.append(step)
        for result in computed:
            sequence = result.chunk.sequence
            if sequence.finished:  # a sibling's broken logits ended the request in this very step
                continue
            sequence.scored += result.scores
            if is_broken(result.scores):
                steps += self._fail(sequence.request, "the model's logits are not numbers")
            elif isinstance(result.sampled, SamplingError):
                error = result.sampled
                steps += self._fail(sequence.request, str(error), constraint_failed=isinstance(error, ConstraintFailed))
            elif result.sampled is not None:
                steps += self._advance(sequence, *result.sampled)
            elif result.reaches_end:  # nothing is to be generated
                steps.append(self._step(sequence, (), None, FinishReason.LENGTH))
        return steps

    def _late_masks(self) -> set[Sequence]:
        """Work out what constraints allow next. Returns those that have to wait for the next step, in which they come
        first, since this one has no time left for them; a mask can take ten milliseconds.
        """
        asking = [one for one in self.scheduler.running if one.constraint is not None and not one.is_prefilling]
        asking.sort(key=lambda one: one not in self._late)
        late: set[Sequence] = set()
        until = self.clock() + MASKS_S
        for number, sequence in enumerate(asking):
            if number and self.clock() > until:
                late.add(sequence)
            elif sequence.constraint is not None:
                with contextlib.suppress(Exception):  # it is asked again when the id is sampled
                    sequence.constraint.mask()
        self._late = late
        return late

    def _is_broken(self) -> bool:
        """Whether the model computes nothing, whatever it is given, so that no request is to blame."""
        block = self.scheduler.borrow_block()
        if block is None:
            return False  # nobody knows
        try:
            return not self.runner.can_compute(block)
        finally:
            self.pool.release(block)

    def _advance(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> list[Step]:
        try:
            sequence.append(token_id)
        except Exception as error:  # whatever a constraint's library raises is this request's trouble alone
            return self._fail(sequence.request, str(error), constraint_failed=True)
        self.totals.generated_tokens += 1
        return [self._step(sequence, (token_id,), logprob, sequence.finish_reason)]

    def _step(
        self, sequence: Sequence, ids: tuple[int, ...], logprob: TokenLogprob | None, reason: FinishReason | None
    ) -> Step:
        """What a step made for a sequence, which ends with it if there is a reason."""
        cache_use = self._cache_use(sequence)
        if reason is not None:
            self._close(sequence, reason)
        logprobs = () if logprob is None else (logprob,)
        wanted = cache_use is not None and sequence.request.prompt_logprobs is not None
        scored = tuple(sequence.scored) if wanted else None
        request_id, choice = sequence.request.request_id, sequence.choice
        return Step(request_id, choice, ids, logprobs, reason, cache_use, prompt_logprobs=scored)

    def _cache_use(self, sequence: Sequence) -> CacheUse | None:
        """The account of a request's prompt, once, when the prefill of its first choice ends."""
        if sequence.choice != 0 or sequence.cache_use_reported:
            return None
        assert sequence.cached is not None
        assert sequence.first_scheduled_s is not None
        sequence.cache_use_reported = True
        prompt, cached = sequence.prompt_length, sequence.cached
        self.totals.prompt_tokens += prompt
        self.totals.cached_tokens += cached
        self.totals.computed_tokens += prompt - cached
        self.totals.restored_tokens += sequence.cached_restored
        evicted = sequence.evicted.tokens if sequence.evicted else 0
        self.totals.evicted_tokens += evicted
        return CacheUse(
            prompt,
            cached,
            prompt - cached,
            queue_s=sequence.first_scheduled_s - sequence.arrived_s,
            prefill_s=self.clock() - sequence.first_scheduled_s,
            restored=sequence.cached_restored,
            evicted=evicted,
            evicted_ago_s=sequence.evicted.ago_s if sequence.evicted else None,
            longest_match=min(prompt, sequence.longest_match),
        )

    def _on_evict(self, tail: Tail) -> None:
        keys = self._hashes.of(tail.namespace, tail.ids)
        self.evictions.record(keys, tail.start)
        if self.tier is not None and tail.storable:
            self.tier.offer(keys, tail.ids, tail.start // self.block_size, tail.blocks)

    def _close(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        if self.tier is not None and sequence.request.retention_s and reason is not FinishReason.ERROR:
            held = sequence.ids[: sequence.computed]
            self.tier.keep(Tail(sequence.namespace, held, 0, sequence.blocks, storable=True))
        self.scheduler.finish(sequence, keep=reason is not FinishReason.ERROR)
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]
            if reason is FinishReason.ABORT:
                self.totals.aborted += 1
            elif reason is FinishReason.ERROR:
                self.totals.failed += 1
            else:
                self.totals.finished += 1

    def _fail(self, request: Request, message: str, *, constraint_failed: bool = False) -> list[Step]:
        steps: list[Step] = []
        for sequence in list(self._sequences.get(request.request_id, ())):
            self._close(sequence, FinishReason.ERROR)
            step = Step(request.request_id, sequence.choice, (), finish_reason=FinishReason.ERROR, error=message)
            steps.append(replace(step, constraint_failed=constraint_failed))
        return steps

    def reset_prefix_cache(self, caller: str | None = None) -> None:
        """Forget a caller's held prefixes (None: everybody's), on disk too. What runs keeps what it uses."""
        self.cache.clear(caller)
        if self.tier is not None:
            self.tier.clear(caller)

    def close(self) -> None:
        """Keep on disk what the tree holds, if there is a disk tier. Nothing runs any more."""
        if self.tier is not None:
            self.tier.close(self.cache.tails())

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, tree and sequences agree. For tests and debugging."""
        self.scheduler.check_integrity()
        held = {id(s) for s in self.scheduler.running} | {id(s) for s in self.scheduler.waiting}
        known = {id(s) for group in self._sequences.values() for s in group}
        assert held == known, "the scheduler and the engine disagree about which sequences exist"


class StepFailed(Exception):
    """The model computes nothing any more. `steps` tell the requests of the batch at which that showed."""

    def __init__(self, steps: list[Step]):
        super().__init__(steps[0].error)
        self.steps = steps
