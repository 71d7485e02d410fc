"""Gemma 3's configuration: layers with and without a window, two rotary embeddings, and what a block asks for."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig

from tests.models.drive import refusal
from tests.tiny import GEMMA3_ROPE
from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.config import Activation, Feature, LayerAttention, ModelConfig, Rope, RopeScaling
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_gguf, config_from_hf
from tokenline.models.gguf_file import GGUFFile

GEMMA_3_270M = {  # the published config.json, shortened to what matters
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": False,
    "vocab_size": 262144,
}
NEAR, FAR = LayerAttention(Rope(10_000.0), 512), LayerAttention(Rope(1_000_000.0))


def test_gemma_3_270m() -> None:
    config = config_from_hf(GEMMA_3_270M)
    assert config.layers == (NEAR, NEAR, NEAR, NEAR, NEAR, FAR) * 3
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.tied_head) == (4, 1, 256, True)
    assert config.embedding_scale == pytest.approx(25.2982)
    assert config.attention_scale == 1 / 16
    assert config.activation is Activation.GELU_TANH
    assert config.features == {
        Feature.GELU_TANH,
        Feature.ROPE,
        Feature.SEVERAL_ROPES,
        Feature.SLIDING_WINDOW,
        Feature.QK_NORM,
        Feature.POST_NORMS,
        Feature.EMBEDDING_SCALE,
        Feature.QUERY_SCALE,
    }


def as_transformers_has_it(values: dict[str, Any]) -> ModelConfig:
    """Our configuration, from the fields of theirs."""
    theirs = Gemma3TextConfig(**values)
    return config_from_hf({**theirs.to_dict(), "architectures": ["Gemma3ForCausalLM"]})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layer_types": None},
        {"layer_types": None, "_sliding_window_pattern": None, "sliding_window_pattern": 3},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_local_base_freq": None, "rope_theta": None, "sliding_window": 1024, "query_pre_attn_scalar": 168},
        {"rope_theta": None, "rope_local_base_freq": None, "rope_scaling": None, "rope_parameters": GEMMA3_ROPE},
    ],
)
def test_both_spellings(change: dict[str, Any]) -> None:
    """What transformers 5 writes for it says the same."""
    values = {key: value for key, value in {**GEMMA_3_270M, **change}.items() if key not in change or value is not None}
    assert config_from_hf(values) == as_transformers_has_it(values)


def test_absent_fields_are_what_transformers_takes() -> None:
    assert config_from_hf({"architectures": ["Gemma3ForCausalLM"]}) == as_transformers_has_it({})


def test_scaling_is_of_the_layers_that_see_everything() -> None:
    config = config_from_hf({**GEMMA_3_270M, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.layers[:6] == (NEAR,) * 5 + (LayerAttention(Rope(1_000_000.0, RopeScaling("linear", 8.0))),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported; gelu_pytorch_tanh is"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"sliding_window": 0}, "sliding_window must be a positive integer, not 0"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar must be a positive number, not -1"),
        ({"layer_types": ["full_attention"]}, "layer_types must list one type for each of the 18 layers"),
        ({"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern must be a positive integer"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters must hold an object for sliding_attention"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters: full_attention must be an object, not 3"),
        ({"rope_parameters": [1]}, r"rope_parameters must be an object, not \[1\]"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: rope_type 'yarn' is not supported"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration is not supported"),
    ],
)
def test_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=f"^config.json.*: {reason}|^config.json: .*{reason}"):
        config_from_hf({**GEMMA_3_270M, **change})


# GGUF ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    kinds = ["full_attention", *["sliding_attention"] * 6]
    return GGUFFile(
        make_tiny_gguf("gemma3", tmp_path_factory.mktemp("gemma3") / "m.gguf", num_hidden_layers=7, layer_types=kinds)
    )


def slides(file: GGUFFile, **change: Any) -> list[bool]:
    kept = dict(file.metadata)
    file.metadata.update({f"gemma3.{key.replace('__', '.')}": value for key, value in change.items()})
    try:
        return [layer.window is not None for layer in config_from_gguf(file).layers]
    finally:
        file.metadata = kept


def test_gguf_pattern(file: GGUFFile) -> None:
    pattern = "attention__sliding_window_pattern"
    assert slides(file) == [False] + [True] * 6
    assert slides(file, **{pattern: None}) == [True] * 5 + [False, True], "llama.cpp takes every sixth"
    assert slides(file, **{pattern: 2}) == [True, False] * 3 + [True]
    assert slides(file, **{pattern: [True] * 7}) == [True] * 7
    assert slides(file, attention__sliding_window=0) == [False] * 7
    for bad in ([True], [1] * 7, [True] * 6 + [1]):
        assert "must be a number, or a list of true and false" in refusal(
            lambda bad=bad: slides(file, **{pattern: bad})
        )
    assert "must be a positive integer" in refusal(lambda: slides(file, **{pattern: 0}))


def test_gguf_rope(tmp_path: Path) -> None:
    path = make_tiny_gguf("gemma3", tmp_path / "m.gguf")
    file = GGUFFile(path)
    assert config_from_gguf(file).ropes == (Rope(10_000.0), Rope(1_000_000.0))
    file.metadata |= {
        "gemma3.rope.freq_base_swa": 500.0,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }
    assert config_from_gguf(file).ropes == (Rope(500.0), Rope(1_000_000.0, RopeScaling("linear", 8.0)))


def test_gguf_scale_of_the_27b_model(file: GGUFFile) -> None:
    assert config_from_gguf(file).attention_scale == 32**-0.5
    kept = dict(file.metadata)
    file.metadata |= {
        "gemma3.block_count": 62,
        "gemma3.embedding_length": 5376,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.sliding_window_pattern": None,
    }
    assert config_from_gguf(file).attention_scale == 168**-0.5
    file.metadata = kept


def test_gguf_softcapping_is_refused(file: GGUFFile) -> None:
    assert "final_logit_softcapping is not supported" in refusal(lambda: slides(file, final_logit_softcapping=30.0))
