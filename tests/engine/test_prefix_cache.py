"""The radix tree against a list of lines: what is held, what is found, what goes first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.prefix_cache import PrefixCache, Tail
from tokenline.engine.request import Namespace

BLOCK = 4
ANYONE = Namespace()


class Held:
    """A pool and a cache, and what a scheduler would do to put a finished line into them."""

    def __init__(self, num_blocks: int = 64):
        self.pool = BlockPool(num_blocks, BLOCK)
        self.evicted: list[Tail] = []
        self.cache = PrefixCache(self.pool, self.hear)
        self.contents: dict[int, list[int]] = {}  # block -> ids written to it

    def hear(self, tail: Tail) -> None:
        self.check_tail(tail)
        self.evicted.append(tail)

    def check_tail(self, tail: Tail) -> None:
        """Each block of a tail has all of the line that falls into it."""
        line, first = tail.ids.tolist(), tail.start // BLOCK
        assert 0 <= tail.start < len(line)
        assert tail.blocks
        for index, block in enumerate(tail.blocks, first):
            expected = line[index * BLOCK : (index + 1) * BLOCK]
            assert self.contents[block][: len(expected)] == expected

    def compute(self, ids: list[int], namespace: Namespace = ANYONE, storable: bool = True) -> list[int]:
        """Match, allocate the rest, "compute", insert. Returns the blocks, still held by the caller."""
        match = self.cache.lookup(namespace, np.asarray(ids, np.int32))
        self.check_match(ids, match)
        full = match.length // BLOCK
        blocks = match.blocks[:full]
        for block in match.blocks:
            self.pool.hold(block)
        need = -(-len(ids) // BLOCK) - full
        if need > self.pool.num_free:
            self.cache.evict(need - self.pool.num_free)
        blocks += [self.pool.allocate() for _ in range(need)]
        if len(match.blocks) > full:
            self.pool.release(match.blocks[-1])
        for index in range(full, len(blocks)):
            self.contents[blocks[index]] = ids[index * BLOCK : (index + 1) * BLOCK]
        self.cache.insert(namespace, np.asarray(ids, np.int32), blocks, storable=storable)
        return blocks

    def finish(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.release(block)

    def add(self, ids: list[int], namespace: Namespace = ANYONE, storable: bool = True) -> None:
        self.finish(self.compute(ids, namespace, storable))
        self.check()

    def length(self, ids: list[int], namespace: Namespace = ANYONE) -> int:
        match = self.cache.lookup(namespace, np.asarray(ids, np.int32))
        self.check_match(ids, match)
        return match.length

    def check_match(self, ids: list[int], match) -> None:
        """The blocks of a match hold exactly the ids of the line (invariant 3)."""
        assert len(match.blocks) == -(-match.length // BLOCK)
        found = [token for block in match.blocks for token in self.contents[block]]
        for position in range(match.length):
            assert self.contents[match.blocks[position // BLOCK]][position % BLOCK] == ids[position]
        assert len(found) >= match.length

    def check(self, running: dict[int, int] | None = None) -> None:
        self.cache.check_integrity()
        self.pool.check_integrity(running or {}, self.cache.references())


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


lines = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=12)


@given(lines, st.lists(st.integers(0, 2), max_size=24))
@settings(max_examples=300, deadline=None)
def test_finds_the_longest_common_prefix_to_the_token(held_lines, asked):
    held = Held(num_blocks=500)
    for line in held_lines:
        held.add(line)
    assert held.length(asked) == max(common(line, asked) for line in held_lines)


@given(lines, st.integers(1, 30), st.lists(st.integers(0, 2), max_size=24))
@settings(max_examples=300, deadline=None)
def test_eviction_only_shortens_what_is_found(held_lines, blocks, asked):
    held = Held(num_blocks=500)
    for line in held_lines:
        held.add(line)
    before, free = held.length(asked), held.pool.num_free
    freed = held.cache.evict(blocks)
    held.check()
    assert held.pool.num_free == free + freed
    assert freed == min(blocks, 500 - free), "everything can be evicted when nothing runs"
    assert held.length(asked) <= before


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.booleans()), max_size=12))
@settings(max_examples=200, deadline=None)
def test_only_ids_of_storable_lines_are_storable_and_all_of_them(held_lines):
    held = Held(num_blocks=500)
    for line, storable in held_lines:
        held.add(line, storable=storable)
    covered: dict[tuple[int, ...], bool] = {}  # each held prefix -> whether its last token is storable
    for tail in held.cache.tails():
        held.check_tail(tail)
        for end in range(tail.start + 1, len(tail.ids) + 1):
            assert tuple(tail.ids[:end]) not in covered
            covered[tuple(tail.ids[:end])] = tail.storable
    expected: dict[tuple[int, ...], bool] = {}
    for line, storable in held_lines:
        for end in range(1, len(line) + 1):
            expected[tuple(line[:end])] = expected.get(tuple(line[:end]), False) or storable
    assert covered == expected


@given(lines)
@settings(max_examples=100, deadline=None)
def test_everything_evicted_was_heard_of(held_lines):
    held = Held(num_blocks=500)
    for line in held_lines:
        held.add(line)
    prefixes = {tuple(line[:end]) for line in held_lines for end in range(1, len(line) + 1)}
    while held.cache.evict(1):
        held.check()
    heard = [tuple(tail.ids[:end]) for tail in held.evicted for end in range(tail.start + 1, len(tail.ids) + 1)]
    assert len(heard) == len(set(heard))
    assert set(heard) == prefixes


@given(lines)
@settings(max_examples=200, deadline=None)
def test_what_a_running_sequence_uses_is_never_evicted(held_lines):
    held = Held(num_blocks=500)
    for line in held_lines[:-1]:
        held.add(line)
    running = held_lines[-1]
    blocks = held.compute(running)
    counts = dict.fromkeys(blocks, 1)
    held.check(counts)
    held.cache.evict(500)
    held.check(counts)
    # Its full blocks are found as before; a partial one may have been a copy, whose source could go.
    assert held.length(running) >= len(running) // BLOCK * BLOCK
    held.cache.insert(ANYONE, np.asarray(running, np.int32), blocks)
    assert held.length(running) == len(running)
    held.finish(blocks)
    held.cache.evict(500)
    held.check()
    assert held.pool.num_free == 500
    assert held.length(running) == 0


def test_a_match_that_ends_inside_a_block_shares_that_part():
    held = Held()
    held.add([1, 2, 3, 4, 5, 6])
    held.add([1, 2, 3, 4, 5, 9, 9])
    assert held.length([1, 2, 3, 4, 5, 6, 7]) == 6
    assert held.length([1, 2, 3, 4, 5, 9, 9, 9]) == 7
    assert held.length([1, 2, 3, 4, 5, 7]) == 5


def test_a_conversation_grows_one_leaf_and_wastes_no_block():
    held = Held()
    line = [1, 2, 3]
    for turn in range(5):
        line = [*line, turn, 9, 9]
        held.add(line)
    assert held.pool.num_cached_only == -(-len(line) // BLOCK)
    assert held.length(line) == len(line)


def test_a_shared_system_prompt_outlives_the_chats_that_hang_off_it():
    held = Held(num_blocks=16)
    system = [7] * 8
    for chat in range(20):
        held.add([*system, chat + 10, *range(100, 110)])
        assert held.length(system) == len(system)
    assert held.length([*system, 10]) == 8, "the oldest chat is gone"
    assert held.length([*system, 29]) == 9, "the newest is there"


def test_least_recently_used_goes_first_and_use_counts():
    held = Held()
    first, second = [1] * 8, [2] * 8
    held.add(first)
    held.add(second)
    match = held.cache.lookup(ANYONE, np.asarray(first, np.int32))
    held.cache.touch(match.node)
    held.cache.evict(2)
    assert held.length(first) == 8
    assert held.length(second) == 0


def test_a_lookup_alone_is_no_use():
    held = Held()
    held.add([1] * 8)
    held.add([2] * 8)
    held.length([1] * 8)
    held.cache.evict(2)
    assert held.length([1] * 8) == 0


def test_children_go_before_their_parents():
    """B hangs off A: what is in use stays, then B goes before A."""
    held = Held()
    a, b = [1] * 8, [1] * 8 + [2] * 8
    held.add(a)
    blocks = held.compute(b)
    held.cache.evict(100)
    assert held.length(b) == 16
    held.finish(blocks)
    held.cache.evict(2)
    assert held.length(b) == 8
    held.cache.evict(2)
    assert held.length(a) == 0


NAMESPACES = [
    Namespace(adapter="X"),
    Namespace(salt="X"),
    Namespace(caller="ab", salt="c"),
    Namespace(caller="a", salt="bc"),
    Namespace(caller="a"),
    Namespace(),
]


@pytest.mark.parametrize("mine", NAMESPACES)
def test_namespaces_never_share(mine):
    """Keys whose parts look alike when joined are different keys."""
    held = Held()
    line = list(range(32))
    held.add(line, mine)
    for namespace in NAMESPACES:
        assert held.length(line, namespace) == (32 if namespace == mine else 0)


def test_clear_forgets_all_but_what_runs():
    held = Held()
    held.add([1] * 10)
    blocks = held.compute([2] * 10)
    held.cache.clear()
    held.check(dict.fromkeys(blocks, 1))
    assert held.length([1] * 10) == 0
    held.cache.insert(ANYONE, np.asarray([2] * 10, np.int32), blocks)
    held.finish(blocks)
    held.check()
    assert held.length([2] * 10) == 10


def test_clear_forgets_all_namespaces_of_a_caller_and_no_other():
    held = Held()
    line = [1] * 10
    namespaces = [Namespace(caller, salt=salt) for caller in (None, "a", "b") for salt in (None, "x")]
    for namespace in namespaces:
        held.add(line, namespace)
    held.cache.clear("a")
    held.check()
    assert [held.length(line, namespace) for namespace in namespaces] == [10, 10, 0, 0, 10, 10]
    held.cache.clear()
    held.check()
    assert not any(held.length(line, namespace) for namespace in namespaces)


def test_an_empty_line_holds_nothing():
    held = Held()
    held.cache.insert(ANYONE, np.empty(0, np.int32), [])
    held.check()
    assert held.length([]) == 0
