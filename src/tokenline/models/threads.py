"""How many threads make the CPU kernels fast here: one for each physical core that this process may use.

A second thread on one core only takes turns at its vector units. Knows affinity, quotas of control groups and
OMP_NUM_THREADS, the variable by which people bound such pools everywhere.
"""

import os
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_threads() -> int:
    """At least 1. OMP_NUM_THREADS decides where it is a number; of a list ("4,2") the first."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return int(asked)
    allowed = _allowed_cpus()
    limits = [len(allowed) if allowed else os.cpu_count() or 1]
    if cores := _cores_of(allowed) or psutil.cpu_count(logical=False):
        limits.append(cores)
    if (quota := _quota()) is not None:
        limits.append(max(1, round(quota)))
    return min(limits)


def _allowed_cpus() -> set[int]:
    """Numbers of the logical CPUs that this process may run on; empty where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _cores_of(cpus: set[int]) -> int | None:
    """How many physical cores these logical CPUs are; None where the system does not say."""
    try:
        cores = {(_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip() for cpu in cpus}
    except OSError:
        return None
    return len(cores) or None


def _quota() -> float | None:
    """CPUs' worth of time under the tightest limit from this process's control group up to the root; None: no limit."""
    try:
        lines = [line.split(":", 2) for line in _OWN_CGROUPS.read_text().splitlines()]
    except OSError:
        return None
    shares: list[float] = []
    for _, controllers, own in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree without a name; of version 1 the controller's own, where a container sees itself as
        # the root or under the whole path.
        root = _CGROUPS if not controllers else _CGROUPS / "cpu"
        group = root / own.lstrip("/")
        shares += [
            share
            for folder in (group, *group.parents)
            if folder.is_relative_to(root)
            if (share := _share(folder)) is not None
        ]
    return min(shares, default=None)


def _share(folder: Path) -> float | None:
    """`cpu.max` of version 2 ("150000 100000" or "max 100000"), or the two files of version 1 (-1: no limit)."""
    try:
        if (both := folder / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 and int(period) > 0 else None
    except (OSError, ValueError):
        return None
