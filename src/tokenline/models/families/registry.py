"""All families, and which of them a file belongs to.

What is not known or cannot be computed exactly is refused by name, with the list of what works, before any weight is
read.
"""

from collections.abc import Mapping
from typing import Any

from tokenline.models.config import Fields, ModelConfig, short
from tokenline.models.errors import ModelError
from tokenline.models.families.family import Family
from tokenline.models.families.gemma3 import GEMMA3
from tokenline.models.families.llama import LLAMA
from tokenline.models.families.mistral import MISTRAL
from tokenline.models.families.qwen2 import QWEN2
from tokenline.models.families.qwen3 import QWEN3
from tokenline.models.families.smollm3 import SMOLLM3
from tokenline.models.gguf_file import GGUFFile

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, GEMMA3)


def family_of(config: ModelConfig) -> Family:
    return next(family for family in FAMILIES if family.name == config.family)


def config_from_hf(values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Read the configuration of a checkpoint in Hugging Face layout. `where` is for error messages."""
    fields = Fields(values, where)
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else values.get("model_type")
    family = next((family for family in FAMILIES if name in (family.architecture, family.name)), None)
    if family is None:
        known = ", ".join(family.architecture for family in FAMILIES)
        raise fields.error(f"architecture {_called(name)} is not supported; supported: {known}")
    if quantisation := values.get("quantization_config"):
        method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else quantisation
        raise fields.error(
            f"quantization_config ({method}) is not supported; "
            "use the unquantised checkpoint (tokenline quantises while loading) or a GGUF file"
        )
    fields.refuse("attention_chunk_size", "per_layer_config")  # which transformers reads for any family
    if not fields.flag("is_causal", True):
        raise fields.error("is_causal false is not supported")
    return family.from_hf(fields)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the configuration of a GGUF file from its metadata and, where they decide, the names of its tensors."""
    values, where = file.metadata, file.path.name
    arch = values.get("general.architecture")
    for family in FAMILIES:
        if family.gguf == arch and family.from_gguf is not None:
            break
    else:
        known = ", ".join(family.gguf for family in FAMILIES if family.gguf is not None)
        raise ModelError(
            f"{where}: architecture {_called(arch)} is not supported; supported: {known} (Mistral files are llama)"
        )
    if (kind := values.get("general.type", "model")) != "model":
        raise ModelError(f"{where}: general.type is {short(kind)}: this file is not a whole model")
    if (parts := Fields(values, where).count("split.count", 1)) > 1:
        raise ModelError(f"{where}: one of {parts} parts; merge them with llama-gguf-split --merge")
    # Per-layer lists are fine as long as every layer says the same
    prefix = f"{arch}."
    flat = {key.removeprefix(prefix): _same(value) for key, value in values.items() if key.startswith(prefix)}
    return family.from_gguf(Fields(flat, f"{where}: {arch}"), file)


def _called(name: Any) -> str:
    if not name:
        return "not given"
    return name if isinstance(name, str) else short(name)


def _same(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and all(item == value[0] for item in value) else value
