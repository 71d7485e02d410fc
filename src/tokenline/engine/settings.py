"""How large the engine is: settings, and the limits that follow from them and from the memory there is."""

from dataclasses import dataclass
from pathlib import Path

from tokenline.engine.disk_tier import DiskSettings
from tokenline.engine.pace import MAX_STALL_S
from tokenline.models.base import Model
from tokenline.models.errors import ModelError

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
    max_stall_s: float = (
        MAX_STALL_S  # by about so long prefill may hold up a step in which streams wait for their next token
    )
    max_waiting: int = 1024  # requests that may be unfinished at once; more are refused
    block_size: int = 32  # tokens
    cache_dir: Path | None = None  # a local directory for blocks that leave the pool; None: they are forgotten
    cache_dir_size: int = CACHE_DIR_BYTES  # bytes of all files in it
    model_fingerprint: str = ""  # names the weights in `cache_dir`: see models.fingerprint


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_model_len: int  # tokens of a line at most, prompt and answer; never more than the pool holds
    pool_tokens: int  # tokens that the KV pool holds
    num_blocks: int
    block_size: int
    vocab_size: int


def find_limits(model: Model, settings: EngineSettings) -> EngineLimits:
    """Size the pool. Raises ModelError, with the figures, when the settings cannot be met."""
    if settings.max_num_seqs < 1:
        raise ModelError(f"--max-num-seqs must be at least 1, not {settings.max_num_seqs}")
    if settings.max_batch_tokens <= settings.max_num_seqs:
        raise ModelError(
            f"max_batch_tokens ({settings.max_batch_tokens}) must be larger than max_num_seqs ({settings.max_num_seqs})"
        )
    if not settings.max_stall_s > 0:
        raise ModelError(f"max_stall_s must be more than 0 seconds, not {settings.max_stall_s}")
    max_model_len = settings.max_model_len or model.config.max_positions
    if not 2 <= max_model_len <= model.config.max_positions:
        raise ModelError(
            f"--max-model-len {max_model_len} is not between 2 and the model's own {model.config.max_positions} tokens"
        )
    block_bytes = model.kv_bytes_per_token() * settings.block_size
    free = model.free_memory()
    if settings.kv_cache_memory is None:
        wanted = block_bytes * -(-max_model_len // settings.block_size)
        memory = min(int(free * FREE_MEMORY_SHARE), wanted * settings.max_num_seqs)
    else:
        memory = settings.kv_cache_memory
        if memory > free:
            raise ModelError(
                f"--kv-cache-memory of {memory:,} bytes is more than the {free:,} bytes free on {model.device}"
            )
    num_blocks = memory // block_bytes
    if num_blocks < 2:
        raise ModelError(
            f"{memory:,} bytes for the KV cache are not enough: two blocks of {settings.block_size} tokens need "
            f"{2 * block_bytes:,} bytes ({free:,} bytes are free on {model.device})"
        )
    pool_tokens = num_blocks * settings.block_size
    return EngineLimits(
        min(max_model_len, pool_tokens), pool_tokens, num_blocks, settings.block_size, model.config.vocab_size
    )


def disk_settings(settings: EngineSettings) -> DiskSettings | None:
    """Where the disk tier is. None: there is none."""
    if settings.cache_dir is None:
        return None
    if not settings.model_fingerprint:
        raise ModelError("a cache_dir needs a model_fingerprint, so that no other model's keys and values are used")
    return DiskSettings(settings.cache_dir, settings.cache_dir_size, settings.model_fingerprint)
