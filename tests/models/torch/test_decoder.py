"""The decoder agrees with transformers on every family, and with itself however the work is cut."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from tests.models.drive import Driver, Track, assert_same, random_ids, reference_logits
from tests.tiny import GEMMA3_ROPE, LLAMA3_ROPE, make_tiny
from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.gguf_file import GGUFFile
from tokenline.models.load import load_model
from tokenline.models.torch.attention import PLAIN, Attention
from tokenline.models.torch.decoder import TorchDecoder
from tokenline.models.torch.linear import Linear
from tokenline.models.weights import open_checkpoint

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-all-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-sharded": ("llama", {"sharded": True}),
    "mistral": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "smollm3": ("smollm3", {}),
    "smollm3-fourth": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
    "smollm3-windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 20, "attention_bias": True}),
    "gemma3": ("gemma3", {}),
    "gemma3-scaled": ("gemma3", {"rope_parameters": GEMMA3_ROPE, "query_pre_attn_scalar": 20, "attention_bias": True}),
    "gemma3-one-kv-head": ("gemma3", {"num_key_value_heads": 1, "head_dim": 64, "tie_word_embeddings": False}),
}
TEXT = 150  # tokens: several blocks, several windows


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny matrices gain nothing from threads, and lose much where test runs share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    model: Model
    ids: list[int]
    reference: torch.Tensor  # of `ids`, by transformers


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = VARIANTS[request.param]
    folder = make_tiny(family, tmp_path_factory.mktemp(request.param), **overrides)
    ids = random_ids(TEXT)
    return Case(load_model(folder, device="cpu", dtype="float32"), ids, reference_logits(folder, ids))


def test_prefilled_at_once(case: Case) -> None:
    assert len(case.reference.argmax(-1).unique()) > TEXT / 4, "the tiny model must not say the same everywhere"
    assert_same(Driver(case.model).logits(case.ids), case.reference)


def test_prefilled_in_chunks(case: Case) -> None:
    driver, track = Driver(case.model), Track(case.ids)
    for n in (1, 7, 16, 40, 1, 1, 33):
        driver.run((track, n))
    driver.run((track, track.left))
    assert_same(track.all_logits, case.reference)


def test_decoded_token_by_token(case: Case) -> None:
    driver, track = Driver(case.model, block_size=8), Track(case.ids)
    driver.run((track, 90))
    while track.left:
        driver.run((track, 1))
    assert_same(track.all_logits, case.reference)


def test_interleaved_with_others(case: Case) -> None:
    driver = Driver(case.model)
    ours, other, third = Track(case.ids), Track(random_ids(200, seed=1)), Track(random_ids(200, seed=2))
    driver.run((other, 50), (ours, 5))
    driver.run((ours, 1), (other, 1), (third, 3))  # decode rows beside a prefill
    driver.run((third, 90), (ours, 60), (other, 1))
    for _ in range(20):
        driver.run((other, 1), (ours, 1), (third, 1))  # a batch of decode rows with different contexts
    driver.run((other, 30), (ours, ours.left))
    assert_same(ours.all_logits, case.reference)


def test_through_a_shared_prefix(case: Case) -> None:
    driver = Driver(case.model)
    other = Track(case.ids[:77] + random_ids(40, seed=3))  # 4 whole blocks and 13 tokens of a fifth are common
    driver.run((other, len(other.ids)))
    ours = driver.fork(other, case.ids, 77)
    driver.run((ours, 30))
    driver.run((ours, ours.left))
    assert_same(ours.all_logits, case.reference[77:])
    # and the source was not touched by it
    again = driver.fork(other, other.ids, 76)
    driver.run((again, again.left))
    assert_same(again.all_logits, other.all_logits[76:])


def test_only_wanted_rows(case: Case) -> None:
    pool = case.model.new_kv_pool(16, 16)
    rows = np.array([0, 9, TEXT - 1], dtype=np.int32)
    sequence = BatchSequence(0, TEXT, 0, np.arange(16, dtype=np.int32))
    ids, positions = np.array(case.ids, dtype=np.int32), np.arange(TEXT, dtype=np.int32)
    logits = case.model.forward(Batch(ids, positions, (sequence,), rows), pool)
    assert_same(torch.from_numpy(logits.to_numpy()), case.reference[rows])


FROM_GGUF = ["llama", "llama-rope-llama3", "llama-biases", "mistral", "qwen2", "qwen3", "smollm3-fourth", "gemma3"]


@pytest.mark.parametrize("variant", FROM_GGUF)
def test_the_same_from_gguf(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    path = make_tiny_gguf(family, tmp_path / "m.gguf", **overrides)
    ids = random_ids(TEXT)
    ours = Driver(load_model(path, device="cpu", dtype="float32")).logits(ids)
    assert_same(ours, reference_logits(path.with_suffix(""), ids))


@pytest.fixture(scope="module", params=["llama", "qwen2-some-windows"])
def free_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    family, overrides = VARIANTS[request.param]
    folder = make_tiny(family, tmp_path_factory.mktemp(request.param), **overrides)
    return load_model(folder, device="cpu", dtype="float32")


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_cutting_gives_the_same(free_case: Model, data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 8, 16, 32]), "block size")
    driver = Driver(free_case, num_blocks=8 + 240 // block_size, block_size=block_size)
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3), "lengths")
    tracks = [Track(random_ids(length, seed=i)) for i, length in enumerate(lengths)]
    whole = [Driver(free_case).logits(track.ids) for track in tracks]
    while waiting := [track for track in tracks if track.left]:
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=id), "who")
        driver.run(*((track, data.draw(st.integers(1, track.left), "tokens")) for track in chosen))
    for track, logits in zip(tracks, whole, strict=True):
        assert_same(track.all_logits, logits)


def test_nan_of_another_sequence_stays_there(free_case: Model) -> None:
    """Blocks that once held a broken request's NaN do no harm to who holds them next, nor does a neighbour's."""
    driver = Driver(free_case, num_blocks=24)
    ids = random_ids(80)
    expected = driver.logits(ids)
    driver.pool.keys.fill_(float("nan"))  # type: ignore[attr-defined]
    driver.pool.values.fill_(float("nan"))  # type: ignore[attr-defined]
    short, long = Track(ids[:20]), Track(ids)
    driver.run((long, 70), (short, 17))
    for _ in range(3):
        driver.run((long, 1), (short, 1))
    driver.run((long, long.left))
    assert_same(long.all_logits, expected)
    assert_same(short.all_logits, expected[:20])


def test_id_outside_the_vocabulary_is_an_error(free_case: Model) -> None:
    for bad in (-1, 600):
        with pytest.raises(ValueError, match="outside the vocabulary of 600"):
            Driver(free_case).logits([1, bad, 2])


def test_attention_and_matrices_of_another_backend(tmp_path: Path) -> None:
    """They are given to the decoder, which computes with them and knows nothing of what they do."""
    folder, ids = make_tiny("gemma3", tmp_path / "m"), random_ids(60)
    layers: list[int] = []

    def attend_otherwise(q, k, v, pool, layer, plan, scale):  # type: ignore[no-untyped-def]
        layers.append(layer)
        return PLAIN.attend(q * scale * 2, k / 2, v, pool, layer, plan, 1.0)

    class Doubled(Linear):
        def fill(self, start: int, values: torch.Tensor) -> None:
            super().fill(start, values * 2)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) / 2

        def rows(self, ids: torch.Tensor) -> torch.Tensor:
            return super().rows(ids) / 2

        def exact(self, x: torch.Tensor) -> torch.Tensor:
            return super().exact(x) / 2

    def doubled(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Linear:
        return Doubled(torch.empty(rows, columns, dtype=dtype, device=device))

    model = TorchDecoder(
        open_checkpoint(folder),
        device=torch.device("cpu"),
        weight_dtype=torch.float32,
        compute_dtype=torch.float32,
        attention=Attention(PLAIN.plan, attend_otherwise),
        new_linear=doubled,
    )
    assert_same(Driver(model).logits(ids), reference_logits(folder, ids))
    assert layers == [0, 1, 2]


# SmolLM2 itself ------------------------------------------------------------------------------------------------------

SENTENCES = (
    "The lighthouse keeper wrote a letter every evening. In winter the boat came only once a month, so the letters "
    "piled up on the table beside the lamp. What day is it today? 你是助手，今天星期几？ def add(a, b): return a + b. "
    "Photosynthesis is the process by which green plants use sunlight to make food from carbon dioxide and water. "
    "The capital of France is Paris, the capital of Italy is Rome, and the capital of Japan is Tokyo. "
)


def longest_match_ids(tokens: list[str], text: str) -> list[int]:
    """Ids of a text by longest match: not the tokenizer's, but words where words are."""
    spelled = "".join(byte_to_unicode()[byte] for byte in text.encode())
    known = {token: i for i, token in enumerate(tokens)}
    ids, at = [], 0
    while at < len(spelled):
        end = next(end for end in range(min(len(spelled), at + 20), at, -1) if spelled[at:end] in known)
        ids.append(known[spelled[at:end]])
        at = end
    return ids


