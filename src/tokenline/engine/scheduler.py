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

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.disk_tier import DiskTier
from tokenline.engine.prefill_budget import PrefillBudget
from tokenline.engine.prefix_cache import Match, PrefixCache
from tokenline.engine.sequence import Sequence
from tokenline.ids import common_prefix

LOOK_AHEAD = 64  # waiting sequences that are looked at for a short one while a long one is prefilled


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
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self.preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._max_batch_tokens = max_batch_tokens
        self._max_scored_tokens = max_scored_tokens
        self._prefill_budget = prefill_budget
        self._copy_block_prefix = copy_block_prefix
        self._tier = tier

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    @property
    def is_restoring(self) -> bool:
        return any(sequence.is_restoring for sequence in self.running)

    def schedule(self) -> list[Chunk]:
        """The next step's work. Empty only when nothing is running or waiting, or all of it for the disk."""
        lengths: dict[Sequence, int] = {}
        for sequence in list(self.running):
            if sequence.is_prefilling or sequence.is_restoring:
                continue
            if sequence in self.running and self._grow(sequence):
                lengths[sequence] = 1
        # A sequence scheduled first can have been preempted for the blocks of a later one.
        lengths = {sequence: 1 for sequence in lengths if sequence in self.running}
        budget = self._max_batch_tokens - len(lengths)
        if lengths:
            budget = min(budget, self._prefill_budget.tokens)
        self._share(budget, lengths)
        return [Chunk(sequence, length) for sequence, length in lengths.items()]

    def _share(self, budget: int, lengths: dict[Sequence, int]) -> None:
        """Add prefill for up to `budget` tokens to the step's `lengths`, and admit who can begin with it.

        The first to arrive always gets half of it; the rest goes to those that need least, whether they run already
        or wait. So a short prompt does not wait until a long one is done, nor a long one for ever.
        """

        to_score = self._max_scored_tokens

        def give(sequence: Sequence, most: int) -> int:
            nonlocal to_score
            length = min(sequence.remaining - lengths.get(sequence, 0), most)
            if sequence.unscored:
                length = min(length, to_score)
                to_score -= length
            if length > 0:
                lengths[sequence] = lengths.get(sequence, 0) + length
            return length

        prefilling = [sequence for sequence in self.running if sequence.is_prefilling and not sequence.is_restoring]
        if prefilling:
            first = prefilling[0]
            budget -= give(first, -(-budget // 2))
            while budget > 0 and (sequence := self._admit(below=first.remaining)) is not None:
                if not sequence.is_restoring:
                    budget -= give(sequence, budget)
        for sequence in sorted(prefilling, key=lambda sequence: sequence.remaining):
            budget -= give(sequence, budget)
        while budget > 0 and (sequence := self._admit()) is not None:
            if not sequence.is_restoring:
                budget -= give(sequence, budget)

    def _admit(self, below: int | None = None) -> Sequence | None:
        """Move the first waiting sequence that need not wait for a running one to `running`, with all its blocks.

        `below`: only one of the next few that has fewer tokens than that to compute.
        """
        if len(self.running) >= self._max_num_seqs:
            return None
        turns = self._by_turn()
        # Requests of which a choice waits for a running prefill, and so all that have its line
        riding: set[int] = set()
        for sequence in turns if below is None else turns[:LOOK_AHEAD]:
            if id(sequence.request) in riding and not sequence.num_generated:
                continue
            match = self.cache.lookup(sequence.namespace, sequence.reusable)
            if self._is_being_computed(sequence, beyond=match.length):
                if not sequence.num_generated:
                    riding.add(id(sequence.request))
                continue
            if below is not None and sequence.length - match.length >= below and self._has_room(sequence):
                continue
            # Room for one more block of each running sequence, so that an admission does not cause a preemption.
            placed = self._place(sequence, match, match.length, spare=len(self.running))
            if not placed and not self.running:
                # The last resort gives up the shared part of a block, whose source may be all that is in the way.
                aligned = match.length - match.length % self.pool.block_size
                placed = self._place(sequence, match, aligned, desperate=True)
            if not placed:
                return None  # those behind wait too, so that a large prompt is not passed by small ones for ever
            self.waiting.remove(sequence)
            self.running.append(sequence)
            if self._tier is not None:
                self._tier.begin(sequence)
            return sequence
        return None

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether there are certainly enough blocks to admit it now."""
        need = -(-sequence.length // self.pool.block_size) + len(self.running)
        return need <= self.pool.num_free + self.pool.num_cached_only

    def _by_turn(self) -> list[Sequence]:
        """Who waits, in the order of admission: first the callers with the fewest running sequences, then by arrival.

        So a caller that sends a hundred requests at once does not keep another's single one waiting behind them.
        """
        if len({sequence.namespace.caller for sequence in self.waiting}) < 2:
            return list(self.waiting)
        running = Counter(sequence.namespace.caller for sequence in self.running)
        turns: list[tuple[int, Sequence]] = []
        for sequence in self.waiting:
            turns.append((running[sequence.namespace.caller], sequence))
            running[sequence.namespace.caller] += 1
        return [sequence for _, sequence in sorted(turns, key=lambda turn: turn[0])]

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

    def _is_being_computed(self, sequence: Sequence, beyond: int) -> bool:
        """Whether a running prefill will soon have computed more of this line than the `beyond` tokens held now."""
        line = sequence.reusable
        for other in self.running:
            if other.is_prefilling and other.namespace == sequence.namespace:
                common = common_prefix(other.line, line)
                if common > beyond and common > other.computed:
                    return True
        return False

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
            victim = self.running[-1]
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
        else:
            sequence.computed += chunk.length

    def take_restored(self) -> None:
        """Go on with what has come from the disk; it enters the tree as if it had been computed."""
        if self._tier is not None:
            for sequence in self._tier.deliver():
                self._hold_in_tree(sequence)

    def _hold_in_tree(self, sequence: Sequence) -> None:
        blocks = sequence.blocks[: -(-sequence.computed // self.pool.block_size)]
        ids = sequence.ids[: sequence.computed]
        self.cache.insert(sequence.namespace, ids, blocks, storable=sequence.request.retention_s != 0)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it will be computed again, from what the cache then still holds."""
        self._leave(sequence, keep=True)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Let go of a sequence, running or waiting. `keep`: what is computed of it stays in the tree (invariant 7)."""
        if sequence in self.running:
            self._leave(sequence, keep=keep)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        if keep and sequence.computed:
            self._hold_in_tree(sequence)
        for block in sequence.blocks:
            self.pool.release(block)
        sequence.blocks = []
        sequence.computed = sequence.restored = 0
        sequence.restore = None
        self.running.remove(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for (invariant 4)."""
        running: dict[int, int] = {}
        for sequence in self.running:
            assert len(sequence.blocks) * self.pool.block_size >= sequence.computed
            for block in sequence.blocks:
                running[block] = running.get(block, 0) + 1
        for sequence in self.waiting:
            assert not sequence.blocks, "a waiting sequence holds blocks"
        self.cache.check_integrity()
        self.pool.check_integrity(running, self.cache.references())
