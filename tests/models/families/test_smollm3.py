"""SmolLM3's configuration: which layers rotate and which slide, as transformers reads it."""

from pathlib import Path
from typing import Any

import pytest
from transformers import SmolLM3Config

from tests.tiny_gguf import make_tiny_gguf
from tokenline.models.config import Feature, Rope
from tokenline.models.errors import ModelError
from tokenline.models.families.registry import config_from_hf
from tokenline.models.load import read_config

SMOLLM3_3B = {  # the published config.json, shortened to what matters
    "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 128256,
}


def test_every_fourth_layer_has_no_rope() -> None:
    config = config_from_hf(SMOLLM3_3B)
    assert (config.family, config.head_dim, config.num_kv_heads, config.tied_head) == ("smollm3", 128, 4, True)
    assert [layer for layer, kind in enumerate(config.layers) if kind.rope is None] == list(range(3, 36, 4))
    assert config.ropes == (Rope(5_000_000.0),)
    assert all(kind.window is None for kind in config.layers)
    assert config.features == {Feature.SILU, Feature.ROPE, Feature.NO_ROPE}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"no_rope_layer_interval": 3},
        {"no_rope_layers": [0, 1] * 18},
        {"no_rope_layers": [1] * 40},
        {"no_rope_layer_interval": None, "rope_theta": None},
        {"use_sliding_window": True, "sliding_window": 128},
        {
            "use_sliding_window": True,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
        },
        {"use_sliding_window": True},
        {"sliding_window": 128},
        {"num_key_value_heads": None},
    ],
)
def test_as_transformers_reads_it(change: dict[str, Any]) -> None:
    values = {key: value for key, value in {**SMOLLM3_3B, **change}.items() if key not in change or value is not None}
    if change.get("num_key_value_heads", 4) is None:
        values["num_key_value_heads"] = None
    theirs, ours = SmolLM3Config(**values), config_from_hf(values)
    assert theirs.no_rope_layers is not None
    assert theirs.layer_types is not None
    assert [kind.rope is not None for kind in ours.layers] == [bool(mark) for mark in theirs.no_rope_layers[:36]]
    slides = [kind == "sliding_attention" and theirs.use_sliding_window for kind in theirs.layer_types]
    assert [kind.window for kind in ours.layers] == [theirs.sliding_window if slide else None for slide in slides]
    assert ours.ropes == (Rope(theirs.to_dict()["rope_parameters"]["rope_theta"]),)
    assert ours.num_kv_heads == theirs.num_key_value_heads


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers must hold a 0 or 1 for each of the 36 layers, not \[1, 0\]"),
        ({"no_rope_layers": [2] * 36}, "no_rope_layers must hold a 0 or 1"),
        ({"no_rope_layers": "1"}, "no_rope_layers must hold a 0 or 1"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval must be a positive integer, not 0"),
        ({"layer_types": ["sliding_attention"] * 36}, "use_sliding_window or sliding_window is not set"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type 'yarn' is not supported"),
    ],
)
def test_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=f"^config.json: .*{reason}"):
        config_from_hf({**SMOLLM3_3B, **change})


def test_gguf_rotates_three_of_four(tmp_path: Path) -> None:
    path = make_tiny_gguf("smollm3", tmp_path / "m.gguf", num_hidden_layers=9)
    assert [kind.rope is None for kind in read_config(path).layers] == [False, False, False, True] * 2 + [False]
