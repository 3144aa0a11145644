"""Memory backing of host and devices, which bounds allocations before the out-of-memory killer does."""

from __future__ import annotations

from pathlib import Path

USABLE_FRACTION = 0.8  # of the available host memory, for evicted memory; the programs need the rest


def available_bytes() -> int | None:
    """Return the available bytes of the host, within each memory.max of this process's cgroups, or None if unknown."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
        bytes_free = next(
            int(line.split()[1]) * 1024 for line in meminfo.splitlines() if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration, ValueError):
        return None
    for limit, used in _cgroup_limits():
        bytes_free = min(bytes_free, max(0, limit - used))
    return bytes_free


def backing_bytes(device_memory: int, allocated: int, on_host: int) -> int | None:
    """Return the memory backing in bytes, or None if unknown.

    `device_memory` is the sum of all devices, `allocated` the sum of all clients. Of the allocated bytes, `on_host`
    count as used host memory already.
    """
    free = available_bytes()
    if free is None:
        return None
    return max(0, device_memory + int(USABLE_FRACTION * (free + on_host)) - allocated)


def _cgroup_limits() -> list[tuple[int, int]]:
    """Return (limit, used) in bytes of each cgroup-v2 level above this process that has a limit."""
    try:
        line = next(text for text in Path("/proc/self/cgroup").read_text().splitlines() if text.startswith("0::"))
    except (OSError, StopIteration):
        return []
    levels = []
    group = Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    while group != Path("/sys/fs"):
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                levels.append((int(limit), int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            pass
        group = group.parent
    return levels
