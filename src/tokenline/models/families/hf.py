"""Reading config.json: what the families' files have in common, as transformers 4 or 5 spells it.

Absent fields mean what they do there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenline.models.config import (
    MAX_HEAD_DIM,
    MAX_LAYERS,
    Activation,
    Fields,
    LayerAttention,
    ModelConfig,
    Rope,
    RopeScaling,
    short,
)

ACTIVATIONS = {"silu": Activation.SILU, "swish": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
SLIDING, FULL = "sliding_attention", "full_attention"  # values of `layer_types`


def read_hf(
    fields: Fields,
    family: str,
    layers: tuple[LayerAttention, ...],
    *,
    activation: Activation = Activation.SILU,
    activation_field: str = "hidden_act",
    default_head_dim: int | None = None,
    default_kv_heads: int | None = None,
    default_tied: bool = False,
    **block: Any,
) -> ModelConfig:
    """The configuration of a family with these layers; `block` are further fields of `ModelConfig`.

    `activation` is the only one that the family has. Without `default_head_dim` heads share the hidden size evenly.
    `num_key_value_heads` that is null means as many as there are heads; one that is absent means that too, unless
    `default_kv_heads` is given.
    """
    name = fields.get(activation_field, activation.value)
    if ACTIVATIONS.get(name if isinstance(name, str) else "", name) != activation:
        raise fields.error(f"{activation_field} {short(name)} is not supported; {_spelling(activation)} is")
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    if "num_key_value_heads" in fields.values or default_kv_heads is None:
        default_kv_heads = heads
    if default_head_dim is None:
        default_head_dim = hidden // heads
        if fields.get("head_dim") is None and hidden % heads:
            raise fields.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return checked(
        fields,
        ModelConfig(
            family=family,
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size"),
            layers=layers,
            num_heads=heads,
            num_kv_heads=fields.count("num_key_value_heads", default_kv_heads),
            head_dim=fields.count("head_dim", default_head_dim),
            max_positions=fields.count("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            activation=activation,
            tied_head=fields.flag("tie_word_embeddings", default_tied),
            **block,
        ),
    )


def _spelling(activation: Activation) -> str:
    return next(name for name, known in ACTIVATIONS.items() if known is activation)


def checked(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The configuration, if its heads can be computed at all."""
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise fields.error(f"head_dim {config.head_dim} is odd; rotary embedding needs pairs of channels")
    if config.head_dim > MAX_HEAD_DIM:
        raise fields.error(f"a head size of {config.head_dim:,} is not supported; {MAX_HEAD_DIM:,} is the largest")
    for rope in config.ropes:
        with np.errstate(all="ignore"):
            usable = bool(np.isfinite(rope.frequencies(config.head_dim)).all())
        if not usable:
            raise fields.error(f"the rotary embedding of base {rope.theta:g} has frequencies that are not finite")
    return config


def num_layers(fields: Fields, default: int | None = None) -> int:
    return fields.count("num_hidden_layers", default, most=MAX_LAYERS)


def layer_types(fields: Fields, layers: int) -> list[str] | None:
    """`layer_types`, checked; None if there are none."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list one type for each of the {layers} layers")
    if unknown := set(map(str, kinds)) - {FULL, SLIDING}:
        raise fields.error(f"layer type {sorted(unknown)[0]!r} is not supported")
    return kinds


def read_rope(fields: Fields, default_theta: float = 10_000.0) -> Rope:
    """The one rotary embedding of a model: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.

    A `rope_scaling` that says anything replaces `rope_parameters` (modeling_rope_utils.convert_rope_params_to_dict).
    """
    by_name = {name: fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")}
    for name, raw in by_name.items():
        if not isinstance(raw, Mapping) or any(isinstance(value, Mapping) for value in raw.values()):
            raise fields.error(f"{name} must be one flat object; one for each layer type is not supported")
    name = "rope_scaling" if by_name["rope_scaling"] else "rope_parameters"
    rope = Fields(by_name[name], f"{fields.where}: {name}")
    refuse_partial(fields)
    original = fields.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    theta = rope.number("rope_theta", fields.number("rope_theta", default_theta), least=1.0)
    return scaled_rope(rope, theta, original or fields.get("max_position_embeddings"))


def refuse_partial(fields: Fields) -> None:
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("partial_rotary_factor other than 1 is not supported")


def scaled_rope(rope: Fields, theta: float, original_max_positions: Any) -> Rope:
    """A rotary embedding of this base with the scaling that the fields of an object describe.

    `original_max_positions`: where "llama3" begins to stretch, as the file has it; checked here.
    """
    refuse_partial(rope)
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, RopeScaling("linear", rope.number("factor", least=1e-3, most=1e6)))
    if kind != "llama3":
        raise rope.error(f"rope_type {short(kind)} is not supported; default, linear and llama3 are")
    name = "original_max_position_embeddings"
    scaling = RopeScaling(
        kind="llama3",
        factor=rope.number("factor", least=1e-3, most=1e6),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_positions=Fields({name: original_max_positions}, rope.where).count(name),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.error("high_freq_factor must be larger than low_freq_factor")
    return Rope(theta, scaling)
