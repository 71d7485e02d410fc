"""Which blocks of the KV pool are free, and who holds the others. Numbers only: the tensors belong to the model.

A block is held by running sequences (they write or read it now), by the prefix cache (it may be reused later), by
both, or by nobody, and then it is free. A block that only the cache holds can be taken back by eviction.

    free ──allocate──> running ──keep──> running + cached ──release──> cached ──drop──> free
"""


class BlockPool:
    """Reference counts of `num_blocks` blocks of `block_size` tokens. Not thread-safe: the engine thread owns it."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is warm in the CPU's cache
        self._running = [0] * num_blocks
        self._cached = [0] * num_blocks
        self._num_cached_only = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached_only(self) -> int:
        """Blocks that eviction can give back, as long as nothing below them in the tree is in use."""
        return self._num_cached_only

    @property
    def num_running(self) -> int:
        return self.num_blocks - self.num_free - self._num_cached_only

    def in_use(self, block: int) -> bool:
        """Whether a running sequence holds the block."""
        return self._running[block] > 0

    def allocate(self) -> int:
        """Take a free block for a running sequence. The caller has made sure that there is one."""
        block = self._free.pop()
        self._running[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more running sequence uses a block that is in the cache."""
        if self._running[block] == 0:
            self._num_cached_only -= 1
        self._running[block] += 1

    def release(self, block: int) -> None:
        """A running sequence is done with the block."""
        self._running[block] -= 1
        if self._running[block] == 0:
            if self._cached[block]:
                self._num_cached_only += 1
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """A node of the prefix cache refers to the block."""
        if self._cached[block] == 0 and self._running[block] == 0:
            raise RuntimeError(f"block {block} is free and cannot be kept")
        self._cached[block] += 1

    def drop(self, block: int) -> bool:
        """A node of the prefix cache no longer refers to the block. Returns whether that made it free."""
        self._cached[block] -= 1
        if self._cached[block] or self._running[block]:
            return False
        self._num_cached_only -= 1
        self._free.append(block)
        return True

    def check_integrity(self, running: dict[int, int], cached: dict[int, int]) -> None:
        """Raise AssertionError unless the counts equal those given (block -> references) and every block adds up."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        cached_only = 0
        for block in range(self.num_blocks):
            assert self._running[block] == running.get(block, 0), f"block {block}: wrong number of running references"
            assert self._cached[block] == cached.get(block, 0), f"block {block}: wrong number of cache references"
            held = self._running[block] + self._cached[block]
            assert (block in free) == (held == 0), f"block {block}: {held} references, free: {block in free}"
            cached_only += self._running[block] == 0 and self._cached[block] > 0
        assert cached_only == self._num_cached_only, "the count of evictable blocks is off"
        assert self.num_free + self.num_cached_only + self.num_running == self.num_blocks
