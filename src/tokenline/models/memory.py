"""How much memory is free, on the device that will be used and within the limits of this process's control group."""

from pathlib import Path

import psutil
import torch

from tokenline.models.errors import ModelError

_CGROUPS = Path("/sys/fs/cgroup")


def available_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that can still be allocated on `device`."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    limits = [left for left in (_cgroup_v2(), _cgroup_v1()) if left is not None]
    return max(0, min(free, *limits)) if limits else free


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1000: "98.4 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def require_memory(needed: int, device: torch.device | str, what: str, advice: str = "") -> None:
    """Raise ModelError with the figures if `needed` bytes are not free on `device`."""
    free = available_memory(device)
    if needed > free:
        where = "memory" if torch.device(device).type != "cuda" else f"memory on {device}"
        raise ModelError(
            f"not enough {where}: {what} needs {format_bytes(needed)}, {format_bytes(free)} are free"
            + (f"; {advice}" if advice else "")
        )


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
