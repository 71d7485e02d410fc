"""How large the engine is: settings, and the limits that follow from them and from the memory there is."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tokenline.engine.disk_tier import DiskSettings
from tokenline.engine.errors import SettingError
from tokenline.engine.prefill_budget import MAX_STALL_S
from tokenline.models.base import Model
from tokenline.models.config import ModelConfig
from tokenline.sizes import format_bytes

# Without --kv-cache-memory the pool takes this share of the memory that is free once the weights are loaded,
# but no more than a full context for each sequence that may run at once.
FREE_MEMORY_SHARE = 0.3

CACHE_DIR_BYTES = 10 << 30


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the user chose; None: found out from the model and the machine."""

    max_model_len: int | None = None  # tokens of a line, prompt and answer; None: what the model was made for
    kv_cache_memory: int | None = None  # bytes
    max_num_seqs: int = 64  # sequences computed in one step
    max_batch_tokens: int = 512  # tokens computed in one step
    max_stall_s: float = MAX_STALL_S  # about how long prefill may delay a step in which streams wait for a token
    max_waiting: int = 1024  # choices of one caller's requests that may be unfinished at once, see queue_share
    block_size: int = 32  # tokens
    cache_dir: Path | None = None  # a local directory for blocks that leave the pool; None: they are forgotten
    cache_dir_size: int = CACHE_DIR_BYTES  # bytes of all files in it
    evictions_remembered: int = 65_536  # blocks, see eviction_log
    model_fingerprint: str = ""  # names the weights in `cache_dir`: see models.fingerprint


class ContextLimit(StrEnum):
    """What bounds the context."""

    MODEL = "model"  # what the model was made for
    SETTING = "max_model_len"
    MEMORY = "kv_cache_memory"  # the KV pool holds no more


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_model_len: int  # tokens of a line at most, prompt and answer; never more than the pool holds
    pool_tokens: int  # tokens that the KV pool holds
    num_blocks: int
    block_size: int
    vocab_size: int
    limited_by: ContextLimit = ContextLimit.MODEL
    max_num_seqs: int = 64  # sequences computed in one step

    def overflow(self, prompt_tokens: int, new_tokens: int, *, at_least: bool = False) -> str | None:
        """Why a prompt and an answer of so many tokens do not fit, as the rest of a sentence about the prompt.

        None: they fit. `at_least`: the prompt has so many tokens or more.
        """
        if prompt_tokens + new_tokens <= self.max_model_len:
            return None
        limit = f"{self.max_model_len} tokens"
        if self.limited_by is ContextLimit.MEMORY:
            limit += " that the KV cache has memory for"
        has = f"has {'at least ' if at_least else ''}{prompt_tokens} tokens"
        if new_tokens == 0:
            return f"{has}, more than the maximum context length of {limit}. A prompt is never cut; shorten it."
        return (
            f"{has}, and {new_tokens} more are to be generated: together more than the maximum context length of "
            f"{limit}. A prompt is never cut; shorten it" + (" or ask for a shorter answer." if new_tokens > 1 else ".")
        )


def check_before_loading(settings: EngineSettings, config: ModelConfig, free: int | None) -> None:
    """Say at once what `find_limits` would refuse once the weights are loaded, as far as it can be known.

    `free`: bytes of free memory; None: not known. Raises SettingError.
    """
    _check_counts(settings)
    _max_model_len(settings, config)
    if settings.kv_cache_memory is not None:
        # Keys and values have 16 bits or more on every backend.
        least = 2 * settings.block_size * 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2
        _check_memory(settings.kv_cache_memory, least, settings, free, "this machine")


def _check_counts(settings: EngineSettings) -> None:
    if settings.max_num_seqs < 1:
        raise SettingError("max_num_seqs", f"must be at least 1, not {settings.max_num_seqs}")
    if settings.max_batch_tokens <= settings.max_num_seqs:
        raise SettingError(
            "max_batch_tokens",
            f"({settings.max_batch_tokens}) must be larger than max_num_seqs ({settings.max_num_seqs})",
        )
    if not settings.max_stall_s > 0:
        raise SettingError("max_stall_s", f"must be more than 0 seconds, not {settings.max_stall_s}")


def _max_model_len(settings: EngineSettings, config: ModelConfig) -> int:
    made_for = config.max_positions
    max_model_len = settings.max_model_len or made_for
    if not 2 <= max_model_len <= made_for:
        raise SettingError("max_model_len", f"must be from 2 to the model's own {made_for} tokens, not {max_model_len}")
    return max_model_len


def _check_memory(memory: int, least: int, settings: EngineSettings, free: int | None, device: str) -> None:
    """`least`: bytes of two blocks."""
    if free is not None and memory > free:
        raise SettingError(
            "kv_cache_memory", f"of {format_bytes(memory)} is more than the {format_bytes(free)} free on {device}"
        )
    if memory < least:
        known = "" if free is None else f"; {format_bytes(free)} are free on {device}"
        raise SettingError(
            "kv_cache_memory",
            f"of {format_bytes(memory)} is too small: it must be at least {format_bytes(least)} (two blocks of "
            f"{settings.block_size} tokens){known}",
        )


def find_limits(model: Model, settings: EngineSettings) -> EngineLimits:
    """Size the pool. Raises SettingError, with the figures, when the settings cannot be met."""
    _check_counts(settings)
    made_for = model.config.max_positions
    max_model_len = _max_model_len(settings, model.config)
    block_bytes = model.kv_bytes_per_token() * settings.block_size
    free = model.free_memory()
    if settings.kv_cache_memory is None:
        wanted = block_bytes * -(-max_model_len // settings.block_size)
        memory = min(int(free * FREE_MEMORY_SHARE), wanted * settings.max_num_seqs)
    else:
        memory = settings.kv_cache_memory
    _check_memory(memory, 2 * block_bytes, settings, free, model.device)
    num_blocks = memory // block_bytes
    pool_tokens = num_blocks * settings.block_size
    limited_by = ContextLimit.MODEL if max_model_len == made_for else ContextLimit.SETTING
    if pool_tokens < max_model_len:
        max_model_len, limited_by = pool_tokens, ContextLimit.MEMORY
    return EngineLimits(
        max_model_len,
        pool_tokens,
        num_blocks,
        settings.block_size,
        model.config.vocab_size,
        limited_by,
        settings.max_num_seqs,
    )


def disk_settings(settings: EngineSettings) -> DiskSettings | None:
    """Where the disk tier is. None: there is none."""
    if settings.cache_dir is None:
        return None
    if not settings.model_fingerprint:
        raise SettingError(
            "model_fingerprint", "is needed with a cache_dir, so that no other model's keys and values are used"
        )
    return DiskSettings(settings.cache_dir, settings.cache_dir_size, settings.model_fingerprint)
