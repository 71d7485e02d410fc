"""Which tokens of which sequences are computed in the next step, and in which blocks their keys and values go.

Each step has a budget of tokens. Running sequences that decode come first, one token each; what is left goes to
prefill in chunks: a small part of it where some decode, so that they need not wait for long (`prefill_budget`). Half
of it is for the first that came, half for those that need least, so that nobody waits long for a short prompt.

A sequence that waits is admitted with the longest prefix that the cache holds, and not while a running sequence is
about to compute more of that prefix: it rides on that one (invariant 5). With a disk tier, an admitted sequence may
first wait for blocks that come from there; nobody else waits for them.

A prompt whose ids are scored (`prompt_logprobs`) is computed as a whole, whatever the cache holds, and in chunks small
enough for their logits.

Knows sequences, blocks and the tree; no model, no sampling, no clock.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.disk_tier import DiskTier
from tokenline.engine.prefill_budget import MIN_TOKENS, ROWS, PrefillBudget
from tokenline.engine.prefix_cache import Match, PrefixCache
from tokenline.engine.sequence import Sequence
from tokenline.engine.turns import Turns
from tokenline.ids import common_prefix

LOOK_AHEAD = 64  # waiting sequences that are looked at in a step, beside those that it admits
PREEMPTIONS = 8  # of a greedy caller's sequences in a step, for callers of which nothing runs
RESERVE = 64  # blocks, but no more than an eighth of the pool, that only short prompts of such callers take
PATIENCE = 1000  # steps for which these may pass one that has no room


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` ids of a sequence, from `sequence.computed` on, to be computed in this step."""

    sequence: Sequence
    length: int

    @property
    def samples(self) -> bool:
        """Whether the next id is sampled: the chunk reaches the end of the line, which is to go on."""
        return self.reaches_end and self.sequence.params.max_tokens > 0

    @property
    def reaches_end(self) -> bool:
        return self.length == self.sequence.remaining

    @property
    def scores(self) -> range:
        """The places in the line, within the chunk, whose logits score the id behind them."""
        sequence, end = self.sequence, self.sequence.computed + self.length
        if not sequence.unscored:
            return range(0)
        return range(max(sequence.computed, len(sequence.scored)), min(end, sequence.prompt_length - 1))