def byte_to_unicode() -> dict[int, str]:
    """GPT-2's spelling of bytes: printable ones as themselves, the rest from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


@pytest.fixture(scope="module")
def smollm2_case(smollm2: Path) -> Case:
    """Reference: the published config.json, the gguf library's name table and values, transformers' un-permutation; so
    neither configuration nor mapping come from tokenline. (transformers' own GGUF loading takes some ten seconds.)
    """
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            tie_word_embeddings=True,
        )
    )
    file = GGUFFile(smollm2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    unpermute = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    for name, parameter in theirs.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None
        kind = gguf.GGMLQuantizationType[file.tensors[stored].kind]
        values = file.read_blocks(stored)
        values = values.view(np.float32) if kind == gguf.GGMLQuantizationType.F32 else gguf.dequantize(values, kind)
        parameter.data = torch.from_numpy(unpermute.process(weights=values, name=stored).weights)
    theirs.tie_weights()
    ids = longest_match_ids(file.metadata["tokenizer.ggml.tokens"], SENTENCES)
    with torch.no_grad():
        reference = theirs.eval()(torch.tensor([ids])).logits[0]
    return Case(load_model(smollm2, device="cpu", dtype="float32"), ids, reference)


def test_smollm2_in_all_ways(smollm2_case: Case) -> None:
    case = smollm2_case
    driver = Driver(case.model)
    loss = torch.nn.functional.cross_entropy(case.reference[:-1], torch.tensor(case.ids[1:])).item()
    assert loss < 4.5, "the reference must be a model that knows English"
    whole = Track(case.ids)
    driver.run((whole, len(case.ids)))
    assert_same(whole.all_logits, case.reference)
    chunked, other = Track(case.ids), Track(random_ids(100, vocab=49152))
    driver.run((chunked, 30), (other, 60))
    driver.run((chunked, 1), (other, 1))
    driver.run((chunked, chunked.left), (other, 1))
    assert_same(chunked.all_logits, case.reference)
    cached = driver.fork(whole, case.ids, 71)
    driver.run((cached, cached.left))
    assert_same(cached.all_logits, case.reference[71:])


@pytest.mark.parametrize(("dtype", "agreement", "divergence"), [("bfloat16", 0.97, 0.002), ("int8", 0.9, 0.03)])
def test_smollm2_in_fewer_bits(smollm2_case: Case, smollm2: Path, dtype: str, agreement: float, divergence: float):
    model = load_model(smollm2, device="cpu", dtype=dtype)
    driver = Driver(model)
    track = Track(smollm2_case.ids)
    driver.run((track, 40))
    for _ in range(5):
        driver.run((track, 1))  # the path of few rows
    driver.run((track, track.left))
    ours, reference = track.all_logits, smollm2_case.reference
    assert (ours.argmax(-1) == reference.argmax(-1)).float().mean().item() >= agreement
    kl = torch.nn.functional.kl_div(
        ours.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    assert kl.item() < divergence
