"""Weights of both formats: complete, in Hugging Face order, in pieces; and every way of being wrong said by name."""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.drive import Driver, assert_same, random_ids, reference_logits
from tests.tiny import FAMILIES, make_tiny
from tests.tiny_gguf import ARCHITECTURES, make_tiny_gguf, write_gguf
from tokenline.models import weights as weights_module
from tokenline.models.blocks import Blocks
from tokenline.models.errors import ModelError
from tokenline.models.gguf_file import GGUFFile, GGUFTensor
from tokenline.models.load import load_model
from tokenline.models.weights import Checkpoint, GGUFCheckpoint, open_checkpoint

Q = "layers.1.q.weight"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny("llama", tmp_path / "tiny")


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def by_hf_name(weights: Checkpoint) -> dict[str, str]:
    """The roles of the tensors."""
    return {weights.family.hf_names.name(name): name for name in weights.shapes}


def values_of(family: str, name: str, stored: torch.Tensor) -> np.ndarray:
    """What a stored tensor means to a decoder."""
    return stored.numpy() + np.float32(family == "gemma3" and name.endswith("norm.weight"))


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = {name: value for name, value in {**state(folder), **change}.items() if value is not None}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("piece_values", [100, 4 * 1024 * 1024])
@pytest.mark.parametrize(("family", "sharded"), [("qwen3", False), ("qwen3", True), ("gemma3", False)])
def test_safetensors(
    tmp_path: Path, family: str, sharded: bool, piece_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_PIECE_VALUES", piece_values)
    expected = state(make_tiny(family, tmp_path / "one"))
    folder = make_tiny(family, tmp_path / "two", sharded=sharded)
    assert len(list(folder.glob("*.safetensors"))) > 1 or not sharded
    calls: list[tuple[int, int]] = []
    weights = open_checkpoint(folder)
    weights.progress = lambda what, done, total: calls.append((done, total or 0))
    roles = by_hf_name(weights)
    assert roles.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights.read(roles[name]), values_of(family, name, tensor), err_msg=name)
    total = sum(tensor.nbytes for tensor in expected.values())
    assert weights.total_bytes == total
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert len(calls) >= len(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_of_safetensors(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, {name: tensor.to(dtype) for name, tensor in state(folder).items()})
    weights = open_checkpoint(folder)
    assert weights.stored_kind(Q) == {"bfloat16": "BF16", "float16": "F16", "float64": "F64"}[str(dtype)[6:]]
    (_, blocks), *_ = weights.pieces(Q)
    stored = state(folder)[Q_PROJ]
    assert blocks.data.tobytes() == stored.contiguous().view(torch.uint8).numpy().tobytes()
    values = weights.read(Q)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, stored.float().numpy())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("piece_values", [100, 4 * 1024 * 1024])
