"""How long a test waits for what must come. It waits for the event itself; this only ends a test that would hang."""

from pathlib import Path

HANG_S = 300.0  # longer than anything here takes on the slowest and busiest machine


def let_file_times_move_on(file: Path) -> None:
    """Until a file written now has a later time than `file`: many kernels' clock for it ticks each 4 to 10 ms."""
    probe = file.with_name(file.name + ".probe")
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > file.stat().st_ctime_ns:
            probe.unlink()
            return
        probe.unlink()
