"""Every metadata key of GGUF is honoured as llama.cpp does, refused by name, or not read by llama.cpp for these
architectures either. The list of all keys is that of gguf-py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.config import LayerAttention, ModelConfig, Rope, RopeScaling
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_gguf
from tokenline.models.gguf_file import GGUFFile

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "gemma3")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GGUFFile]:
    folder = tmp_path_factory.mktemp("gguf")
    return {arch: GGUFFile(make_tiny_gguf(arch, folder / f"{arch}.gguf")) for arch in ARCHITECTURES}


def read(file: GGUFFile, changes: dict[str, Any]) -> ModelConfig:
    """The configuration with these metadata keys changed; None: absent."""
    kept = dict(file.metadata)
    arch = kept["general.architecture"]
    try:
        for key, value in changes.items():
            file.metadata[key.replace("{arch}", arch)] = value
        return config_from_gguf(file)
    finally:
        file.metadata = kept


def scaled(config: ModelConfig, factor: float) -> ModelConfig:
    """The same with a linear factor on the rotary embedding of the layers without a window."""

    def layer(old: LayerAttention) -> LayerAttention:
        if old.rope is None or (config.family == "gemma3_text" and old.window):
            return old
        return LayerAttention(Rope(old.rope.theta, RopeScaling("linear", factor)), old.window)

    return replace(config, layers=tuple(map(layer, config.layers)))


FACTOR, OLD_FACTOR, TYPE = "{arch}.rope.scaling.factor", "{arch}.rope.scale_linear", "{arch}.rope.scaling.type"


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, None),
        ({TYPE: "linear", FACTOR: 4.0}, 4.0),
        ({FACTOR: 4.0}, 4.0),  # linear is the default
        ({OLD_FACTOR: 4.0}, 4.0),
        ({TYPE: "linear", OLD_FACTOR: 4.0}, 4.0),
        ({FACTOR: 2.0, OLD_FACTOR: 4.0}, 2.0),
        ({FACTOR: 0.0}, None),
        ({FACTOR: 0.0, OLD_FACTOR: 4.0}, None),  # the new key is there
        ({FACTOR: 1.0}, None),
        ({TYPE: "none", FACTOR: 4.0}, None),
    ],
)
def test_rope_scaling(arch: str, changes: dict[str, Any], factor: float | None, files: dict[str, GGUFFile]) -> None:
    plain = read(files[arch], {})
    assert read(files[arch], changes) == (scaled(plain, factor) if factor else plain)


def test_scaling_beside_factors_of_its_own(tmp_path: Path, files: dict[str, GGUFFile]) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"rope_theta": 1e4, "original_max_position_embeddings": 64}
    file = GGUFFile(make_tiny_gguf("llama", tmp_path / "m.gguf", rope_parameters=rope))
    plain, twice = read(file, {}), read(file, {FACTOR: 2.0})
    np.testing.assert_allclose(twice.ropes[0].frequencies(16) * 2, plain.ropes[0].frequencies(16), rtol=1e-6)


# What each key must do, with a value that asks for something: another configuration, or a refusal
HONOURED: dict[str, Any] = {
    "{arch}.context_length": 77,
    "{arch}.feed_forward_length": 128,
    "{arch}.block_count": 2,
    "{arch}.embedding_length": 128,
    "{arch}.attention.head_count": 8,
    "{arch}.attention.head_count_kv": 1,
    "{arch}.attention.layer_norm_rms_epsilon": 0.5,
    "{arch}.rope.freq_base": 77.0,
    FACTOR: 4.0,
}
REFUSED: dict[str, tuple[Any, str]] = {
    "general.type": ("adapter", "general.type is 'adapter': this file is not a whole model"),
    "general.architecture": ("gemma2", "architecture gemma2 is not supported"),
    "split.count": (3, "one of 3 parts"),
    TYPE: ("yarn", "rope.scaling.type 'yarn' is not supported; none and linear are"),
    "{arch}.attention.key_length": (18, "differs from the head size 18"),
    "{arch}.attention.value_length": (18, "attention.value_length 18 differs from the head size"),
    "{arch}.attention.key_length_swa": (18, "attention.key_length_swa 18 differs from the head size"),
    "{arch}.attention.value_length_swa": (18, "attention.value_length_swa 18 differs from the head size"),
    "{arch}.rope.dimension_count": (8, "rope.dimension_count 8 differs from the head size"),
    "{arch}.rope.dimension_count_swa": (8, "rope.dimension_count_swa 8 differs from the head size"),
    "{arch}.embedding_length_out": (32, "embedding_length_out 32 differs from embedding_length 64"),
    "{arch}.expert_count": (8, r"mixture of experts \(8 experts\) is not supported"),
    "{arch}.attention.causal": (False, "attention.causal is not supported"),
}
REFUSED |= {
    f"{{arch}}.{key}": (value, f"{key} is not supported")
    for key, value in {
        "attention.scale": 0.5,
        "attention.output_scale": 0.5,
        "attention.temperature_scale": 0.5,
        "attention.clamp_kqv": 8.0,
        "attention.max_alibi_bias": 8.0,
        "attention.shared_kv_layers": 1,
        "logit_scale": 0.5,
        "embedding_scale": 12.0,
        "residual_scale": 0.5,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "expert_used_count": 2,
        "nextn_predict_layers": 1,
        "use_parallel_residual": True,
        "rope.scaling.attn_factor": 0.5,
        "rope.scaling.alpha": 1000.0,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "rope.scaling.yarn_ext_factor": 1.0,
        "rope.scaling.yarn_attn_factor": 0.5,
    }.items()
}
GEMMA3_ONLY: dict[str, Any] = {
    "{arch}.rope.freq_base_swa": 77.0,
    "{arch}.attention.sliding_window_pattern": 3,
    "{arch}.attention.sliding_window": 9,
}
READ_ELSEWHERE = {"{arch}.vocab_size"}  # where the file has no embedding, and then it is refused
NOT_READ = {  # by llama.cpp for these architectures, or it changes nothing of what is computed
    *("{arch}.rope.scaling.original_context_length", "{arch}.rope.scaling.finetuned"),  # of yarn
    *("{arch}.rope.scaling.yarn_beta_fast", "{arch}.rope.scaling.yarn_beta_slow"),
    *("{arch}.tensor_data_layout", "{arch}.pooling_type"),
    # other architectures: encoders, mixtures of experts, state spaces, vision
    *("{arch}.features_length", "{arch}.leading_dense_block_count", "{arch}.expert_feed_forward_length"),
    *("{arch}.expert_shared_feed_forward_length", "{arch}.expert_chunk_feed_forward_length"),
    *("{arch}.expert_shared_count", "{arch}.expert_group_count", "{arch}.expert_group_used_count"),
    *("{arch}.expert_weights_scale", "{arch}.expert_weights_norm", "{arch}.expert_gating_func"),
    *("{arch}.expert_group_scale", "{arch}.experts_per_group", "{arch}.moe_every_n_layers", "{arch}.moe_latent_size"),
    *("{arch}.n_deepstack_layers", "{arch}.decoder_start_token_id", "{arch}.decoder_block_count"),
    *("{arch}.router_logit_softcapping", "{arch}.swin_norm", "{arch}.rescale_every_n_layers"),
    *("{arch}.time_mix_extra_dim", "{arch}.time_decay_extra_dim", "{arch}.token_shift_count"),
    *("{arch}.interleave_moe_layer_step", "{arch}.full_attention_interval", "{arch}.activation_sparsity_scale"),
    *("{arch}.altup.active_idx", "{arch}.altup.num_inputs", "{arch}.embedding_length_per_layer_input"),
    *("{arch}.swiglu_clamp_exp", "{arch}.swiglu_clamp_shexp", "{arch}.{dense}_feat_in", "{arch}.{dense}_feat_out"),
    *("{arch}.attention.layer_norm_epsilon", "{arch}.attention.group_norm_epsilon"),
    *("{arch}.attention.group_norm_groups", "{arch}.attention.q_lora_rank", "{arch}.attention.kv_lora_rank"),
    *("{arch}.attention.decay_lora_rank", "{arch}.attention.iclr_lora_rank", "{arch}.attention.gate_lora_rank"),
    *("{arch}.attention.value_residual_mix_lora_rank", "{arch}.attention.relative_buckets_count"),
    *("{arch}.attention.temperature_length", "{arch}.attention.key_length_mla", "{arch}.attention.value_length_mla"),
    "{arch}.rope.dimension_sections",
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("key", HONOURED)
def test_honoured(arch: str, key: str, files: dict[str, GGUFFile]) -> None:
    period = {"{arch}.attention.sliding_window_pattern": 2}  # the file has a list, of as many as it has layers
    assert read(files[arch], {key: HONOURED[key], **period}) != read(files[arch], period)


@pytest.mark.parametrize("key", GEMMA3_ONLY)
def test_honoured_for_gemma(key: str, files: dict[str, GGUFFile]) -> None:
    assert read(files["gemma3"], {key: GEMMA3_ONLY[key]}) != read(files["gemma3"], {})


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("key", REFUSED)
def test_refused_by_name(arch: str, key: str, files: dict[str, GGUFFile]) -> None:
    value, reason = REFUSED[key]
    with pytest.raises(ModelError, match=reason) as caught:
        read(files[arch], {key: value})
    assert str(caught.value).startswith(f"{arch}.gguf: ")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_values_that_ask_for_nothing(arch: str, files: dict[str, GGUFFile]) -> None:
    nothing = {
        **dict.fromkeys(("expert_count", "expert_used_count", "nextn_predict_layers", "logit_scale"), 0),
        **dict.fromkeys(("attention.scale", "final_logit_softcapping", "attention.clamp_kqv"), 0.0),
        "attention.causal": True,
        "rope.scaling.attn_factor": 1.0,
        "use_parallel_residual": False,
        "embedding_length_out": 64,
        "rope.scaling.original_context_length": 64,
    }
    changes = {f"{{arch}}.{key}": value for key, value in nothing.items()}
    assert read(files[arch], changes) == read(files[arch], {})


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("key", [*HONOURED, *GEMMA3_ONLY])
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), "4", True, [1, 2]])
def test_values_out_of_sense_are_refused(arch: str, key: str, value: Any, files: dict[str, GGUFFile]) -> None:
    if key in GEMMA3_ONLY and arch != "gemma3":
        return
    with pytest.raises(ModelError, match=key.removeprefix("{arch}.")):
        read(files[arch], {key: value})


def test_no_key_of_gguf_is_missing_here() -> None:
    keys = gguf.constants.Keys
    known = {
        value
        for group in (keys.LLM, keys.Attention, keys.Rope)
        for name, value in vars(group).items()
        if not name.startswith("_") and isinstance(value, str)
    }
    assert known - {*HONOURED, *REFUSED, *GEMMA3_ONLY, *READ_ELSEWHERE} == NOT_READ
