"""How much main memory is free, within the limits of this process and of its control group too."""

from pathlib import Path

import psutil

from tokenline.models.errors import ModelError
from tokenline.sizes import format_bytes

try:
    import resource
except ImportError:  # Windows
    resource = None

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Bytes that can still be allocated."""
    free = int(psutil.virtual_memory().available)
    limits = [left for left in (_cgroup_v2(), _cgroup_v1(), _address_space()) if left is not None]
    return max(0, min(free, *limits)) if limits else free


def require_memory(needed: int, free: int, what: str, where: str = "memory") -> None:
    """Raise ModelError with the figures if `needed` bytes are more than are `free`."""
    if needed > free:
        raise ModelError(f"not enough {where}: {what} needs {format_bytes(needed)}, {format_bytes(free)} are free")


def _cgroup_v2() -> int | None:
    """Bytes left under the tightest limit from this process's group up to the root; None without a limit."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
        own = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    left: list[int] = []
    for folder in _up_to(_CGROUPS, own):
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                used = int((folder / "memory.current").read_text())
                left.append(int(limit) - used + _reclaimable(folder / "memory.stat", "inactive_file"))
        except (OSError, ValueError):
            continue  # the root group has no such files; inside a container the own path may not be visible
    return min(left) if left else None


def _cgroup_v1() -> int | None:
    """The same for version 1, whose groups of memory are a tree of their own."""
    left: list[int] = []
    for folder in _up_to(_CGROUPS / "memory", _own_group("memory")):
        try:
            limit = int((folder / "memory.limit_in_bytes").read_text())
            used = int((folder / "memory.usage_in_bytes").read_text())
            left.append(limit - used + _reclaimable(folder / "memory.stat", "total_inactive_file"))
        except (OSError, ValueError):
            continue
    return min(left) if left else None


def _own_group(controller: str) -> str:
    """This process's group of a version 1 controller; "/" if that is not known."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _up_to(root: Path, group: str) -> list[Path]:
    """The folders of a group and of all above it. A container sees its own group as the root."""
    folder = root / group.lstrip("/")
    return [place for place in (folder, *folder.parents) if place == root or root in place.parents]


def _address_space() -> int | None:
    """Bytes left under `ulimit -v`; None without a limit. What is mapped and never used counts there."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit - psutil.Process().memory_info().vms


def _reclaimable(stat: Path, name: str) -> int:
    """File cache that the kernel gives back when asked; it counts as used in the group's figure."""
    for line in stat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
