"""Packing moves weights and changes nothing but what quantising must change."""

import gguf
import numpy as np
import pytest
import torch

from tests.models.cpu.emulate import unpack
from tokenline.models.cpu.linear import Q4, Q8
from tokenline.models.cpu.pack import pack_blocks, pack_q8, quantise_q8
from tokenline.models.weights import Blocks


@pytest.mark.parametrize("rows", [64, 192, 100, 1])
@pytest.mark.parametrize(("kind", "packed_kind"), [("Q4_0", Q4), ("Q4_1", Q4), ("Q8_0", Q8)])
def test_gguf_blocks_keep_their_exact_values(rows: int, kind: str, packed_kind: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    packed = pack_blocks(Blocks(kind, data, 96))
    assert packed.kind == packed_kind
    assert (packed.rows, packed.columns) == (rows, 96)
    # Q4_1's product and sum are rounded once in float32 by either
    assert torch.allclose(unpack(packed), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)


def test_other_blocks_become_int8() -> None:
    values = np.random.default_rng(0).standard_normal((70, 256)).astype(np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType.Q5_0)
    packed = pack_blocks(Blocks("Q5_0", data, 256))
    expected = torch.from_numpy(gguf.dequantize(data, gguf.GGMLQuantizationType.Q5_0))
    assert packed.kind == Q8
    assert (unpack(packed) - expected).abs().max() <= expected.abs().max() / 127 * 0.51


@pytest.mark.parametrize("columns", [32, 96, 72, 5])
def test_floats_are_rounded_to_the_nearest_of_255_steps(columns: int) -> None:
    values = np.random.default_rng(1).standard_normal((130, columns)).astype(np.float32) * 10.0 ** np.arange(-3, 127)[
        :, None
    ].clip(-3, 3)
    q, scale = quantise_q8(values)
    result = unpack(pack_q8(q, scale, columns)).numpy()
    assert result.shape == values.shape
    step = np.repeat(scale.astype(np.float32), 32, axis=1)[:, :columns]
    assert np.all(np.abs(result - values) <= 0.56 * step)  # half a step, and what rounding the scale to float16 costs


def test_zeros_stay_zeros() -> None:
    q, scale = quantise_q8(np.zeros((3, 64), np.float32))
    assert not unpack(pack_q8(q, scale, 64)).any()
