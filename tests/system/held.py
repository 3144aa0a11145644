"""What a coordinator holds for others: descriptors and mapped pages."""

from __future__ import annotations

import os
from collections import Counter

from .host import Host


def descriptors(host: Host) -> Counter[str]:
    """What the coordinator has open for others, by kind; perhaps also a connection that it has not yet seen the end of.

    Of each lock file it has one for itself, by which it sees who else waits for the device.
    """
    assert host.coordinator
    folder = f"/proc/{host.coordinator.pid}/fd"
    found: Counter[str] = Counter()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        found[target.partition(":")[0].removesuffix(" (deleted)")] += 1
    return found - Counter({kind for kind in found if kind.endswith(".lock")})


def mappings(host: Host) -> int:
    """Pages that the coordinator has mapped."""
    assert host.coordinator
    with open(f"/proc/{host.coordinator.pid}/maps") as maps:
        return sum("memfd:gpushare" in line for line in maps)


def memory(host: Host) -> int:
    """Bytes of the coordinator that are in memory."""
    assert host.coordinator
    with open(f"/proc/{host.coordinator.pid}/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
