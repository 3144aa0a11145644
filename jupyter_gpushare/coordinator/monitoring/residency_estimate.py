"""How much of each client is on which device, from what its processes report.

A process in memory mode swap or plain knows it to the byte. Unified memory cannot be asked: such a process reports what
it has not moved away itself, and the driver may have moved more; it evicts what was used longest ago. So what the exact
ones leave of a device is filled in the order of the last turns.

A process reports one figure. If it has several devices, it is shared out among them evenly, and told to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import ProcessHandle


@dataclass
class Residency:
    """Bytes of one client."""

    by_device: dict[str, int] = field(default_factory=dict)
    is_estimate: bool = False  # the sum
    by_device_is_estimate: bool = False
    host_pinned: int = 0  # of the host, for what was evicted
    host_pageable: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_device.values())

    def as_json(self) -> dict[str, Any]:
        """Fields of a client in the snapshot."""
        return {
            "resident": self.total,
            "resident_is_estimate": self.is_estimate,
            "resident_by_device": dict(self.by_device),
            "resident_by_device_is_estimate": self.by_device_is_estimate,
            "host_pinned": self.host_pinned,
            "host_pageable": self.host_pageable,
        }

    def _add(self, parts: Mapping[str, int]) -> None:
        for uuid, size in parts.items():
            self.by_device[uuid] = self.by_device.get(uuid, 0) + size


def estimate_residency(runtimes: Sequence[ClientRuntime], capacities: Mapping[str, int]) -> dict[str, Residency]:
    """By client. `runtimes`: those that run, or ran last, come first; `capacities`: bytes of each device."""
    found = {runtime.client_id: Residency() for runtime in runtimes}
    room = dict(capacities)
    handles = [
        (found[one.client_id], handle, handle.is_resident_exact)
        for one in runtimes
        for handle in one.processes.values()
    ]
    for of, handle, knows in handles:
        of.host_pinned += handle.host_pinned
        of.host_pageable += handle.host_pageable
        of.is_estimate = of.is_estimate or not knows
        of.by_device_is_estimate = of.by_device_is_estimate or of.is_estimate or len(handle.devices) > 1
    for exact in (True, False):
        for of, handle, knows in handles:
            if knows is exact:
                parts = _distribute(handle, None if exact else room)
                of._add(parts)
                for uuid, size in parts.items():
                    room[uuid] = max(0, room.get(uuid, 0) - size)
    return found


def _distribute(handle: ProcessHandle, room: Mapping[str, int] | None) -> dict[str, int]:
    """What is resident of a process, by device: evenly, but nowhere more than there is `room` for."""
    left, parts = handle.memory_use.resident, {}
    devices = sorted(handle.devices, key=lambda uuid: room.get(uuid, 0) if room else 0)
    for number, uuid in enumerate(devices):
        part = left // (len(devices) - number)
        parts[uuid] = part if room is None else min(part, room.get(uuid, 0))
        left -= parts[uuid]
    return parts
