"""Description of a device, and the turn that a process reports when it joins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU, or one MIG slice. `memory` is the size in bytes that the scheduler assumes."""

    uuid: str
    name: str = ""
    memory: int = 0
    simulated: bool = False
    is_unverified: bool = False  # only a user's process has reported the device, so placement offers it to no client
    parent: str = ""  # UUID of the GPU that a MIG slice is a part of; empty: a whole GPU


@dataclass(frozen=True)
class ReportedTurn:
    """A turn that a process is in when it joins: the turn number, and whether the gate is open."""

    number: int
    is_open: bool
