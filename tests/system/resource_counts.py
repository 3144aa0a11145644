"""What a coordinator holds for others: descriptors and mapped pages."""

from __future__ import annotations

import os
from collections import Counter

from .system_host import SystemHost


def descriptors(host: SystemHost) -> Counter[str]:
    """Of its coordinator."""
    assert host.coordinator
    return descriptors_of(host.coordinator.pid)


def descriptors_of(coordinator: int) -> Counter[str]:
    """What it has open for others, by kind; perhaps also a connection that it has not yet seen the end of.

    Lock files that it has opened to read are its own: by them it sees who else waits for the device.
    """
    folder = f"/proc/{coordinator}/fd"
    found: Counter[str] = Counter()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
            with open(f"/proc/{coordinator}/fdinfo/{name}") as info:
                flags = int(info.read().split("flags:")[1].split()[0], 8)
        except FileNotFoundError:
            continue
        if target.endswith(".lock") and flags & os.O_ACCMODE == os.O_RDONLY:
            continue
        found[target.partition(":")[0].removesuffix(" (deleted)")] += 1
    return found


def mapped_page_count(host: SystemHost) -> int:
    """Pages that the coordinator has mapped."""
    assert host.coordinator
    return len(mapped_memfds(host.coordinator.pid, "gpushare"))


def mapped_memfds(pid: int, name: str) -> set[str]:
    """The inodes of the memfds that a process has mapped, of those whose names begin so."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if f"/memfd:{name}" in line}


def resident_bytes(host: SystemHost) -> int:
    """Bytes of the coordinator that are in memory."""
    assert host.coordinator
    with open(f"/proc/{host.coordinator.pid}/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
