"""Blocks that leave a pool and come back, to it or to another one, are the same keys and values."""

import numpy as np
import pytest
import torch

from tests.tiny import make_tiny
from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.load import load_model
from tokenline.models.torch.attention import TorchKVPool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_block_comes_back_as_it_was(dtype):
    pool = TorchKVPool(3, 5, 2, 8, 4, dtype, torch.device("cpu"))
    pool.keys.copy_(torch.randn(pool.keys.shape))
    pool.values.copy_(torch.randn(pool.values.shape))
    keys, values = pool.keys.clone(), pool.values.clone()
    data = pool.export_block(3)
    assert data.dtype == np.uint8
    assert data.shape == (2 * 3 * 2 * 8 * 4 * dtype.itemsize,)
    pool.keys[:, 3], pool.values[:, 3] = 0, 0
    pool.import_block(3, data)
    assert torch.equal(pool.keys, keys)
    assert torch.equal(pool.values, values)


def test_an_exported_block_does_not_change_with_the_pool():
    pool = TorchKVPool(1, 2, 1, 4, 4, torch.float32, torch.device("cpu"))
    data = pool.export_block(0)
    pool.keys.fill_(1)
    assert not data.any()


@pytest.mark.parametrize("wrong", [np.zeros(7, np.uint8), np.zeros(64, np.uint8), np.zeros(32, np.float32)])
def test_bytes_that_are_no_block_are_refused(wrong):
    pool = TorchKVPool(1, 2, 1, 4, 4, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="128 bytes"):
        pool.import_block(0, wrong)


def logits_of_last(model: Model, kv, ids: list[int], context: int, blocks: list[int]) -> torch.Tensor:
    new = np.asarray(ids[context:], np.int32)
    batch = Batch(
        new,
        np.arange(context, len(ids), dtype=np.int32),
        (BatchSequence(0, len(new), context, np.asarray(blocks, np.int32)),),
        np.asarray([len(new) - 1], np.int32),
    )
    return torch.from_numpy(model.forward(batch, kv).to_numpy()[0].copy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_goes_on_from_imported_blocks_as_from_its_own(tmp_path, dtype):
    model = load_model(make_tiny("qwen3", tmp_path), device="cpu", dtype=dtype)
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 600, 70)]
    first = model.new_kv_pool(6, 16)
    logits_of_last(model, first, ids[:64], 0, [0, 1, 2, 3])
    expected = logits_of_last(model, first, ids, 64, [0, 1, 2, 3, 4])
    second = model.new_kv_pool(6, 16)
    assert second.layout == first.layout
    for source, target in zip([0, 1, 2, 3], [5, 1, 4, 0], strict=True):
        second.import_block(target, first.export_block(source))
    assert torch.equal(logits_of_last(model, second, ids, 64, [5, 1, 4, 0, 2]), expected)