class Scheduler:
    """Owns the waiting and the running sequences and all block references of the latter."""

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        *,
        max_num_seqs: int,
        max_batch_tokens: int,
        max_scored_tokens: int,
        prefill_budget: PrefillBudget,
        copy_block_prefix: Callable[[int, int, int], None],
        tier: DiskTier | None = None,
    ):
        self.pool = pool
        self.cache = cache
        self.waiting = Turns()
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._max_batch_tokens = max_batch_tokens
        self._max_scored_tokens = max_scored_tokens
        self._prefill_budget = prefill_budget
        self._copy_block_prefix = copy_block_prefix
        self._tier = tier
        # Of the step that is made:
        self._lengths: dict[Sequence, int] = {}
        self._looked_at = self._preempted = 0
        self._is_blocked = False  # one in turn has no room
        self._blocked_steps = 0  # in a row
        self._reserve = min(RESERVE, pool.num_blocks // 8)
        self._guests: dict[Sequence, None] = {}  # running ones that may use the reserve

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    @property
    def is_restoring(self) -> bool:
        return any(sequence.is_restoring for sequence in self.running)

    def schedule(self, late: Set[Sequence] = frozenset()) -> list[Chunk]:
        """The next step's work. Empty only when nothing is running or waiting, or all of it for the disk.

        `late`: decoding sequences, not all of them, that are left out of it.
        """
        chunks = self._next_chunks(late)
        while not chunks and any(not sequence.is_restoring for sequence in self.running):
            chunks = self._next_chunks()  # all that had a row gave up their blocks
        return chunks

    def _next_chunks(self, late: Set[Sequence] = frozenset()) -> list[Chunk]:
        self.waiting.begin_step()
        self._lengths = lengths = {}
        self._looked_at = self._preempted = 0
        self._blocked_steps = self._blocked_steps + 1 if self._is_blocked else 0
        self._is_blocked = False
        prefilling = [sequence for sequence in self.running if sequence.is_prefilling and not sequence.is_restoring]
        for sequence in self._decoding(bool(prefilling), late):
            # One that was scheduled first can be preempted for the blocks of a later one.
            if sequence in self.running and self._grow(sequence):
                lengths[sequence] = 1
        budget = self._max_batch_tokens - len(lengths)
        if not self.waiting.is_alone:
            least = MIN_TOKENS if len(lengths) <= ROWS else MIN_TOKENS // 2
            budget = min(budget, max(least, self._prefill_budget.tokens - len(lengths)))
        elif lengths:
            budget = min(budget, self._prefill_budget.tokens)
        elif (alone := self._prefill_budget.tokens_alone) is not None:
            budget = min(budget, alone)
        self._share(budget, [sequence for sequence in prefilling if sequence in self.running])
        for sequence, length in lengths.items():
            self.waiting.charge(sequence, length)
        self._lengths = {}  # no sequence outlives its request
        return [Chunk(sequence, length) for sequence, length in lengths.items()]

    def _decoding(self, beside_prefill: bool, late: Set[Sequence]) -> list[Sequence]:
        """Which running sequences get their next token.

        All, for a caller who is alone. Otherwise a caller's many may be held back, so that the step takes about as
        long as `prefill_budget` says, the prompts in it included.
        """
        waits = (sequence.is_prefilling or sequence.is_restoring or sequence in late for sequence in self.running)
        decoding = [sequence for sequence, is_waiting in zip(self.running, waits, strict=True) if not is_waiting]
        rest = self._max_num_seqs
        if not self.waiting.is_alone:
            has_slot = len(self.running) < self._max_num_seqs and self.waiting.has_ready
            prefill = MIN_TOKENS if beside_prefill or has_slot or self.waiting.has_newcomer else 0
            rest = max(ROWS, self._prefill_budget.tokens - prefill)
        return self.waiting.rows(decoding, self._max_num_seqs, rest)

    def _share(self, budget: int, prefilling: list[Sequence]) -> None:
        """Add prefill for up to `budget` tokens to the step, and admit who can begin with it.

        The first in turn always gets half of it; the rest goes to those that need least, whether they run already
        or wait. So a short prompt does not wait until a long one is done, nor a long one for ever.
        """
        to_score, lengths = self._max_scored_tokens, self._lengths

        def give(sequence: Sequence, most: int) -> int:
            nonlocal to_score
            length = min(sequence.remaining - lengths.get(sequence, 0), most)
            if sequence.unscored:
                length = min(length, to_score)
                to_score -= length
            if length > 0:
                lengths[sequence] = lengths.get(sequence, 0) + length
            return length

        if prefilling:
            first = min(prefilling, key=self.waiting.served)
            budget -= give(first, -(-budget // 2))
            budget -= self._admit(budget, give, below=first.remaining)
        for sequence in sorted(prefilling, key=lambda sequence: sequence.remaining):
            if budget > 0 and sequence in self.running:
                budget -= give(sequence, budget)
        budget -= self._admit(budget, give)
        if self._is_blocked and self._blocked_steps < PATIENCE:
            self._admit(budget, give, guests=True)

    def _admit(
        self,
        budget: int,
        give: Callable[[Sequence, int], int],
        *,
        below: int | None = None,
        guests: bool = False,
    ) -> int:
        """Move waiting sequences that need not wait for a running one to `running`, with all their blocks, as long as
        there are tokens to `give` them in this step. Returns how many it gave.

        `below`: only short ones, that have fewer tokens than that to compute. `guests`: only those for whom the
        reserve is.
        """
        given = 0
        if budget <= 0 or not self.waiting.has_ready:
            return 0
        prefilling = [sequence for sequence in self.running if sequence.is_prefilling]
        for sequence in self.waiting.heads(shortest_first=guests or below is not None):
            if guests and not self._is_guest(sequence):
                break
            has_none_running = not self.waiting.num_running(sequence)
            if len(self.running) >= self._max_num_seqs and not has_none_running:
                break  # nor has any behind it
            if self._looked_at >= LOOK_AHEAD:
                break
            match = self.cache.lookup(sequence.namespace, sequence.reusable)
            leader = self._leader(sequence, prefilling, beyond=match.length)
            if leader is not None:
                self._looked_at += 1
                self.waiting.ride(sequence, *leader)
                continue
            if below is not None and sequence.length - match.length >= below and self._has_room(sequence):
                self._looked_at += 1
                continue
            is_guest = self._is_guest(sequence)
            if not self._find_place(sequence, match, is_guest):
                self._is_blocked = True
                break  # those behind wait too, so that a large prompt is not passed by small ones for ever
            self.waiting.start(sequence)
            self.running[sequence] = None
            if is_guest:
                self._guests[sequence] = None
            if sequence.is_prefilling:
                prefilling.append(sequence)
            if self._tier is not None:
                self._tier.begin(sequence)
            if not sequence.is_restoring:
                given += give(sequence, budget - given)
            if given >= budget:
                break
        return given

    def _is_guest(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may use the reserve: a short one, of a caller of which nothing runs."""
        is_short = self._blocks_of(sequence) <= self._reserve // 4
        return is_short and not self.waiting.num_running(sequence)

    def _find_place(self, sequence: Sequence, match: Match, is_guest: bool) -> bool:
        """Give a waiting sequence its blocks, if need be from those of a caller who has many running."""
        has_none_running = not self.waiting.num_running(sequence)
        while True:
            # Room for one more block of each running sequence, so that an admission does not cause a preemption.
            spare = len(self.running)
            if not is_guest:
                spare += max(0, self._reserve - sum(len(guest.blocks) for guest in self._guests))
            if self._place(sequence, match, match.length, spare=spare):
                return True
            if not self.running:
                # The last resort gives up the shared part of a block, whose source may be all that is in the way.
                aligned = match.length - match.length % self.pool.block_size
                return self._place(sequence, match, aligned, desperate=True)
            may_preempt = has_none_running and self._preempted < PREEMPTIONS and self._blocked_steps < PATIENCE
            if not may_preempt or (victim := self._victim(for_newcomer=is_guest)) is None:
                return False
            self._preempted += 1
            self.preempt(victim)
            match = self.cache.lookup(sequence.namespace, sequence.reusable)

    def _blocks_of(self, sequence: Sequence) -> int:
        return -(-sequence.length // self.pool.block_size)

    def _victim(self, *, for_newcomer: bool) -> Sequence | None:
        """Whose blocks another caller may have: the last admitted of a caller who has more running than others, and
        several; if there is none, `for_newcomer`, the last admitted of one who is no newcomer. None: there is none.
        """
        if self.waiting.is_alone:
            return None
        last_first = list(reversed(self.running))
        victim = next(filter(self.waiting.is_greediest, last_first), None)
        if victim is None and for_newcomer:
            victim = next((sequence for sequence in last_first if not self.waiting.is_new(sequence)), None)
        return victim

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether there are certainly enough blocks to admit it now."""
        need = self._blocks_of(sequence) + len(self.running)
        return need <= self.pool.num_free + self.pool.num_cached_only

    def _place(self, sequence: Sequence, match: Match, length: int, *, spare: int = 0, desperate: bool = False) -> bool:
        """Give a sequence all blocks of its line, the first `length` tokens from the match, if there is room."""
        block_size = self.pool.block_size
        held = match.blocks[: -(-length // block_size)]
        shared = held[: length // block_size]
        for block in held:
            self.pool.hold(block)
        need = -(-sequence.length // block_size) - len(shared)
        if not self._make_room(need + spare, desperate):
            for block in held:
                self.pool.release(block)
            return False
        sequence.blocks = shared + [self.pool.allocate() for _ in range(need)]
        if length % block_size:
            self._copy_block_prefix(held[-1], sequence.blocks[len(shared)], length % block_size)
            self.pool.release(held[-1])
        sequence.computed = length
        if not desperate:  # which may have emptied the tree
            self.cache.touch(match.node)
        return True

    def _leader(self, sequence: Sequence, prefilling: list[Sequence], beyond: int) -> tuple[Sequence, int] | None:
        """The running prefill that will soon have computed more of this line than the `beyond` tokens held now, and
        how many of its tokens that are.
        """
        line = sequence.reusable
        for other in prefilling:
            if other in self.running and other.namespace == sequence.namespace:
                common = common_prefix(other.line, line)
                if common > beyond and common > other.computed:
                    return other, common
        return None

    def _make_room(self, blocks: int, desperate: bool = False) -> bool:
        """Have at least `blocks` free blocks, by eviction where needed and possible."""
        missing = blocks - self.pool.num_free
        if missing <= 0:
            return True
        if missing <= self.pool.num_cached_only:
            missing -= self.cache.evict(missing)
        if missing > 0 and desperate:
            # Blocks of inner nodes cannot be evicted while a leaf below them is in use. Rather than be stuck, forget
            # the tree: only what running sequences hold stays.
            self.cache.clear()
            missing = blocks - self.pool.num_free
        return missing <= 0

    def _grow(self, sequence: Sequence) -> bool:
        """Make sure that a decoding sequence has a block for its next token; preempt the latest one if need be."""
        if sequence.computed < len(sequence.blocks) * self.pool.block_size:
            return True
        while not self._make_room(1, desperate=len(self.running) == 1):
            victim = self._victim(for_newcomer=True) or next(reversed(self.running))
            self.preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks.append(self.pool.allocate())
        return True

    def borrow_block(self) -> int | None:
        """A block for nobody's tokens, to be released; None if all are in use."""
        return self.pool.allocate() if self._make_room(1) else None

    def computed(self, chunk: Chunk) -> None:
        """The chunk's keys and values are in the pool. Prompts enter the tree chunk by chunk, answers at the end."""
        sequence = chunk.sequence
        if sequence.computed < sequence.prompt_length:
            sequence.computed += chunk.length
            self._hold_in_tree(sequence)
            self.waiting.advanced(sequence)
        else:
            sequence.computed += chunk.length

    def take_restored(self) -> None:
        """Go on with what has come from the disk; it enters the tree as if it had been computed."""
        if self._tier is not None:
            for sequence in self._tier.deliver():
                self._hold_in_tree(sequence)
                self.waiting.advanced(sequence)

    def _hold_in_tree(self, sequence: Sequence) -> None:
        blocks = sequence.blocks[: -(-sequence.computed // self.pool.block_size)]
        ids = sequence.ids[: sequence.computed]
        self.cache.insert(sequence.namespace, ids, blocks, storable=sequence.request.retention_s != 0)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it will be computed again, from what the cache then still holds."""
        self._give_up(sequence, keep=True)
        self.waiting.put_back(sequence)
        self._lengths.pop(sequence, None)
        self.preemptions += 1

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Let go of a sequence, running or waiting. `keep`: what is computed of it stays in the tree (invariant 7)."""
        if sequence in self.running:
            self._give_up(sequence, keep=keep)
            self.waiting.leave(sequence)
        elif sequence in self.waiting:
            self.waiting.leave(sequence)

    def _give_up(self, sequence: Sequence, *, keep: bool) -> None:
        if keep and sequence.computed:
            self._hold_in_tree(sequence)
        for block in sequence.blocks:
            self.pool.release(block)
        sequence.blocks = []
        sequence.computed = sequence.restored = 0
        sequence.restore = None
        del self.running[sequence]
        self._guests.pop(sequence, None)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for (invariant 4)."""
        self.waiting.check_integrity(list(self.running))
        running: dict[int, int] = {}
        for sequence in self.running:
            assert len(sequence.blocks) * self.pool.block_size >= sequence.computed
            for block in sequence.blocks:
                running[block] = running.get(block, 0) + 1
        for sequence in self.waiting:
            assert not sequence.blocks, "a waiting sequence holds blocks"
        self.cache.check_integrity()
        self.pool.check_integrity(running, self.cache.references())
