"""How much more memory can be backed by host and devices, so that sharing never ends in the out-of-memory killer."""

from __future__ import annotations

from pathlib import Path

USABLE_FRACTION = 0.8  # of what is available, ours; the rest is the programs' own


def available_bytes() -> int | None:
    """Bytes that may still be used by this host's programs, within every memory.max above us; None if unknown."""
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
    """What further allocations can be backed, in bytes.

    `device_memory` of all devices, `allocated` by all clients, of which `on_host` are already part of the host's use.
    """
    free = available_bytes()
    if free is None:
        return None
    return max(0, device_memory + int(USABLE_FRACTION * (free + on_host)) - allocated)


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) of each cgroup-v2 level above this process that has one."""
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
