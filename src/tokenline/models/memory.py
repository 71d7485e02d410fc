"""How much main memory is free, within the limits of this process's control group too."""

from pathlib import Path

import psutil

from tokenline.models.errors import ModelError
from tokenline.sizes import format_bytes

_CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can still be allocated."""
    free = int(psutil.virtual_memory().available)
    limits = [left for left in (_cgroup_v2(), _cgroup_v1()) if left is not None]
    return max(0, min(free, *limits)) if limits else free


def require_memory(needed: int, free: int, what: str, where: str = "memory") -> None:
    """Raise ModelError with the figures if `needed` bytes are more than are `free`."""
    if needed > free:
        raise ModelError(f"not enough {where}: {what} needs {format_bytes(needed)}, {format_bytes(free)} are free")


def _cgroup_v2() -> int | None:
    """Bytes left under the tightest limit from this process's group up to the root; None without a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    group = _CGROUPS / own.lstrip("/")
    left: list[int] = []
    for folder in (group, *group.parents):
        if folder != _CGROUPS and _CGROUPS not in folder.parents:
            break
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                used = int((folder / "memory.current").read_text())
                left.append(int(limit) - used + _reclaimable(folder / "memory.stat", "inactive_file"))
        except (OSError, ValueError):
            continue  # the root group has no such files; inside a container the own path may not be visible
    return min(left) if left else None


def _cgroup_v1() -> int | None:
    folder = _CGROUPS / "memory"
    try:
        limit = int((folder / "memory.limit_in_bytes").read_text())
        used = int((folder / "memory.usage_in_bytes").read_text())
    except (OSError, ValueError):
        return None
    return limit - used + _reclaimable(folder / "memory.stat", "total_inactive_file")


def _reclaimable(stat: Path, name: str) -> int:
    """File cache that the kernel gives back when asked; it counts as used in the group's figure."""
    for line in stat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
