"""Drives a `Model` as the engine does: sequences with scattered blocks of one pool, batches of any mixture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.errors import ModelError


@dataclass(eq=False)
class Track:
    """One sequence: its ids, how many of them are in the pool, and the blocks it holds there."""

    ids: list[int]
    blocks: list[int] = field(default_factory=list)
    done: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)  # one row for each id that was computed

    @property
    def left(self) -> int:
        return len(self.ids) - self.done

    @property
    def all_logits(self) -> torch.Tensor:
        return torch.stack(self.logits)


class Driver:
    """A model with a pool whose free blocks are handed out in random order, as after a long run."""

    def __init__(self, model: Model, *, num_blocks: int = 64, block_size: int = 16, seed: int = 0):
        self.model = model
        self.block_size = block_size
        self.pool = model.new_kv_pool(num_blocks, block_size)
        self.free = [int(block) for block in np.random.default_rng(seed).permutation(num_blocks)]

    def run(self, *parts: tuple[Track, int]) -> None:
        """One batch: the next `n` ids of each track. All logits are kept in the tracks."""
        sequences: list[BatchSequence] = []
        ids: list[int] = []
        positions: list[int] = []
        for track, n in parts:
            while len(track.blocks) * self.block_size < track.done + n:
                track.blocks.append(self.free.pop())
            table = np.array(track.blocks, dtype=np.int32)
            sequences.append(BatchSequence(len(ids), n, track.done, table))
            ids += track.ids[track.done : track.done + n]
            positions += range(track.done, track.done + n)
        rows = np.arange(len(ids), dtype=np.int32)
        batch = Batch(np.array(ids, dtype=np.int32), np.array(positions, dtype=np.int32), tuple(sequences), rows)
        logits = self.model.forward(batch, self.pool)
        logits = torch.from_numpy(logits.to_numpy()).clone()
        assert logits.dtype is torch.float32
        assert logits.shape == (len(ids), self.model.config.vocab_size)
        for (track, n), sequence in zip(parts, sequences, strict=True):
            track.logits += logits[sequence.start : sequence.start + n]
            track.done += n

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits of a whole sequence, prefilled at once."""
        track = Track(list(ids))
        self.run((track, len(ids)))
        self.release(track)
        return track.all_logits

    def fork(self, source: Track, ids: list[int], shared: int) -> Track:
        """A sequence that begins with `shared` tokens of another: whole blocks shared, the rest of one copied."""
        assert ids[:shared] == source.ids[:shared]
        whole, rest = divmod(shared, self.block_size)
        track = Track(ids, source.blocks[:whole], done=shared)
        if rest:
            track.blocks.append(self.free.pop())
            self.pool.copy_block_prefix(source.blocks[whole], track.blocks[-1], rest)
        return track

    def release(self, track: Track) -> None:
        self.free += track.blocks
        track.blocks = []


def reference_logits(folder: Path, ids: Sequence[int]) -> torch.Tensor:
    """What transformers computes in float32 for a checkpoint in Hugging Face layout."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """The exactness that the project promises: logits within 1e-3, the same best token everywhere."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() < 1e-3
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def refusal(function: Callable[[], object]) -> str:
    """The message of the ModelError that a call raises; empty if it raises none. Other exceptions pass through."""
    try:
        function()
    except ModelError as error:
        return str(error)
    return ""


def random_ids(n: int, seed: int = 0, vocab: int = 600) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab, n)]
