"""Values that processes and the device monitor report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU; `memory` in bytes is what the scheduler takes it to have."""

    uuid: str
    name: str = ""
    memory: int = 0
    simulated: bool = False
    is_unverified: bool = (
        False  # only a user's process says that it is there: it is that process's, and offered to nobody
    )


@dataclass(frozen=True)
class ReportedTurn:
    """A turn that a process says to be in when it joins: the number, and whether its gate is open."""

    number: int
    is_open: bool
