"""Memory of the host and of cgroups that may hold evicted memory, and what remains for the programs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .cgroups import PROC, MemoryCgroup

USABLE_FRACTION = 0.8  # of the free memory, for evicted memory; the programs need the rest
MIN_RESERVE_BYTES = 128 << 20  # of the free memory, for the programs and for copies under way


def available_bytes(cgroups: Iterable[MemoryCgroup] = (), proc: Path = PROC) -> int | None:
    """Return the available bytes of the host, within the limits of the cgroups, or None if unknown."""
    try:
        meminfo = (proc / "meminfo").read_text()
        bytes_free = next(
            int(line.split()[1]) * 1024 for line in meminfo.splitlines() if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration, ValueError):
        return None
    return min([bytes_free, *(cgroup.free_bytes for cgroup in cgroups)])


def usable_bytes(free_bytes: int, on_host: int) -> int:
    """Return the bytes that evicted memory may have, of free memory and the `on_host` bytes that it has already."""
    free_bytes += on_host
    return max(0, min(int(USABLE_FRACTION * free_bytes), free_bytes - MIN_RESERVE_BYTES))
