"""config.json and GGUF metadata of Llama-like families: both spellings, windows, and what is refused by name."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.models.drive import Driver, random_ids, refusal
from tests.models.families.test_gemma3 import GEMMA_3_270M
from tests.models.families.test_smollm3 import SMOLLM3_3B
from tests.tiny import LLAMA3_ROPE, make_tiny
from tests.tiny_gguf import llama3_factors, make_tiny_gguf
from tokenline.models.config import Activation, Fields, LayerAttention, ModelConfig, Rope, RopeScaling
from tokenline.models.errors import ModelError
from tokenline.models.families import registry
from tokenline.models.families.family import HF_NAMES, Family, TensorNames
from tokenline.models.families.hf import read_hf, read_rope
from tokenline.models.families.registry import config_from_gguf, config_from_hf
from tokenline.models.gguf_file import GGUFFile
from tokenline.models.load import load_model, read_config

# Published config.json files, shortened to what matters
LLAMA_3_2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
QWEN_2_5 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_3 = {
    **QWEN_2_5,
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def test_llama_3_2() -> None:
    config = config_from_hf(LLAMA_3_2)
    assert (config.family, config.head_dim, config.num_kv_heads, config.tied_head) == ("llama", 64, 8, True)
    assert config.ropes == (Rope(500_000.0, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)),)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm) == (False, False, False, False)
    assert config.layers[0].window is None


def test_qwen() -> None:
    config = config_from_hf(QWEN_2_5)
    assert (config.family, config.head_dim, config.qkv_bias, config.o_bias) == ("qwen2", 64, True, False)
    assert all(layer.window is None for layer in config.layers)
    config = config_from_hf(QWEN_3)
    assert (config.family, config.head_dim, config.qkv_bias, config.qk_norm) == ("qwen3", 128, False, True)


def test_sliding_windows() -> None:
    assert config_from_hf(MISTRAL).layers[31].window == 4096
    assert config_from_hf({**MISTRAL, "sliding_window": None}).layers[31].window is None
    without = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert config_from_hf(without).layers[0].window == 4096  # as transformers reads it
    some = config_from_hf({**QWEN_2_5, "use_sliding_window": True, "sliding_window": 100})
    assert [some.layers[layer].window for layer in (20, 21, 23)] == [None, 100, 100]
    none = config_from_hf({**QWEN_2_5, "use_sliding_window": True, "max_window_layers": 24})
    assert all(layer.window is None for layer in none.layers)
    kinds = ["sliding_attention", "full_attention"] * 12
    named = config_from_hf({**QWEN_2_5, "use_sliding_window": True, "sliding_window": 100, "layer_types": kinds})
    assert [named.layers[layer].window for layer in range(4)] == [100, None, 100, None]
    off = config_from_hf({**QWEN_2_5, "layer_types": ["full_attention"] * 24})
    assert off.layers[0].window is None


def test_both_spellings_of_rope() -> None:
    values = {key: value for key, value in LLAMA_3_2.items() if not key.startswith("rope_")}
    rope = {**LLAMA_3_2["rope_scaling"], "rope_theta": 500000.0}
    assert config_from_hf({**values, "rope_parameters": rope}) == config_from_hf(LLAMA_3_2)
    old = {**values, "rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    new = {**values, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}}
    assert config_from_hf(old) == config_from_hf(new)
    assert config_from_hf(old).ropes == (Rope(500_000.0, RopeScaling("linear", 4.0)),)
    plain = config_from_hf({**values, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})
    assert plain.ropes == (Rope(7.0),)


@pytest.mark.parametrize("rope", [LLAMA3_ROPE, {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}])
def test_scaled_frequencies_as_transformers_has_them(rope: dict[str, Any]) -> None:
    theirs = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=rope)
    expected, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, torch.device("cpu"))
    values = {**LLAMA_3_2, "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": None}
    ours = config_from_hf({**values, "rope_scaling": None, "rope_theta": None, "rope_parameters": rope})
    np.testing.assert_allclose(ours.ropes[0].frequencies(128), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "architecture GemmaForCausalLM is not supported; supported: LlamaFor",
        ),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM is not supported.*Qwen3ForCausalLM"),
        ({"architectures": []}, "architecture not given is not supported"),
        ({"architectures": [["x"]]}, "is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; silu is"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported; default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "rope_scaling: low_freq_factor is missing"),
        ({"rope_scaling": [1]}, "rope_scaling must be one flat object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters must be one flat object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantization_config \(gptq\) is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "2048"}, "hidden_size must be a positive integer, not '2048'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive integer, not -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, not True"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive integer, not 0"),
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5 key-value heads"),
        ({"hidden_size": 2049, "head_dim": None}, "hidden_size 2049 is not a multiple of num_attention_heads 32"),
        ({"head_dim": 63}, "head_dim 63 is odd"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number, not nan"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be at most 1,000, not 1000000000000"),
        ({"vocab_size": 10**5000}, "vocab_size must be at most 2,147,483,647, not a number of more than 128 bits"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, not a number of more than 128 bits"),
        ({"hidden_size": "x" * 10_000}, r"hidden_size must be a positive integer, not 'x{56}\.\.\.$"),
        ({"rope_theta": 0}, "rope_theta must be a positive number, not 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        config_from_hf({**LLAMA_3_2, **change})
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


def test_qwen_layer_types_are_checked() -> None:
    with pytest.raises(ModelError, match="one type for each of the 24 layers"):
        config_from_hf({**QWEN_2_5, "layer_types": ["full_attention"]})
    with pytest.raises(ModelError, match="layer type 'linear_attention' is not supported"):
        config_from_hf({**QWEN_2_5, "layer_types": ["linear_attention"] * 24})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


PUBLISHED = (LLAMA_3_2, QWEN_3, MISTRAL, SMOLLM3_3B, GEMMA_3_270M)
FIELDS = sorted({"rope_parameters", "layer_types", "no_rope_layers"}.union(*PUBLISHED))


@given(key=st.sampled_from(FIELDS), value=JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_field_is_read_or_refused(key: str, value: Any) -> None:
    for base in PUBLISHED:
        assert "\n" not in refusal(partial(config_from_hf, {**base, key: value}))


def test_as_transformers_writes_it(tmp_path: Path) -> None:
    folder = make_tiny("qwen3", tmp_path / "q", attention_bias=True, rope_parameters=LLAMA3_ROPE)
    config, theirs = read_config(folder), AutoConfig.from_pretrained(folder)
    assert config.head_dim == theirs.head_dim == 32
    assert config.vocab_size == theirs.vocab_size == 600
    assert config.ropes == (Rope(10_000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),)
    assert config.qkv_bias
    assert config.o_bias


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\ufeff{}", "[" * 100_000])
def test_broken_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json: (not valid JSON|must be a JSON object)"):
        read_config(tmp_path)


def test_config_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="not valid JSON"):
        read_config(tmp_path)


# GGUF ----------------------------------------------------------------------------------------------------------------


def test_smollm2(smollm2: Path) -> None:
    config = read_config(smollm2)
    assert (config.family, config.num_layers, config.hidden_size, config.intermediate_size) == ("llama", 30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (9, 3, 64, 49152)
    assert (config.max_positions, config.ropes, config.tied_head) == (8192, (Rope(100_000.0),), True)
    assert config.rms_norm_eps == pytest.approx(1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3"])
def test_gguf_says_what_config_json_says(family: str, tmp_path: Path) -> None:
    change: dict[str, Any] = {"no_rope_layer_interval": 4, "num_hidden_layers": 5} if family == "smollm3" else {}
    path = make_tiny_gguf(family, tmp_path / "m.gguf", attention_bias=family != "mistral", **change)
    ours, hf = read_config(path), read_config(path.with_suffix(""))
    assert ours.family == ("llama" if family == "mistral" else hf.family)
    for name in set(ours.__slots__) - {"family", "rms_norm_eps"}:
        assert getattr(ours, name) == getattr(hf, name), name
    assert ours.rms_norm_eps == pytest.approx(hf.rms_norm_eps)


def test_llama3_scaling_from_gguf(tmp_path: Path) -> None:
    path = make_tiny_gguf("llama", tmp_path / "m.gguf", rope_parameters=LLAMA3_ROPE)
    ours, hf = read_config(path), read_config(path.with_suffix(""))
    scaling = ours.ropes[0].scaling
    assert scaling is not None
    assert scaling.factors == pytest.approx(llama3_factors(LLAMA3_ROPE, 16).tolist())
    assert max(scaling.factors) == 8
    np.testing.assert_allclose(ours.ropes[0].frequencies(16), hf.ropes[0].frequencies(16), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "gemma2"}, "architecture gemma2 is not supported; supported: llama, qwen2, qwen3"),
        ({"general.architecture": None}, "architecture not given is not supported"),
        ({"llama.expert_count": 8}, r"mixture of experts \(8 experts\)"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type 'yarn' is not supported; none and linear are"),
        ({"llama.attention.value_length": 8}, "attention.value_length 8 differs from the head size 16"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count 8 differs from the head size 16"),
        ({"llama.feed_forward_length": [96, 96, 128]}, "feed_forward_length must be a positive integer, not"),
        ({"llama.block_count": None}, "block_count is missing"),
        ({"llama.logit_scale": 0.5}, "logit_scale is not supported"),
        ({"split.count": 3}, "one of 3 parts; merge them"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_gguf_refused_by_name(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = GGUFFile(make_tiny_gguf("llama", tmp_path / "m.gguf"))
    file.metadata.update(change)
    with pytest.raises(ModelError, match=reason) as caught:
        config_from_gguf(file)
    assert str(caught.value).startswith("m.gguf: ")


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_gguf_key_is_read_or_refused(tiny_gguf_file: GGUFFile, data: st.DataObject) -> None:
    scalar = st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    keys = sorted({key for key in tiny_gguf_file.metadata if not key.startswith("tokenizer")} | {"split.count"})
    kept = dict(tiny_gguf_file.metadata)
    tiny_gguf_file.metadata[data.draw(st.sampled_from(keys))] = data.draw(scalar | st.lists(scalar, max_size=3))
    try:
        assert "\n" not in refusal(lambda: config_from_gguf(tiny_gguf_file))
    finally:
        tiny_gguf_file.metadata = kept


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny_gguf_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    return GGUFFile(make_tiny_gguf(request.param, tmp_path_factory.mktemp("gguf") / "m.gguf"))


def test_gguf_lists_that_say_the_same_for_every_layer(tmp_path: Path) -> None:
    file = GGUFFile(make_tiny_gguf("llama", tmp_path / "m.gguf"))
    file.metadata["llama.attention.head_count_kv"] = [2, 2, 2]
    assert config_from_gguf(file).num_kv_heads == 2


def test_hf_config_of_any_spelling_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_2))
    assert read_config(tmp_path) == config_from_hf(LLAMA_3_2)


def test_a_new_family_is_one_module_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma's block with Llama's names: no backend has to hear of it."""

    def from_hf(fields: Fields) -> ModelConfig:
        layers = (LayerAttention(read_rope(fields)), LayerAttention(None, 16), LayerAttention(read_rope(fields)))
        return read_hf(fields, "toy", layers, activation=Activation.GELU_TANH, post_norms=True, embedding_scale=2.0)

    names = {**HF_NAMES.layer, "attention_post_norm": "after_attention", "mlp_post_norm": "after_mlp"}
    toy = Family(
        "toy", "ToyForCausalLM", from_hf, None, None, hf_names=TensorNames(HF_NAMES.outer, HF_NAMES.prefix, names)
    )
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, toy))
    folder = make_tiny("llama", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    changed = {"architectures": ["ToyForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
    (folder / "config.json").write_text(json.dumps(config | changed))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(3):
        for name in ("after_attention", "after_mlp"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.full((64,), 0.5)
    save_file(tensors, folder / "model.safetensors")
    ids = random_ids(60)
    exact, near = (Driver(load_model(folder, device="cpu", dtype=dtype)).logits(ids) for dtype in ("float32", "auto"))
    assert (near - exact).norm() < 0.15 * exact.norm()