def test_gguf_in_hugging_face_order(
    tmp_path: Path, family: str, piece_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "_PIECE_VALUES", piece_values)
    path = make_tiny_gguf(family, tmp_path / "m.gguf", attention_bias=family == "llama")
    expected = state(path.with_suffix(""))
    calls: list[tuple[int, int]] = []
    weights = open_checkpoint(path)
    weights.progress = lambda what, done, total: calls.append((done, total or 0))
    roles = by_hf_name(weights)
    assert roles.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights.read(roles[name]), values_of(family, name, tensor), err_msg=name)
    assert calls[-1] == (weights.total_bytes, weights.total_bytes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("piece_values", [100, 4 * 1024 * 1024])
def test_q_k_and_v_in_one_tensor(
    tmp_path: Path, family: str, piece_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `convert_hf_to_gguf.py --fuse-qkv` writes them."""
    monkeypatch.setattr(weights_module, "_PIECE_VALUES", piece_values)
    change = {"attention_bias": True} if family != "mistral" else {}
    apart = open_checkpoint(make_tiny_gguf(family, tmp_path / "apart.gguf", quant="Q8_0", **change))
    fused = open_checkpoint(make_tiny_gguf(family, tmp_path / "m.gguf", quant="Q8_0", fuse_qkv=True, **change))
    assert isinstance(fused, GGUFCheckpoint)
    assert "blk.1.attn_qkv.weight" in fused.file.tensors
    assert "blk.1.attn_q.weight" not in fused.file.tensors
    assert fused.config == apart.config
    for name in apart.shapes:
        assert (fused.stored_bytes(name), fused.stored_kind(name)) == (
            apart.stored_bytes(name),
            apart.stored_kind(name),
        )
        for (start, ours), (other, theirs) in zip(fused.pieces(name), apart.pieces(name), strict=True):
            assert start == other
            np.testing.assert_array_equal(ours.data, theirs.data, err_msg=name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("attn_qkv.weight", (128, 32)), r"blk\.0\.attn_qkv\.weight has shape \[128, 32\], .* asks for \[128, 64\]"),
        (("attn_q.weight", (64, 64)), r"blk\.0\.attn_k\.weight .* is missing"),
        (("attn_qkv.bias", (128,)), r"blk\.1\.attn_q\.bias .* is missing"),
    ],
)
def test_a_wrong_fused_tensor(change: tuple[str, tuple[int, ...]], reason: str, tmp_path: Path) -> None:
    file = GGUFFile(make_tiny_gguf("llama", tmp_path / "m.gguf", fuse_qkv=True))
    name, shape = f"blk.0.{change[0]}", change[1]
    file.tensors[name] = GGUFTensor(name, "F32", shape, 0, 4 * math.prod(shape))
    with pytest.raises(ModelError, match=reason):
        GGUFCheckpoint(file)


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantised_gguf(tmp_path: Path, quant: str) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant=quant)
    kind = gguf.GGMLQuantizationType[quant]
    weights = open_checkpoint(path)
    stored, roles = state(path.with_suffix("")), by_hf_name(weights)
    for name, tensor in stored.items():
        expected = tensor.numpy()
        if tensor.ndim > 1:  # quantisation is row by row, so it does not mind in which order the rows lie
            expected = gguf.dequantize(gguf.quantize(expected, kind), kind)
        np.testing.assert_array_equal(weights.read(roles[name]), expected, err_msg=name)


@pytest.mark.parametrize("piece_values", [100, 4 * 1024 * 1024])
def test_pieces_of_blocks(tmp_path: Path, piece_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as the file has them, in the same order as the values, in pieces that begin where panels do."""
    monkeypatch.setattr(weights_module, "_PIECE_VALUES", piece_values)
    weights = open_checkpoint(make_tiny_gguf("llama", tmp_path / "m.gguf", quant="Q4_1", num_key_value_heads=4))
    for name, shape in weights.shapes.items():
        pieces = list(weights.pieces(name))
        if name.endswith("norm.weight"):
            assert weights.stored_kind(name) == "F32"
            assert [(start, piece.kind, piece.data.shape) for start, piece in pieces] == [(0, "F32", (1, 4 * shape[0]))]
            continue
        assert weights.stored_kind(name) == "Q4_1"
        if piece_values == 100:
            assert [start for start, _ in pieces] == list(range(0, shape[0], 64))
        values = []
        for _, piece in pieces:
            assert isinstance(piece, Blocks)
            assert (piece.kind, piece.columns) == ("Q4_1", shape[1])
            values.append(piece.floats())
        np.testing.assert_array_equal(np.concatenate(values), weights.read(name))


def test_k_quants_through_the_loader(tmp_path: Path) -> None:
    """A matrix of random Q6_K blocks arrives un-permuted like any other."""
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", hidden_size=256, num_hidden_layers=1)
    blocks = np.random.default_rng(0).integers(0, 256, (256, 210), dtype=np.uint8)
    blocks[:, 208:] = np.array([0.01], dtype="<f2").view(np.uint8)
    weights = open_checkpoint(path)
    assert isinstance(weights, GGUFCheckpoint)
    stored = weights.file.tensors["blk.0.attn_q.weight"]
    data = bytearray(path.read_bytes())
    data[stored.offset : stored.offset + blocks.nbytes] = blocks.tobytes()
    # the info of this tensor: its name, 2 dimensions of 8 bytes, then the type
    at = data.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 16
    data[at : at + 4] = int(gguf.GGMLQuantizationType.Q6_K).to_bytes(4, "little")
    path.write_bytes(data)
    values = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q6_K)
    expected = values.reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    np.testing.assert_array_equal(open_checkpoint(path).read("layers.0.q.weight"), expected)


# wrong tensors -------------------------------------------------------------------------------------------------------


def test_missing_tensor(folder: Path) -> None:
    rewrite(folder, {Q_PROJ: None})
    with pytest.raises(
        ModelError, match=r"^tiny: tensor model\.layers\.1\.self_attn\.q_proj\.weight \(shape \[64, 64\]"
    ):
        open_checkpoint(folder)


def test_misshapen_tensor(folder: Path) -> None:
    rewrite(folder, {Q_PROJ: torch.zeros(64, 32)})
    with pytest.raises(ModelError, match=r"q_proj\.weight has shape \[64, 32\], the configuration asks for \[64, 64\]"):
        open_checkpoint(folder)


def test_tensor_without_a_place(folder: Path) -> None:
    rewrite(folder, {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(ModelError, match=r"q_norm\.weight has no place in a llama decoder"):
        open_checkpoint(folder)


def test_harmless_extras(folder: Path) -> None:
    head = state(folder)["model.embed_tokens.weight"].clone()
    rewrite(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": head})
    assert open_checkpoint(folder).config.tied_head


def test_integer_tensor(folder: Path) -> None:
    rewrite(folder, {Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)})
    with pytest.raises(ModelError, match=r"q_proj\.weight is stored as I8; supported: F64, F32, F16, BF16"):
        open_checkpoint(folder)


def test_more_layers_asked_for_than_there_are(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.3\..* is missing"):
        open_checkpoint(folder)


def test_missing_misshapen_and_extra_in_gguf(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tensor.numpy() for name, tensor in state(folder).items()}

    def write(change: dict[str, Any]) -> Path:
        changed = {name: value for name, value in {**tensors, **change}.items() if value is not None}
        return write_gguf(tmp_path / "m.gguf", ARCHITECTURES["llama"], config, changed, folder, "F32")

    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=r"^m\.gguf: tensor blk\.1\.ffn_up\.weight \(shape \[96, 64\]\) is missing"):
        open_checkpoint(write({name: None}))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight has shape \[96, 32\], .* asks for \[96, 64\]"):
        open_checkpoint(write({name: np.zeros((96, 32), dtype=np.float32)}))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.bias has no place"):
        open_checkpoint(write({"model.layers.1.mlp.up_proj.bias": np.zeros(96, dtype=np.float32)}))
    with pytest.raises(ModelError, match=r"token_embd\.weight .* is missing"):
        open_checkpoint(write({"model.embed_tokens.weight": None}))


# wrong files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_safetensors(folder: Path, keep: float) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    with pytest.raises(ModelError, match=r"^model\.safetensors: not a complete safetensors file"):
        open_checkpoint(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor .* pytorch_model\.bin is a pickle"):
        open_checkpoint(folder)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return make_tiny("llama", tmp_path / "tiny", sharded=True)


def test_index_names_a_missing_file(shards: Path) -> None:
    file = sorted(shards.glob("model-*.safetensors"))[1]
    file.unlink()
    with pytest.raises(ModelError, match=rf"{file.name} is missing, which the index names for tensor model\."):
        open_checkpoint(shards)


def test_shard_lacks_a_tensor(shards: Path) -> None:
    file = sorted(shards.glob("model-*.safetensors"))[1]
    tensors = load_file(file)
    gone = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, file)
    with pytest.raises(ModelError, match=f"{file.name} lacks tensor {gone}, which the index says it has"):
        open_checkpoint(shards)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "weight_map must map tensor names to files"),
        ('{"weight_map": {"x": 3}}', "3 is not the name of a file in the same folder"),
        ('{"weight_map": {"x": "../secret.safetensors"}}', "is not the name of a file in the same folder"),
        ('{"weight_map": {"x": "/etc/passwd"}}', "is not the name of a file in the same folder"),
    ],
)
def test_broken_index(shards: Path, index: str, reason: str) -> None:
    (shards / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=reason):
        open_checkpoint(shards)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_a_tied_one(same: bool, dtype: torch.dtype, folder: Path) -> None:
    """Transformers ties them only if they are equal (modeling_utils.py, tie_weights)."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.float() for name, tensor in load_file(file).items() if name != "lm_head.weight"}
    head = tensors["model.embed_tokens.weight"].half().float().clone()
    tensors["model.embed_tokens.weight"] = head.clone()
    head[599, 63] += 0 if same else 1
    save_file({**tensors, "lm_head.weight": head.to(dtype)}, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert open_checkpoint(folder).config.tied_head == same
    ids = random_ids(40)
    ours = Driver(load_model(folder, device="cpu", dtype="float32")).logits(ids)
    assert_same(ours, reference_logits(folder, ids))


def test_a_head_of_another_shape_beside_a_tied_one(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": torch.zeros(500, 64)}, file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight has shape \[500, 64\], .* asks for \[600, 64\]"):
        open_checkpoint(folder)


def test_shapes_name_every_parameter(folder: Path) -> None:
    weights = open_checkpoint(folder)
    assert by_hf_name(weights).keys() == state(folder).keys()
