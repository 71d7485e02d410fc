"""Every key of config.json that transformers reads for a supported family is honoured or refused by name.

A row of the table changes one key (or several that belong together) of a tiny checkpoint. What is loaded then computes
what transformers computes from the same folder.
"""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig

from tests.models.drive import Driver, assert_same, random_ids, reference_logits
from tests.tiny import FAMILIES, make_tiny
from tokenline.models.errors import ModelError
from tokenline.models.load import load_model, read_config

ALL = tuple(FAMILIES)
FLAT = tuple(family for family in ALL if family != "gemma3")  # those with one rotary embedding
QWEN = ("qwen2", "qwen3")
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = {"use_sliding_window": True, "sliding_window": 12}
TEXT = 50  # tokens

# (families, changed keys, what the refusal says or None where the model is loaded)
ROWS: list[tuple[tuple[str, ...], dict[str, Any], str | None]] = [
    (ALL, {"vocab_size": 640}, None),
    (ALL, {"hidden_size": 96}, None),
    (ALL, {"intermediate_size": 64}, None),
    (ALL, {"num_hidden_layers": 2, "layer_types": None}, None),
    (ALL, {"num_attention_heads": 2}, None),
    (ALL, {"num_attention_heads": 0}, "num_attention_heads must be a positive integer, not 0"),
    (ALL, {"num_key_value_heads": 4}, None),
    (("llama", *QWEN, "smollm3"), {"num_key_value_heads": None}, None),  # null: as many as heads
    (ALL, {"num_key_value_heads": -2}, "num_key_value_heads must be a positive integer, not -2"),
    (ALL, {"head_dim": 64}, None),
    (ALL, {"head_dim": 0}, "head_dim must be a positive integer, not 0"),
    (FLAT, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    (("gemma3",), {"hidden_activation": "silu"}, "hidden_activation 'silu' is not supported"),
    (("gemma3",), {"hidden_act": "silu"}, None),  # Gemma's is called otherwise
    (ALL, {"max_position_embeddings": 64}, None),
    (ALL, {"rms_norm_eps": 0.5}, None),
    (ALL, {"rms_norm_eps": 0.0}, "rms_norm_eps must be a positive number, not 0.0"),
    (ALL, {"tie_word_embeddings": False}, None),
    (ALL, {"tie_word_embeddings": True}, None),
    (ALL, {"attention_bias": True}, None),  # hard-wired in some families: no difference there
    (ALL, {"mlp_bias": True}, None),
    (ALL, {"pretraining_tp": 2}, None),
    (ALL, {"quantization_config": {"quant_method": "awq"}}, r"quantization_config \(awq\) is not supported"),
    (ALL, {"is_causal": False}, "is_causal false is not supported"),
    (ALL, {"is_causal": True}, None),
    (ALL, {"attention_chunk_size": 16}, "attention_chunk_size is not supported"),
    (ALL, {"per_layer_config": {"1": {"rms_norm_eps": 0.5}}}, "per_layer_config is not supported"),
    (("llama",), {"sliding_window": 12}, "sliding_window is not supported for LlamaForCausalLM"),
    (("llama",), {"layer_types": [FULL, SLIDING, FULL]}, "sliding_window is not supported for LlamaForCausalLM"),
    (("llama",), {"layer_types": [FULL] * 3, "sliding_window": None}, None),
    (FLAT, {"hidden_act": "swish"}, None),
    # rotary embedding
    (FLAT, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, None),
    (FLAT, {"rope_parameters": {**LINEAR, "rope_theta": 100.0}}, None),
    (FLAT, {"rope_parameters": None, "rope_theta": 100.0}, None),
    (FLAT, {"rope_parameters": None, "rope_theta": 100.0, "rope_scaling": LINEAR}, None),
    (FLAT, {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}, None),
    (FLAT, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "rope_scaling": LINEAR}, None),
    (FLAT, {"rope_parameters": {**LINEAR, "rope_theta": 100.0}, "rope_scaling": {}}, None),
    (FLAT, {"rope_parameters": {**LINEAR, "rope_theta": 100.0}, "rope_scaling": {"rope_type": "default"}}, None),
    (FLAT, {"rope_parameters": None, "rope_scaling": {**LINEAR, "rope_theta": 100.0}, "rope_theta": 50.0}, None),
    (FLAT, {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}}, None),
    (FLAT, {"rope_parameters": LLAMA3, "original_max_position_embeddings": 16}, None),
    (FLAT, {"rope_parameters": LLAMA3, "max_position_embeddings": 40}, None),
    (FLAT, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
    (FLAT, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
    (FLAT, {"rope_parameters": {**LINEAR, "factor": -1}}, "factor must be a positive number, not -1"),
    (FLAT, {"rope_parameters": {FULL: LINEAR}}, "rope_parameters must be one flat object"),
    (ALL, {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
    (
        FLAT,
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor other than 1",
    ),
    (("gemma3",), {"rope_parameters": None, "rope_theta": 100.0, "rope_local_base_freq": 50.0}, None),
    (("gemma3",), {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 100.0}, SLIDING: {"rope_theta": 9.0}}}, None),
    (("gemma3",), {"rope_parameters": {FULL: {"rope_theta": 100.0}, SLIDING: None}, "rope_scaling": LINEAR}, None),
    (("gemma3",), {"rope_parameters": None, "rope_scaling": LINEAR}, None),
    (("gemma3",), {"rope_parameters": {"rope_theta": 100.0}}, "rope_parameters must hold an object for"),
    # which layers have a window, or no rotary embedding
    (("mistral",), {"sliding_window": 9}, None),
    (("mistral",), {"sliding_window": None}, None),
    (("mistral",), {"layer_types": [SLIDING] * 3}, None),
    (("mistral",), {"layer_types": [FULL, SLIDING, FULL]}, None),  # a Ministral
    (("mistral",), {"sliding_window": None, "layer_types": [SLIDING] * 3}, "sliding_window is null"),
    (("mistral",), {"layer_types": [FULL]}, "layer_types must list one type for each of the 3 layers"),
    (QWEN, {**WINDOW, "max_window_layers": 1, "layer_types": None}, None),
    (QWEN, {"sliding_window": 12, "max_window_layers": 1, "layer_types": None}, None),
    (QWEN, {"use_sliding_window": True, "sliding_window": None, "layer_types": None}, None),
    ((*QWEN, "smollm3"), {**WINDOW, "layer_types": [FULL, SLIDING, FULL]}, None),
    ((*QWEN, "smollm3"), {"layer_types": [FULL, SLIDING, FULL]}, "use_sliding_window or sliding_window is not set"),
    (("smollm3",), {**WINDOW, "layer_types": None}, None),
    (("smollm3",), {"no_rope_layers": [0, 1, 1, 1]}, None),
    (("smollm3",), {"no_rope_layers": None, "no_rope_layer_interval": 3}, None),
    (("smollm3",), {"no_rope_layers": [1]}, "no_rope_layers must hold a 0 or 1 for each of the 3 layers"),
    (("gemma3",), {"sliding_window": 9}, None),
    (("gemma3",), {"layer_types": [FULL, SLIDING, SLIDING]}, None),
    (("gemma3",), {"layer_types": None, "sliding_window_pattern": 2}, None),
    (("gemma3",), {"layer_types": None, "_sliding_window_pattern": 2}, None),  # transformers overwrites this one
    (("gemma3",), {"query_pre_attn_scalar": 16}, None),
    (("gemma3",), {"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
    (("gemma3",), {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
    (("gemma3",), {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
]
CASES = [
    pytest.param(family, change, reason, id=f"{family}-{json.dumps(change)[:70]}")
    for families, change, reason in ROWS
    for family in families
]
NOT_COMPUTED = {  # training, defaults of a generation, and special tokens, which `render` and `service` read
    *("initializer_range", "use_cache", "attention_dropout", "pad_token_id", "bos_token_id", "eos_token_id"),
}


@cache
def _tiny_config(family: str, folder: Path) -> dict[str, Any]:
    return json.loads((make_tiny(family, folder) / "config.json").read_text())


@pytest.mark.parametrize(("family", "change", "reason"), CASES)
def test_honoured_as_by_transformers_or_refused(
    family: str, change: dict[str, Any], reason: str | None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = {**_tiny_config(family, tmp_path_factory.getbasetemp() / f"keys-{family}"), **change}
    folder = tmp_path / "m"
    if reason is not None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=f"^config.json.*{reason}"):
            read_config(folder)
        return
    make_tiny(family, folder, **{key: value for key, value in config.items() if key not in ("architectures", "dtype")})
    (folder / "config.json").write_text(json.dumps(config))  # not as transformers would spell it
    ids = random_ids(TEXT)
    assert_same(Driver(load_model(folder, device="cpu", dtype="float32")).logits(ids), reference_logits(folder, ids))


@pytest.mark.parametrize("family", ALL)
def test_no_key_of_transformers_is_missing_here(family: str) -> None:
    theirs = {field.name for field in fields(FAMILIES[family][0])} - {field.name for field in fields(PreTrainedConfig)}
    tested = {key for families, change, _ in ROWS if family in families for key in change}
    assert theirs - tested - NOT_COMPUTED == set()


def test_mistral_without_windows_may_say_so_twice(tmp_path: Path) -> None:
    """Transformers fails on it: it makes a mask for the layers with a window, of which there are none."""
    config = {**_tiny_config("mistral", tmp_path / "m"), "sliding_window": None, "layer_types": [FULL] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert [layer.window for layer in read_config(tmp_path).layers] == [None] * 3
