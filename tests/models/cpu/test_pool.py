"""The paged pool: copies, and blocks that leave and come back."""

import numpy as np
import pytest
import torch

from tests.models.drive import Driver, Track, random_ids
from tests.tiny import make_tiny
from tokenline.models.cpu.model import CPUModel
from tokenline.models.cpu.pool import CPUKVPool
from tokenline.models.weights import open_checkpoint


def filled_pool(seed: int = 0) -> CPUKVPool:
    pool = CPUKVPool(3, 5, 2, 16, 32)
    rng = np.random.default_rng(seed)
    pool.keys[:] = rng.integers(1, 100, pool.keys.shape)
    pool.values[:] = rng.integers(1, 100, pool.values.shape)
    return pool


@pytest.mark.parametrize("tokens", [1, 2, 7, 15, 16])
def test_copy_of_a_prefix(tokens: int) -> None:
    pool = filled_pool()
    keys, values = pool.keys.copy(), pool.values.copy()
    pool.copy_block_prefix(1, 3, tokens)
    assert np.array_equal(pool.keys[:, 3, :, :, :tokens], keys[:, 1, :, :, :tokens])
    copied, source = pool.values[:, 3], values[:, 1]
    for token in range(tokens):
        assert np.array_equal(copied[:, :, token // 2, :, token % 2], source[:, :, token // 2, :, token % 2])
    for block in (0, 1, 2, 4):
        assert np.array_equal(pool.keys[:, block], keys[:, block])
        assert np.array_equal(pool.values[:, block], values[:, block])


def test_a_block_comes_back_as_it_was() -> None:
    pool = filled_pool()
    keys, values = pool.keys.copy(), pool.values.copy()
    data = pool.export_block(3)
    assert data.dtype == np.uint8
    pool.keys[:, 3] = pool.values[:, 3] = 0
    assert data.any(), "an exported block does not change with the pool"
    pool.import_block(3, data)
    assert np.array_equal(pool.keys, keys)
    assert np.array_equal(pool.values, values)
    with pytest.raises(ValueError, match="bytes"):
        pool.import_block(3, data[:-1])
    with pytest.raises(ValueError, match="bytes"):
        pool.import_block(3, data.view(np.uint16))


def test_a_model_goes_on_from_imported_blocks_as_from_its_own(tmp_path) -> None:
    model = CPUModel(open_checkpoint(make_tiny("qwen3", tmp_path)), threads=1)
    ids = random_ids(70)
    first, second = Driver(model), Driver(model, seed=1)
    track = Track(ids)
    first.run((track, 64))
    other = Track(ids, blocks=[second.free.pop() for _ in range(4)], done=64)
    assert first.pool.layout == second.pool.layout
    for source, target in zip(track.blocks, other.blocks, strict=True):
        second.pool.import_block(target, first.pool.export_block(source))
    first.run((track, 6))
    second.run((other, 6))
    assert torch.equal(other.all_logits, track.all_logits[64:])
