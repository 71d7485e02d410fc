"""How long a test waits for what must come. It waits for the event itself; this only ends a test that would hang."""

from pathlib import Path

import pytest

HANG_S = 300.0  # longer than anything here takes on the slowest and busiest machine


def never_give_up_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines of this process wait for their cache directory for as long as it takes: at a restore, and at the end.

    A server rather computes, or ends, than to wait for long; on a busy disk a test would then see a miss.
    """
    monkeypatch.setattr("tokenline.engine.disk_tier.SAVE_S", HANG_S)
    monkeypatch.setattr("tokenline.engine.read_or_compute.UNKNOWN_PATIENCE_S", HANG_S)


def let_file_times_move_on(file: Path) -> None:
    """Until a file written now has a later time than `file`: many kernels' clock for it ticks each 4 to 10 ms."""
    probe = file.with_name(file.name + ".probe")
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > file.stat().st_ctime_ns:
            probe.unlink()
            return
        probe.unlink()
