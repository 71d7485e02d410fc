"""What Linux says about a process: CPU time of its threads, memory in use."""

from pathlib import Path


def thread_cpu_s(pid: int) -> dict[int, float]:
    """Seconds of CPU time by thread id, of the running threads. The main thread's id is `pid`."""
    times: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return times


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no memory: it has ended")
