"""What a family says of itself: its names in files, how its configuration is read, and how its tensors are stored.

A backend and a checkpoint call tensors by their role, the same in every family: `embedding`, `final_norm`, `head`, and
in each layer those of `layer_tensors`. A family says what a role is called in each format.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokenline.models.config import Fields, ModelConfig
from tokenline.models.gguf_file import GGUFFile

_LAYER_ROLE = re.compile(r"layers\.(\d+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What one format calls the tensors: names without ".weight" and ".bias"."""

    outer: Mapping[str, str]  # role -> name
    prefix: str  # of a layer's tensors, with {} for its number
    layer: Mapping[str, str]  # role -> name behind the prefix

    def name(self, tensor: str) -> str:
        """The format's name of a tensor that is called by role: "layers.3.q.bias" -> "blk.3.attn_q.bias"."""
        role, _, leaf = tensor.rpartition(".")
        if match := _LAYER_ROLE.fullmatch(role):
            return f"{self.prefix.format(match[1])}{self.layer[match[2]]}.{leaf}"
        return f"{self.outer[role]}.{leaf}"


HF_NAMES = TensorNames(
    outer={"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
    prefix="model.layers.{}.",
    layer={
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "o": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
)
GGUF_NAMES = TensorNames(  # gguf-py, constants.TENSOR_NAMES
    outer={"embedding": "token_embd", "final_norm": "output_norm", "head": "output"},
    prefix="blk.{}.",
    layer={
        "attention_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "qkv": "attn_qkv",  # the three above in one
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "o": "attn_output",
        "attention_post_norm": "post_attention_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "mlp_post_norm": "post_ffw_norm",
    },
)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. Functions raise ModelError for what no backend could compute."""

    name: str  # as in `ModelConfig.family`; also the `model_type` of config.json
    architecture: str  # what config.json calls it in `architectures`
    from_hf: Callable[[Fields], ModelConfig]
    gguf: str | None  # `general.architecture`; None: GGUF files of it say that they are another family's
    from_gguf: Callable[[Fields, GGUFFile], ModelConfig] | None  # given the keys of that architecture, and the file
    hf_names: TensorNames = field(default=HF_NAMES)
    gguf_names: TensorNames = field(default=GGUF_NAMES)
    norm_offset: float = 0.0  # safetensors hold the weights of norms less this much; GGUF files hold all of them
    gguf_interleaves_rope: bool = False  # rows of q and k in GGUF lie in llama.cpp's rotary order, see `weights`


def layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Roles and shapes of the tensors of one layer, in the order of use."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors: dict[str, tuple[int, ...]] = {}

    def add(role: str, shape: tuple[int, ...], bias: bool = False) -> None:
        tensors[f"{role}.weight"] = shape
        if bias:
            tensors[f"{role}.bias"] = shape[:1]

    add("attention_norm", (hidden,))
    for role, rows in (("q", q), ("k", kv), ("v", kv)):
        add(role, (rows, hidden), config.qkv_bias)
    if config.qk_norm:
        add("q_norm", (config.head_dim,))
        add("k_norm", (config.head_dim,))
    add("o", (hidden, q), config.o_bias)
    if config.post_norms:
        add("attention_post_norm", (hidden,))
    add("mlp_norm", (hidden,))
    for role, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        add(role, shape, config.mlp_bias)
    if config.post_norms:
        add("mlp_post_norm", (hidden,))
    return tensors
