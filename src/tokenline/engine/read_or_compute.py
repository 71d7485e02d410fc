"""Whether it is faster to read a stretch of tokens from the disk or to compute it, by what was measured.

How fast the directory is read: once at the start (`measure_read_speed`), then from each restore. How fast tokens are
computed: from the engine's own steps. While one of the two is unknown, reading counts as faster.
"""

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

from tokenline.engine.kv_file import read_file
from tokenline.engine.prefill_budget import PrefillSpeed

PROBE_BYTES = 8 << 20
WEIGHT = 0.3  # of the latest measurement in the running mean
PATIENCE_S = 1.0  # a restore may take this long beyond twice what computing takes
UNKNOWN_PATIENCE_S = 10.0  # ... and this long while nothing is known of computing


class ReadOrCompute:
    """The two speeds, and what follows from them. Safe to use from several threads."""

    def __init__(self, prefill: PrefillSpeed) -> None:
        self.read_bytes_per_s: float | None = None
        self._prefill = prefill

    def saw_read(self, num_bytes: int, seconds: float) -> None:
        if seconds > 0:
            latest = num_bytes / seconds
            mean = latest if self.read_bytes_per_s is None else self.read_bytes_per_s
            self.read_bytes_per_s = (1 - WEIGHT) * mean + WEIGHT * latest

    def read_is_faster(self, num_bytes: int, tokens: int) -> bool:
        """Whether to read `num_bytes` rather than to compute the `tokens` that they hold."""
        read, computed = self.read_bytes_per_s, self._prefill.tokens_per_s
        if read is None or computed is None:
            return True
        return num_bytes / read < tokens / computed

    def patience_s(self, tokens: int) -> float:
        """How long to wait for `tokens` from the disk before computing them after all."""
        computed = self._prefill.tokens_per_s
        return UNKNOWN_PATIENCE_S if computed is None else PATIENCE_S + 2 * tokens / computed


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
