"""The CPU kernels compute what they should, and the same bits however the work is cut, batched or threaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.cpu.emulate import MAX_ERROR, MIN_EQUAL, emulated_logits
from tests.models.drive import Driver, Track, random_ids
from tests.tiny import GEMMA3_ROPE, LLAMA3_ROPE, make_tiny, scale_tensors
from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.base import Batch, BatchSequence
from tokenline.models.cpu.model import CPU_KERNELS, CPUModel
from tokenline.models.errors import ModelError
from tokenline.models.load import load_model
from tokenline.models.weights import open_checkpoint

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-all-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 48}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-odd-widths": ("llama", {"hidden_size": 80, "intermediate_size": 100, "head_dim": 16, "vocab_size": 601}),
    "mistral": ("mistral", {}),
    "mistral-wide-heads": ("mistral", {"sliding_window": None, "head_dim": 128}),
    "qwen2": ("qwen2", {}),
    "qwen2-some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False, "head_dim": 80}),
    "smollm3": ("smollm3", {}),
    "smollm3-windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 20, "attention_bias": True}),
    "gemma3": ("gemma3", {}),
    "gemma3-scaled": ("gemma3", {"rope_parameters": GEMMA3_ROPE, "query_pre_attn_scalar": 20, "attention_bias": True}),
    "gemma3-270m-heads": ("gemma3", {"num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256}),
    "gemma3-odd-widths": ("gemma3", {"hidden_size": 80, "intermediate_size": 100, "vocab_size": 601}),
}
TEXT = 300  # tokens: more than one span of attention, many windows


@dataclass(frozen=True)
class Case:
    folder: Path
    model: CPUModel
    ids: list[int]
    logits: torch.Tensor  # of `ids`, prefilled at once


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = VARIANTS[request.param]
    folder = make_tiny(family, tmp_path_factory.mktemp(request.param), **overrides)
    model = CPUModel(open_checkpoint(folder), threads=2)
    ids = random_ids(TEXT)
    return Case(folder, model, ids, Driver(model).logits(ids))


def test_agrees_with_the_same_roundings_in_pytorch(case: Case) -> None:
    expected = emulated_logits(open_checkpoint(case.folder), case.ids)
    error = (case.logits - expected).pow(2).mean().sqrt() / expected.std()
    assert error < MAX_ERROR
    assert (case.logits.argmax(-1) == expected.argmax(-1)).float().mean() > MIN_EQUAL


def test_near_the_float32_reference(case: Case) -> None:
    reference = Driver(load_model(case.folder, device="cpu", dtype="float32"), block_size=16).logits(case.ids)
    assert len(reference.argmax(-1).unique()) > TEXT / 5, "the tiny model must not say the same everywhere"
    error = (case.logits - reference).pow(2).mean().sqrt() / reference.std()
    assert error < 0.15  # random weights spread a rounding more than trained ones


def test_chunks_give_the_same_bits(case: Case) -> None:
    driver, track = Driver(case.model), Track(case.ids)
    for n in (1, 7, 16, 40, 1, 1, 33, 64, 1, 30, 31):
        driver.run((track, n))
    driver.run((track, track.left))
    assert torch.equal(track.all_logits, case.logits)


def test_decoding_gives_the_same_bits(case: Case) -> None:
    driver, track = Driver(case.model, block_size=32), Track(case.ids)
    driver.run((track, 230))
    while track.left:
        driver.run((track, 1))
    assert torch.equal(track.all_logits, case.logits)


def test_strangers_in_the_batch_change_no_bit(case: Case) -> None:
    driver = Driver(case.model, num_blocks=128)
    ours, other, third = Track(case.ids), Track(random_ids(200, seed=1)), Track(random_ids(200, seed=2))
    driver.run((other, 50), (ours, 5))
    driver.run((ours, 1), (other, 1), (third, 3))  # decode rows beside a prefill
    driver.run((third, 90), (ours, 60), (other, 1))
    for _ in range(10):
        driver.run((other, 1), (ours, 1), (third, 1))
    driver.run((other, 30), (ours, ours.left))
    assert torch.equal(ours.all_logits, case.logits)


def test_a_shared_prefix_gives_the_same_bits(case: Case) -> None:
    driver = Driver(case.model)
    other = Track(case.ids[:77] + random_ids(40, seed=3))  # 4 whole blocks and 13 tokens of a fifth are common
    driver.run((other, len(other.ids)))
    ours = driver.fork(other, case.ids, 77)
    driver.run((ours, 30))
    driver.run((ours, ours.left))
    assert torch.equal(ours.all_logits, case.logits[77:])
    again = driver.fork(other, other.ids, 76)  # and the source was not touched by it
    driver.run((again, again.left))
    assert torch.equal(again.all_logits, other.all_logits[76:])


def test_any_number_of_threads_gives_the_same_bits(case: Case) -> None:
    for threads in (1, 3):
        model = CPUModel(open_checkpoint(case.folder), threads=threads)
        driver, track = Driver(model), Track(case.ids)
        for n in (1, 5, 200):
            driver.run((track, n))
        driver.run((track, track.left))
        assert torch.equal(track.all_logits, case.logits)


@pytest.mark.parametrize("tied", [True, False])
def test_very_small_matrices_are_no_zeros(tied: bool, tmp_path: Path) -> None:
    """What is added to the residual stream, and what a norm follows, may all be smaller: the model stays the same."""
    change: dict[str, Any] = {"rms_norm_eps": 1e-30, "tie_word_embeddings": tied}
    folder = make_tiny("llama", tmp_path / "m", **change)
    ids = random_ids(40)
    usual = Driver(CPUModel(open_checkpoint(folder), threads=2)).logits(ids)
    small = {"embed_tokens": 1e-6, "o_proj": 1e-6, "up_proj": 1e-6} | ({} if tied else {"lm_head": 1e-6})
    model = CPUModel(open_checkpoint(scale_tensors(folder, small)), threads=2)
    logits = Driver(model).logits(ids)
    assert (logits * 1e6 - usual).pow(2).mean().sqrt() / usual.std() < 0.05
    driver, track = Driver(model), Track(ids)
    for n in (30, *[1] * 10):
        driver.run((track, n))
    assert torch.equal(track.all_logits, logits)


@pytest.mark.parametrize("rows", [[0, 9, TEXT - 1], [TEXT - 1], [*range(60, 200)], []])
def test_only_wanted_rows(case: Case, rows: list[int]) -> None:
    pool = case.model.new_kv_pool(32, 16)
    table = np.arange(32, dtype=np.int32)
    ids, positions = np.array([*case.ids, 5], dtype=np.int32), np.arange(TEXT + 1, dtype=np.int32)
    batch = Batch(ids[:-1], positions[:-1], (BatchSequence(0, TEXT, 0, table),), np.array(rows, dtype=np.int32))
    assert torch.equal(torch.from_numpy(case.model.forward(batch, pool).to_numpy()), case.logits[rows])
    # what was not wanted has left its keys and values all the same
    following = Batch(ids[-1:], positions[-1:], (BatchSequence(0, 1, TEXT, table),), np.zeros(1, dtype=np.int32))
    logits = torch.from_numpy(case.model.forward(following, pool).to_numpy().copy())
    assert torch.equal(logits, Driver(case.model).logits(ids.tolist())[-1:])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> CPUModel:
    return CPUModel(open_checkpoint(make_tiny("llama", tmp_path_factory.mktemp("llama"))), threads=2)


@pytest.fixture(scope="module", params=["llama", "gemma3", "smollm3"])
def block(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CPUModel:
    """One model for each kind of block: plain; norms on both sides, GeGLU and two rotary embeddings; some without."""
    folder = make_tiny(request.param, tmp_path_factory.mktemp(request.param))
    return CPUModel(open_checkpoint(folder), threads=2)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_cutting_gives_the_same_bits(block: CPUModel, data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([16, 32, 48, 64]), "block size")
    driver = Driver(block, num_blocks=80, block_size=block_size)
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=4), "lengths")
    tracks = [Track(random_ids(length, seed=i)) for i, length in enumerate(lengths)]
    whole = [Driver(block).logits(track.ids) for track in tracks]
    while waiting := [track for track in tracks if track.left]:
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=id), "who")
        driver.run(*((track, data.draw(st.integers(1, track.left), "tokens")) for track in chosen))
    for track, logits in zip(tracks, whole, strict=True):
        assert torch.equal(track.all_logits, logits)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_spans_behind_a_window(family: str, tmp_path: Path) -> None:
    """A context of three spans of keys, of which the window leaves one or two: the same bits by every path."""
    checkpoint = open_checkpoint(make_tiny(family, tmp_path / "m", sliding_window=600))
    ids = random_ids(1300)
    for threads in (1, 2):
        model = CPUModel(checkpoint, threads=threads)
        whole = Driver(model, num_blocks=128).logits(ids)
        driver, track = Driver(model, num_blocks=128), Track(ids)
        for n in (500, 20, 590, 1, 1, 15, 30, 100):
            driver.run((track, n))
        while track.left:
            driver.run((track, 1))
        assert torch.equal(track.all_logits, whole)
    expected = emulated_logits(checkpoint, ids)
    assert (whole - expected).pow(2).mean().sqrt() / expected.std() < MAX_ERROR


FOURTH = {"num_hidden_layers": 5, "no_rope_layer_interval": 4}


@pytest.mark.parametrize(("family", "layers"), [("smollm3", FOURTH), ("gemma3", {})])
def test_blocks_of_every_kind_from_gguf(family: str, layers: dict[str, Any], tmp_path: Path) -> None:
    path = make_tiny_gguf(family, tmp_path / "m.gguf", quant="Q8_0", **layers)
    ids = random_ids(60)
    ours = Driver(CPUModel(open_checkpoint(path), threads=1)).logits(ids)
    reference = Driver(load_model(path, device="cpu", dtype="float32")).logits(ids)
    assert (ours - reference).pow(2).mean().sqrt() / reference.std() < 0.15


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_gguf_formats(kind: str, tmp_path: Path) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", quant=kind)
    ids = random_ids(60)
    ours = Driver(CPUModel(open_checkpoint(path), threads=1)).logits(ids)
    expected = emulated_logits(open_checkpoint(path), ids)
    assert (ours - expected).pow(2).mean().sqrt() / expected.std() < MAX_ERROR
    reference = Driver(load_model(path, device="cpu", dtype="float32")).logits(ids)
    assert (ours - reference).pow(2).mean().sqrt() / reference.std() < 0.15


def test_a_broken_sequence_harms_no_other(llama: CPUModel) -> None:
    """A sequence whose values overflow leaves nothing in its blocks that reaches who holds them next."""
    driver = Driver(llama)
    ids = random_ids(80)
    expected = driver.logits(ids)
    norms = next(array for array in llama._kept if array.ctypes.data == llama._weights.norms)
    kept = norms.copy()
    norms[:] = np.nan
    driver.logits(random_ids(500, seed=5))
    norms[:] = kept
    assert np.isfinite((driver.pool.keys.astype(np.uint32) << 16).view(np.float32)).all()  # type: ignore[attr-defined]
    assert np.isfinite((driver.pool.values.astype(np.uint32) << 16).view(np.float32)).all()  # type: ignore[attr-defined]
    assert torch.equal(driver.logits(ids), expected)


def test_id_outside_the_vocabulary_is_an_error(llama: CPUModel) -> None:
    for bad in (-1, 600):
        with pytest.raises(ValueError, match="outside the vocabulary of 600"):
            Driver(llama).logits([1, bad, 2])


def test_what_it_cannot_run_is_refused(tmp_path: Path, llama: CPUModel) -> None:
    folder = make_tiny("llama", tmp_path, head_dim=8)
    assert "head_dim of 8" in (CPU_KERNELS.why_not(open_checkpoint(folder).config) or "")
    for block_size in (0, 8, 17):
        with pytest.raises(ModelError, match="multiple of 16"):
            llama.new_kv_pool(4, block_size)


def test_the_default_model_is_near_its_float32_self(smollm2: Path) -> None:
    model, ids = CPUModel(open_checkpoint(smollm2), threads=1), random_ids(120, vocab=49152)
    reference = Driver(load_model(smollm2, device="cpu", dtype="float32")).logits(ids)
    ours = Driver(model).logits(ids)
    assert model.kv_bytes_per_token() == 30 * 3 * 64 * 4
    assert (ours - reference).pow(2).mean().sqrt() / reference.std() < 0.15
    assert (ours.argmax(-1) == reference.argmax(-1)).float().mean() > 0.85
