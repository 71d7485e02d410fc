"""Is a stretch of tokens had sooner by reading its blocks from the disk or by computing it? By what was measured here.

How fast the directory is read: once at the start (`measure_read_speed`), then from each restore. How fast tokens are
computed: from the engine's own steps. As long as one of the two is unknown, reading is taken to be faster.
"""

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

from tokenline.engine.kv_file import read_file

PROBE_BYTES = 8 << 20
MIN_STEP_TOKENS = 64
WEIGHT = 0.3  # of the latest measurement in the running mean
PATIENCE_S = 1.0  # a restore may take this long beyond twice what computing takes
UNKNOWN_PATIENCE_S = 10.0  # ... and this long while nothing is known of computing


class ReadOrCompute:
    """Two running means of speed, and what follows from them. Safe to use from several threads."""

    def __init__(self) -> None:
        self.read_bytes_per_s: float | None = None
        self.compute_tokens_per_s: float | None = None

    def saw_read(self, num_bytes: int, seconds: float) -> None:
        self.read_bytes_per_s = _mean(self.read_bytes_per_s, num_bytes, seconds)

    def saw_step(self, tokens: int, seconds: float) -> None:
        """A step of the engine. Small ones say little of prefill and do not count."""
        if tokens >= MIN_STEP_TOKENS:
            self.compute_tokens_per_s = _mean(self.compute_tokens_per_s, tokens, seconds)

    def read_is_faster(self, num_bytes: int, tokens: int) -> bool:
        """Whether to read `num_bytes` rather than to compute the `tokens` that they hold."""
        if self.read_bytes_per_s is None or self.compute_tokens_per_s is None:
            return True
        return num_bytes / self.read_bytes_per_s < tokens / self.compute_tokens_per_s

    def patience_s(self, tokens: int) -> float:
        """How long to wait for `tokens` from the disk before computing them after all."""
        if self.compute_tokens_per_s is None:
            return UNKNOWN_PATIENCE_S
        return PATIENCE_S + 2 * tokens / self.compute_tokens_per_s


def _mean(mean: float | None, amount: int, seconds: float) -> float | None:
    if seconds <= 0:
        return mean
    latest = amount / seconds
    return latest if mean is None else (1 - WEIGHT) * mean + WEIGHT * latest


def measure_read_speed(folder: Path, num_bytes: int = PROBE_BYTES) -> float | None:
    """Bytes per second at which a file in `folder` is read and checked; None: nothing can be written there.

    The file is written to the disk first and dropped from the page cache, where the system does that on request.
    """
    probe = folder / f"kv-probe.{os.getpid()}-{secrets.token_hex(4)}.tmp"  # see block_store.OUR_TEMPORARY_FILE
    data = (os.urandom(min(num_bytes, 1 << 16)) * -(-num_bytes >> 16))[:num_bytes]
    try:
        with open(probe, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        hashlib.sha256(read_file(probe, num_bytes)).digest()
        return len(data) / (time.perf_counter() - started_s)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
