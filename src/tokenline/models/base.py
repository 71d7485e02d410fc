"""What the engine needs of a model: the contract between `engine` and `models`.

A `Model` maps a `Batch` of new tokens to logits and keeps the keys and values of those tokens in a `KVPool`.
The pool is paged: token number `p` of a sequence lies in block `block_table[p // block_size]` at offset
`p % block_size`. Which block belongs to whom is the engine's business; a model only reads and writes where the
batch tells it to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np

from tokenline.models.config import Feature, ModelConfig


@dataclass(frozen=True, slots=True)
class BatchSequence:
    """The new tokens of one sequence in a batch: rows `start` to `start + length` of `Batch.ids`."""

    start: int  # first row in the batch
    length: int  # new tokens, at least 1
    context: int  # tokens of this sequence whose keys and values are in the pool already
    block_table: np.ndarray  # int32 [>= ceil((context + length) / block_size)]: block numbers in the pool


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of work: new tokens of several sequences, laid one after another.

    Sequences of length 1 are usually decoding, longer ones prefilling; a model must not assume either.
    """

    ids: np.ndarray  # int32 [T]
    positions: np.ndarray  # int32 [T]: context, context + 1, ... within each sequence
    sequences: tuple[BatchSequence, ...]  # in row order; together they cover all T rows
    logit_rows: np.ndarray  # int32 [R]: the rows whose logits are wanted, ascending


class KVPool(Protocol):
    """Keys and values of all held tokens on one device. Contiguous per (layer, block, kv head)."""

    num_blocks: int
    block_size: int  # tokens a block
    layout: str  # names dtype and order of what `export_block` gives: bytes of another layout must never be imported

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy at least the first `tokens` tokens of block `source` to `target`, in every layer (copy-on-write)."""
        ...

    def export_block(self, block: int) -> np.ndarray:
        """A copy of the block's keys and values in all layers: uint8 [bytes], as many for every block."""
        ...

    def import_block(self, block: int, data: np.ndarray) -> None:
        """Write what `export_block` of a pool with the same layout and block size gave. ValueError: wrong length."""
        ...


class TokenLogprob(NamedTuple):
    """Natural-log probabilities at one place of a line, from the logits as the model gave them."""

    logprob: float  # of the id that stands there
    top: tuple[tuple[int, float], ...]  # (id, logprob) of the most likely ones, most likely first
    rank: int = 1  # of the id that stands there: 1 if none is more likely


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How the next id of one row of logits is chosen. What is done to the row first, in this order; all ids lie in the
    vocabulary, and each array's differ.

    Then temperature, top_k, top_p (the smallest set whose mass reaches it: a token stays while the mass of the more
    likely ones is below top_p), min_p (as a share of the most likely one's probability), each of what the one before
    has left. Tokens are in order of their logits, equal ones of their ids; without top_k and top_p in order of ids.
    The one at which the sum of the probabilities passes `uniform` is drawn.
    """

    row: int
    temperature: float = 0.0  # 0: the largest logit, of equals the lowest id
    uniform: float = 0.0  # in [0, 1)
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repeated: np.ndarray | None = None  # int64 ids whose logits are divided, or where negative multiplied, by
    repetition_penalty: float = 1.0
    added: tuple[tuple[np.ndarray, np.ndarray], ...] = ()  # (int64 ids, float32 values), one after another
    mask: np.ndarray | None = None  # int32 words: bit i of word w allows id 32 w + i; ids beyond it are forbidden
    held_back: np.ndarray | None = None  # int64 ids that are forbidden unless nothing else is left

    @property
    def is_unedited(self) -> bool:
        """Whether nothing is done to the row first."""
        return self.repeated is None and not self.added and self.mask is None and self.held_back is None


class Logits(Protocol):
    """Logits of R rows, float32 [R, vocab], on the model's device. No row's result depends on other rows."""

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """The largest logit of each row and its id (of equals the lowest): float32 [R], int64 [R]. NaN is a maximum."""
        ...

    def forbid(self, ids: np.ndarray) -> None:
        """From now on no row has these ids (int64): their logits are -inf, and their probabilities 0."""
        ...

    def choose(self, rows: Sequence[RowSampling]) -> np.ndarray:
        """The next id of each of these rows, whose largest logits must be finite: int64 [len(rows)]. -1: the mask
        forbids all.
        """
        ...

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], top: int) -> list[TokenLogprob]:
        """Of these rows as the model gave them: of one id in each, and of the `top` most likely ones. NaN where a
        row is broken. Works in slices: it needs memory for a few rows, not for all.
        """
        ...

    def take(self, rows: Sequence[int]) -> Self:
        """These rows alone, numbered anew."""
        ...

    def to_numpy(self) -> np.ndarray:
        """All of them in main memory; not to be written to."""
        ...


class Model(Protocol):
    """A loaded model on one device. Not thread-safe: the engine thread is its only caller after loading."""

    config: ModelConfig
    device: str  # "cpu", "cuda", "cuda:0", "mps"
    weight_bytes: int  # what the weights occupy on the device
    precision: str  # how matrices are kept and multiplied, for people to read
    arithmetic: str  # names all that may change a bit of a result beside weights and batch (`models.arithmetic`)

    def kv_bytes_per_token(self) -> int:
        """Bytes that one token occupies in the pool, all layers, keys and values."""
        ...

    def new_kv_pool(self, num_blocks: int, block_size: int) -> KVPool:
        """Allocate a pool. Raises ModelError when the memory is not there."""
        ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated on the device."""
        ...

    def forward(self, batch: Batch, kv: KVPool) -> Logits:
        """Compute the batch, write its keys and values to the pool, return the logits of `batch.logit_rows`.

        The result is valid until the next call of `forward`.
        """
        ...


def _any_shape(config: ModelConfig) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Backend:
    """What can compute a decoder, and which ones: an allow-list, so that what a new family asks for is refused by every
    backend that does not say that it can do it.
    """

    name: str  # for people: "the CPU kernels"
    features: frozenset[Feature]  # what it can compute beyond what all decoders have
    wrong_shape: Callable[[ModelConfig], str | None] = _any_shape  # what is wrong with a shape; None: nothing

    def why_not(self, config: ModelConfig) -> str | None:
        """Why this backend cannot run the model; None: it can."""
        if missing := sorted(config.features - self.features):
            return f"{self.name} cannot compute {', '.join(missing)}"
        if (reason := self.wrong_shape(config)) is not None:
            return f"{self.name} cannot compute {reason}"
        return None
