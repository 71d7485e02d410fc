"""A model whose keys and values are the token ids themselves, so that every wrong read of the pool shows in the answer.

`LedgerModel` writes each new token's id and position into the pool and computes the next id from *all* ids that it
reads back through the block table. `expected_answer` computes the same from the prompt alone, with no pool, no cache
and no batch. If the engine ever shares, copies, evicts or overwrites a wrong token, the two differ.
"""

import zlib

import numpy as np

from tokenline.models.base import Batch, KVPool
from tokenline.models.config import LayerAttention, ModelConfig, Rope
from tokenline.models.cpu.logits import NumpyLogits

VOCAB = 97


class LedgerPool:
    layout = "ledger int64"

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ids = np.full((num_blocks, block_size), -1, np.int64)

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        self.ids[target, :tokens] = self.ids[source, :tokens]

    def export_block(self, block: int) -> np.ndarray:
        return self.ids[block].view(np.uint8).copy()

    def import_block(self, block: int, data: np.ndarray) -> None:
        self.ids[block] = data.view(np.int64)


class LedgerModel:
    def __init__(self, max_positions: int = 256):
        self.config = ModelConfig(
            family="llama",
            vocab_size=VOCAB,
            hidden_size=8,
            intermediate_size=8,
            layers=(LayerAttention(Rope(10_000.0)),),
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            max_positions=max_positions,
            rms_norm_eps=1e-5,
        )
        self.device = "cpu"
        self.weight_bytes = 0
        self.precision = "exact"
        self.arithmetic = "integers"
        self.tokens_computed = 0
        self.most_logits = 0  # rows of them in one step
        self.fail_on: int | None = None  # raise when a batch has this id
        self.broken = False  # raise whatever the batch is
        self.nan_on: int | None = None  # broken logits where a line ends with this id

    def kv_bytes_per_token(self) -> int:
        return 8

    def new_kv_pool(self, num_blocks: int, block_size: int) -> LedgerPool:
        return LedgerPool(num_blocks, block_size)

    def free_memory(self) -> int:
        return 1 << 30

    def forward(self, batch: Batch, kv: KVPool) -> NumpyLogits:
        assert isinstance(kv, LedgerPool)
        if self.broken or (self.fail_on is not None and self.fail_on in batch.ids):
            raise RuntimeError("the ledger was told to fail")
        self.tokens_computed += len(batch.ids)
        logits = np.full((len(batch.logit_rows), VOCAB), -10.0, np.float32)
        rows = batch.logit_rows.tolist()
        assert rows == sorted(set(rows))
        self.most_logits = max(self.most_logits, len(rows))
        for sequence in batch.sequences:
            new = batch.ids[sequence.start : sequence.start + sequence.length]
            end = sequence.context + sequence.length
            expected_positions = np.arange(sequence.context, end)
            positions = batch.positions[sequence.start : sequence.start + sequence.length]
            assert np.array_equal(positions, expected_positions)
            for position, token_id in zip(expected_positions, new, strict=True):
                kv.ids[sequence.block_table[position // kv.block_size], position % kv.block_size] = token_id
            read = kv.ids[sequence.block_table].reshape(-1)[:end]
            for row, wanted in enumerate(rows):
                if 0 <= wanted - sequence.start < sequence.length:
                    line = read[: sequence.context + wanted - sequence.start + 1]
                    logits[row, next_id(line)] = 10.0
                    if self.nan_on == line[-1]:
                        logits[row] = float("nan")
        return NumpyLogits(logits)


def next_id(line: np.ndarray) -> int:
    """The id that the ledger model continues a line with."""
    return zlib.crc32(np.asarray(line, np.int64).tobytes()) % VOCAB


def is_expected(prompt: list[int]) -> list[bool]:
    """Whether the ledger model would have continued with each id of a prompt but the first."""
    return [next_id(np.asarray(prompt[:place])) == prompt[place] for place in range(1, len(prompt))]


def expected_answer(prompt: list[int], max_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    line = list(prompt)
    while len(line) < len(prompt) + max_tokens:
        line.append(next_id(np.asarray(line)))
        if line[-1] in stop_ids:
            break
    return line[len(prompt) :]
