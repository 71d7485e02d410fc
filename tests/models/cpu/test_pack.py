"""Packing moves weights and changes nothing but what quantising must change."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.cpu.emulate import unpack
from tests.tiny import make_tiny, scale_tensors
from tests.tiny_gguf import make_tiny_gguf, quantize_q4_k
from tokenline.models import weights as weights_module
from tokenline.models.blocks import Blocks, dequantize_blocks
from tokenline.models.cpu import pack
from tokenline.models.cpu.linear import Q4, Q8
from tokenline.models.cpu.pack import ScaleError, pack_q8, pack_rows, pack_tensor, pack_together
from tokenline.models.cpu.quantise import quantise_q8
from tokenline.models.errors import ModelError
from tokenline.models.weights import EMBEDDING, open_checkpoint

GATE = "layers.0.gate.weight"


@pytest.mark.parametrize("rows", [64, 192, 100, 1])
@pytest.mark.parametrize(("stored", "kind"), [("Q4_0", Q4), ("Q4_1", Q4), ("Q5_0", Q8), ("Q8_0", Q8)])
def test_gguf_blocks_keep_their_exact_values(rows: int, stored: str, kind: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType[stored])
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[stored])
    packed = pack_rows(Blocks(stored, data, 96), kind)
    assert packed.kind == kind
    assert (packed.rows, packed.columns) == (rows, 96)
    # Q4_1's product and sum are rounded once in float32 by either
    assert torch.allclose(unpack(packed), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [64, 100])
@pytest.mark.parametrize("made", ["from values", "at random"])
def test_q4_k_keeps_its_values_up_to_float16(rows: int, made: str) -> None:
    random = np.random.default_rng(rows)
    if made == "from values":
        raw = quantize_q4_k(random.standard_normal((rows, 512)).astype(np.float32))
    else:  # every bit pattern of scales and minima
        raw = random.integers(0, 256, (rows, 2, 144), dtype=np.uint8)
        raw[:, :, :4] = random.uniform(-0.1, 0.1, (rows, 2, 2)).astype(np.float16).view(np.uint8)
        raw = raw.reshape(rows, -1)
    expected = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K))
    packed = pack_rows(Blocks("Q4_K", raw, 512), Q4)
    assert packed.kind == Q4
    parts = raw.reshape(rows, 2, 144)
    units = np.abs(parts[:, :, :4].copy().view(np.float16).astype(np.float32))
    # at most 63 units times 15, and 63 units, each rounded to one of 2,048 steps of its size
    bound = (units[:, :, 0] * 63 * 15 + units[:, :, 1] * 63) / 2048
    error = (unpack(packed) - expected).abs().reshape(rows, 2, 256).amax(2).numpy()
    assert np.all(error <= bound)
    assert (unpack(packed) - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q5_1", "Q5_0", "Q8_0"])
def test_blocks_as_int8(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((70, 256)).astype(np.float32)
    quantisation = gguf.GGMLQuantizationType[kind]
    data = quantize_q4_k(values) if kind == "Q4_K" else gguf.quantize(values, quantisation)
    packed = pack_rows(Blocks(kind, data, 256), Q8)
    expected = torch.from_numpy(gguf.dequantize(data, quantisation))
    assert packed.kind == Q8
    assert (unpack(packed) - expected).abs().max() <= expected.abs().max() / 127 * 0.51


@pytest.mark.parametrize("quant", ["F16", "Q4_K", "Q5_1", "Q8_0"])
def test_a_matrix_is_packed_in_pieces(quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant=quant, hidden_size=256, intermediate_size=512)
    weights = open_checkpoint(path)
    names = [name for name, shape in weights.shapes.items() if len(shape) == 2]
    whole = [pack_tensor(weights, name) for name in names]
    monkeypatch.setattr(weights_module, "_PIECE_VALUES", 200 * 256)
    monkeypatch.setattr(pack, "_CHUNK_VALUES", 100 * 256)
    for name, expected in zip(names, whole, strict=True):
        assert len(list(weights.pieces(name))) > 1 or weights.shapes[name][0] <= 256
        packed = pack_tensor(weights, name)
        assert (packed.kind, packed.rows, packed.columns) == (expected.kind, expected.rows, expected.columns)
        assert np.array_equal(packed.data[:-1], expected.data[:-1])
        assert torch.equal(unpack(packed), unpack(expected)), name
        if quant != "F16":
            assert np.linalg.norm(unpack(packed).numpy() - weights.read(name)) < 0.01 * np.linalg.norm(
                weights.read(name)
            )


@pytest.mark.parametrize("std", [0.1, 1e-5, 1e-6, 1e-9, 1e-20, 1e-35])
def test_a_matrix_of_very_small_values_keeps_its_precision(std: float, tmp_path: Path) -> None:
    """float16 has 6e-8 as its smallest number, a group of 32 such values a scale of 1 / 127 of the largest."""
    checkpoint = open_checkpoint(scale_tensors(make_tiny("llama", tmp_path / "m"), {"mlp.gate_proj": 5 * std}))
    expected = torch.from_numpy(checkpoint.read(GATE)).double()
    packed = pack_tensor(checkpoint, GATE)
    assert (packed.shift > 0) == (std < 0.1)
    error = (unpack(packed).double() - expected).norm() / expected.norm()
    assert error < 0.01


def test_matrices_that_share_their_inputs_share_the_shift(tmp_path: Path) -> None:
    factors = {"q_proj": 1e-6, "k_proj": 1e-8, "v_proj": 0.0}
    checkpoint = open_checkpoint(scale_tensors(make_tiny("llama", tmp_path / "m"), factors))
    names = [f"layers.0.{part}.weight" for part in "qkv"]
    with ThreadPoolExecutor(1) as threads:
        q, k, v = pack_together(checkpoint, names, threads)
        assert q.shift == k.shift == v.shift > 20
        for packed, name in ((q, names[0]), (k, names[1])):
            expected = checkpoint.read(name)
            assert np.linalg.norm(unpack(packed).numpy() - expected) < 0.01 * np.linalg.norm(expected)
        assert not unpack(v).any()
        assert {packed.shift for packed in pack_together(checkpoint, [GATE, names[2]], threads)} == {0}


def test_a_large_matrix_beside_a_small_one_is_still_carried(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(scale_tensors(make_tiny("llama", tmp_path / "m"), {"q_proj": 1e5, "k_proj": 1e-9}))
    names = [f"layers.0.{part}.weight" for part in "qk"]
    with ThreadPoolExecutor(1) as threads:
        q, k = pack_together(checkpoint, names, threads)
    assert q.shift == k.shift
    expected = checkpoint.read(names[0])
    assert np.linalg.norm(unpack(q).numpy() - expected) < 0.01 * np.linalg.norm(expected)


def _with_blocks(path: Path, name: str, blocks: np.ndarray) -> Path:
    """The same file with other blocks for one tensor."""
    weights = open_checkpoint(path)
    assert isinstance(weights, weights_module.GGUFCheckpoint)
    tensor = weights.file.tensors[weights.file_name(name)]
    assert blocks.nbytes == tensor.num_bytes
    data = bytearray(path.read_bytes())
    data[tensor.offset : tensor.offset + tensor.num_bytes] = blocks.tobytes()
    path.write_bytes(data)
    return path


def test_q4_k_that_float16_cannot_scale_becomes_int8(tmp_path: Path) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant="Q4_K", hidden_size=256, intermediate_size=256)
    raw = quantize_q4_k(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32))
    raw.reshape(256, 144)[200, :4] = np.array([2000, 100], np.float16).view(np.uint8)  # times 63 is beyond 65,504
    weights = open_checkpoint(_with_blocks(path, GATE, raw))
    with pytest.raises(ScaleError):
        pack_rows(Blocks("Q4_K", raw, 256), Q4)
    packed = pack_tensor(weights, GATE)
    assert packed.kind == Q8
    expected = torch.from_numpy(dequantize_blocks(raw, "Q4_K"))
    largest = expected.unflatten(1, (-1, 32)).abs().amax(2).repeat_interleave(32, 1)
    assert torch.all((unpack(packed) - expected).abs() <= largest / 127 * 0.56)
    assert pack_tensor(weights, EMBEDDING).kind == Q4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e9])
def test_values_that_int8_cannot_carry_are_refused_by_name(bad: float, tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    stored = "model.layers.0.mlp.gate_proj.weight"
    tensors[stored][70, 3] = bad
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"tensor {stored} holds values that are not finite or beyond 8 million"):
        pack_tensor(open_checkpoint(folder), GATE)
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant="Q4_0")
    blocks = gguf.quantize(np.ones((96, 64), np.float32), gguf.GGMLQuantizationType.Q4_0)
    blocks[90, :2] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(ModelError, match=r"m\.gguf: tensor blk\.0\.ffn_gate\.weight holds values"):
        pack_tensor(open_checkpoint(_with_blocks(path, GATE, blocks)), GATE)


@pytest.mark.parametrize("columns", [32, 96, 72, 5])
def test_floats_are_rounded_to_the_nearest_of_255_steps(columns: int) -> None:
    sizes = 10.0 ** np.arange(-3, 127)[:, None].clip(-3, 3)
    values = (np.random.default_rng(1).standard_normal((130, columns)) * sizes).astype(np.float32)
    q, scale = quantise_q8(values)
    result = unpack(pack_q8(q, scale, columns)).numpy()
    assert result.shape == values.shape
    step = np.repeat(scale.astype(np.float32), 32, axis=1)[:, :columns]
    assert np.all(np.abs(result - values) <= 0.56 * step)  # half a step, and what rounding the scale to float16 costs


def test_zeros_stay_zeros() -> None:
    q, scale = quantise_q8(np.zeros((3, 64), np.float32))
    assert not unpack(pack_q8(q, scale, 64)).any()
