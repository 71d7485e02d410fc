"""The token-exact prefix cache: a radix tree over token ids, one tree a namespace, whose nodes refer to KV blocks.

KV lies in blocks, the tree is over tokens. A node holds the ids from depth `start` to `end` of a line and the
blocks in which their keys and values lie. A branch in the middle of a block gives the child a block of its own for
that part of the line, with the parent's share copied into it (copy-on-write), so the deepest node that covers a
block index has the block for the whole path:

    depth       0         32        64   70           96       107
    system      [block 4  |block 7  |block 2 .. ]
    chat 1                          [block 9 ........|block 3 ..]      block 9 begins with a copy of block 2's 6 tokens
    chat 2                          [block 5 ........]                 so does block 5

Nothing here locks nodes: a block that a running sequence holds is never trimmed, so what a request uses stays, and
leaves give up their last blocks first. Knows no tensors, no sequences and no time but the order of use.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenline.engine.block_pool import BlockPool
from tokenline.engine.request import Namespace
from tokenline.ids import common_prefix


class Node:
    """A run of ids below `parent`. The root of a namespace is an empty run at depth 0."""

    __slots__ = ("blocks", "children", "namespace", "parent", "start", "storable", "tokens")

    def __init__(
        self,
        namespace: Namespace,
        parent: "Node | None",
        start: int,
        tokens: np.ndarray,
        blocks: list[int],
        storable: bool = True,
    ):
        self.namespace = namespace
        self.parent = parent
        self.start = start  # depth of the first id
        self.tokens = tokens  # int32
        self.blocks = blocks  # those of block indices start // block_size to (end - 1) // block_size
        self.children: dict[int, Node] = {}  # by first id
        # Some line that may outlive the pool has these ids (see `insert`), and so all those of the nodes above.
        self.storable = storable

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def key(self) -> int:
        return int(self.tokens[0])

    def path(self) -> "Iterator[Node]":
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def line(self) -> np.ndarray:
        """The ids from the root to the end of this node."""
        return np.concatenate([node.tokens for node in reversed(list(self.path()))])


@dataclass(frozen=True, slots=True)
class Match:
    """The longest held prefix of a line."""

    length: int  # tokens
    blocks: list[int]  # ceil(length / block_size) of them; the last one may be shared in part
    node: Node  # the node in which the match ends, or the root


class Tail(NamedTuple):
    """The end of a line, from token `start` on, and the blocks in which it lies."""

    namespace: Namespace
    ids: np.ndarray  # int32: the line from its first token on
    start: int
    blocks: list[int]  # those of block indices start // block_size on; each has all of the line that falls into it
    storable: bool  # see `PrefixCache.insert`


class PrefixCache:
    """What is held, by whom it may be shared, and what goes first. Not thread-safe: the engine thread owns it."""

    def __init__(self, pool: BlockPool, on_evict: Callable[[Tail], None] | None = None):
        """`on_evict` is called with each evicted tail while its blocks still have their contents."""
        self._pool = pool
        self._on_evict = on_evict
        self._roots: dict[Namespace, Node] = {}
        # Least recently used first. A node is always after its children, so the first entries are leaves.
        self._lru: OrderedDict[Node, None] = OrderedDict()
        self.evicted_blocks = 0

    @property
    def held_tokens(self) -> int:
        return sum(len(node.tokens) for node in self._lru)

    def lookup(self, namespace: Namespace, ids: np.ndarray) -> Match:
        """The longest held prefix of `ids` (int32). Changes nothing, not even the order of use."""
        root = self._roots.get(namespace)
        if root is None:
            return Match(0, [], Node(namespace, None, 0, np.empty(0, np.int32), []))
        block_size = self._pool.block_size
        node, depth, blocks = root, 0, []
        while depth < len(ids) and (child := node.children.get(int(ids[depth]))) is not None:
            common = common_prefix(child.tokens, ids[depth:])
            depth += common
            first = child.start // block_size  # the child's first block replaces its parent's partial one
            blocks[first:] = child.blocks[: -(-depth // block_size) - first]
            node = child
            if common < len(child.tokens):
                break
        return Match(depth, blocks, node)

    def touch(self, node: Node) -> None:
        """Mark the path to `node` as just used."""
        for used in node.path():
            self._lru.move_to_end(used)

    def insert(self, namespace: Namespace, ids: np.ndarray, blocks: Sequence[int], *, storable: bool = True) -> None:
        """Hold `ids`, whose keys and values are all computed and lie in `blocks` (ceil(len(ids) / block_size)).

        What is held already stays as it is; the caller's own blocks for that part are not taken. `storable`: these
        ids may be kept outside of the pool; ids that only lines without it have never are.
        """
        if len(ids) == 0:
            return
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(namespace, None, 0, np.empty(0, np.int32), [])
        depth = 0
        while depth < len(ids) and (child := node.children.get(int(ids[depth]))) is not None:
            common = common_prefix(child.tokens, ids[depth:])
            depth += common
            if common < len(child.tokens) and (depth < len(ids) or (storable and not child.storable)):
                child = self._split(child, common)
            child.storable |= storable
            node = child
        if depth < len(ids):
            rest = np.array(ids[depth:], dtype=np.int32)
            new_blocks = list(blocks[depth // self._pool.block_size :])
            if node.parent is not None and not node.children and node.storable == storable:
                self._extend(node, rest, new_blocks)
            else:
                for block in new_blocks:
                    self._pool.keep(block)
                leaf = Node(namespace, node, depth, rest, new_blocks, storable)
                node.children[leaf.key] = leaf
                self._lru[leaf] = None
                node = leaf
        self.touch(node)

    def _extend(self, leaf: Node, tokens: np.ndarray, blocks: list[int]) -> None:
        """Let a leaf grow. `blocks` begin with the one that holds the token at `leaf.end`.

        If that token lies inside the leaf's last block, the newcomer's block has the same tokens before it (it is the
        same block or a copy of it), so it takes that one's place.
        """
        for block in blocks:
            self._pool.keep(block)
        if leaf.end % self._pool.block_size:
            self._pool.drop(leaf.blocks.pop())
        leaf.blocks.extend(blocks)
        leaf.tokens = np.concatenate([leaf.tokens, tokens])

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after its first `at` ids; returns the new upper part. A block cut in two is held by both."""
        block_size, depth = self._pool.block_size, node.start + at
        first, cut = node.start // block_size, depth // block_size
        assert node.parent is not None
        upper_blocks = node.blocks[: -(-depth // block_size) - first]
        upper = Node(node.namespace, node.parent, node.start, node.tokens[:at], upper_blocks, node.storable)
        node.parent.children[upper.key] = upper
        if depth % block_size:
            self._pool.keep(upper.blocks[-1])
        node.blocks = node.blocks[cut - first :]
        node.start, node.tokens, node.parent = depth, node.tokens[at:], upper
        upper.children[node.key] = node
        self._lru[upper] = None
        return upper

    def evict(self, blocks: int) -> int:
        """Free up to `blocks` blocks that no running sequence uses, least recently used leaves first, from their ends.

        Returns how many became free.
        """
        freed = 0
        while freed < blocks and (leaf := next(filter(self._can_shrink, self._lru), None)) is not None:
            freed += self._trim(leaf, blocks - freed)
        self.evicted_blocks += freed
        return freed

    def _can_shrink(self, node: Node) -> bool:
        return not node.children and not self._pool.in_use(node.blocks[-1])

    def _trim(self, leaf: Node, blocks: int) -> int:
        freed = 0
        block_size = self._pool.block_size
        line, dropped = leaf.line(), []
        while leaf.blocks and freed < blocks and not self._pool.in_use(leaf.blocks[-1]):
            dropped.append(leaf.blocks.pop())
            freed += self._pool.drop(dropped[-1])
            if leaf.blocks:
                end = (leaf.start // block_size + len(leaf.blocks)) * block_size
                leaf.tokens = leaf.tokens[: end - leaf.start]
            else:
                self._remove(leaf)
        if self._on_evict is not None and dropped:
            kept = leaf.end if leaf.blocks else leaf.start
            self._on_evict(Tail(leaf.namespace, line, kept, dropped[::-1], leaf.storable))
        return freed

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.key]
        del self._lru[leaf]
        if leaf.parent.parent is None and not leaf.parent.children:
            del self._roots[leaf.namespace]

    def tails(self) -> Iterator[Tail]:
        """Everything held, node by node: the last used first, and a node before its children."""
        for node in reversed(self._lru):
            yield Tail(node.namespace, node.line(), node.start, node.blocks, node.storable)

    def clear(self, caller: str | None = None) -> None:
        """Hold nothing of a caller any more (None: of anybody). Blocks in use by running sequences stay theirs."""
        for node in [node for node in self._lru if caller in (None, node.namespace.caller)]:
            for block in node.blocks:
                self._pool.drop(block)
            del self._lru[node]
            self._roots.pop(node.namespace, None)

    def references(self) -> dict[int, int]:
        """How many nodes refer to each block."""
        counts: dict[int, int] = {}
        for node in self._lru:
            for block in node.blocks:
                counts[block] = counts.get(block, 0) + 1
        return counts

    def check_integrity(self) -> None:
        """Raise AssertionError unless the tree is well formed (invariants 3, 4 and 6)."""
        block_size = self._pool.block_size
        order = {node: position for position, node in enumerate(self._lru)}
        seen = 0
        for namespace, root in self._roots.items():
            assert root.children, "an empty namespace is kept"
            stack = [root]
            while stack:
                node = stack.pop()
                for key, child in node.children.items():
                    assert child.namespace == namespace, "a node is in another namespace's tree"
                    assert child.parent is node, "a child has another parent"
                    assert len(child.tokens) > 0, "an empty node"
                    assert key == child.key, "a child stands under another id"
                    assert child.start == node.end, "a child does not begin where its parent ends"
                    expected = -(-child.end // block_size) - child.start // block_size
                    assert len(child.blocks) == expected, "a node has too many or too few blocks"
                    assert node is root or node.storable >= child.storable, "a line is storable without its beginning"
                    assert node is root or order[node] > order[child], "a node is older than its child"
                    seen += 1
                    stack.append(child)
        assert seen == len(self._lru), "the order of use has nodes that the trees lack"
