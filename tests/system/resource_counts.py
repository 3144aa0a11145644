"""Counts of the resources that a coordinator has for its clients: descriptors and mapped pages."""

from __future__ import annotations

import os
from collections import Counter

from .system_host import SystemHost


def descriptors(host: SystemHost) -> Counter[str]:
    """Return the descriptors of the host's coordinator, by kind."""
    assert host.coordinator
    return descriptors_of(host.coordinator.pid)


def descriptors_of(coordinator: int) -> Counter[str]:
    """Return the number of descriptors that a coordinator has open for clients, by kind.

    The count may include a connection whose end the coordinator has not detected yet.
    The count leaves out lock files open for reading, which show waiting clients of other coordinators.
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
    """Return the number of pages that the coordinator has mapped."""
    assert host.coordinator
    return len(mapped_memfds(host.coordinator.pid, "gpushare"))


def mapped_memfds(pid: int, name: str) -> set[str]:
    """Return the inodes of the memfds that a process has mapped, for memfds whose names begin with `name`."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if f"/memfd:{name}" in line}


def resident_bytes(host: SystemHost) -> int:
    """Return the resident bytes of the coordinator's process."""
    assert host.coordinator
    with open(f"/proc/{host.coordinator.pid}/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
