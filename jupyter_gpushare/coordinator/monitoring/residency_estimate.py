"""Estimate of the resident memory of each client by device, from the reports of its processes.

In memory mode swap or plain, a process without managed memory reports its exact resident memory. CUDA gives no such
figure for other memory: the process reports the memory that it has not evicted itself, and the driver may have evicted
more. The driver evicts the memory that was used longest ago. So the room that exact processes leave on a device is
filled in the order of the last turns.

A process of memory mode swap reports its memory by device. Other memory of a process with several devices is divided
among them evenly, and the parts are marked as estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import ProcessHandle


@dataclass
class Residency:
    """Resident memory and host memory of one client in bytes."""

    by_device: dict[str, int] = field(default_factory=dict)
    is_estimate: bool = False  # about the sum
    by_device_is_estimate: bool = False
    host_pinned: int = 0  # for evicted memory
    host_pageable: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_device.values())

    def as_json(self) -> dict[str, Any]:
        """Return fields of a client in the snapshot."""
        return {
            "resident": self.total,
            "resident_is_estimate": self.is_estimate,
            "resident_by_device": dict(self.by_device),
            "resident_by_device_is_estimate": self.by_device_is_estimate,
            "host_pinned": self.host_pinned,
            "host_pageable": self.host_pageable,
        }

    def _add(self, sizes: Mapping[str, int]) -> None:
        for uuid, size in sizes.items():
            self.by_device[uuid] = self.by_device.get(uuid, 0) + size


def estimate_residency(runtimes: Sequence[ClientRuntime], capacities: Mapping[str, int]) -> dict[str, Residency]:
    """Return the residency of each client.

    `runtimes` begins with the clients that run or ran last. `capacities` has the bytes of each device.
    """
    residencies = {runtime.client_id: Residency() for runtime in runtimes}
    room = dict(capacities)
    handles = [
        (residencies[one.client_id], handle, handle.is_resident_exact)
        for one in runtimes
        for handle in one.processes.values()
    ]
    for residency, handle, is_exact in handles:
        residency.host_pinned += handle.host_pinned
        residency.host_pageable += handle.host_pageable
        residency.is_estimate = residency.is_estimate or not is_exact
        residency.by_device_is_estimate = (
            residency.by_device_is_estimate or residency.is_estimate or not handle.is_placement_exact
        )
    for exact in (True, False):
        for residency, handle, is_exact in handles:
            if is_exact is exact:
                sizes = _distribute(handle, None if exact else room)
                residency._add(sizes)
                for uuid, size in sizes.items():
                    room[uuid] = max(0, room.get(uuid, 0) - size)
    return residencies


def _distribute(handle: ProcessHandle, room: Mapping[str, int] | None) -> dict[str, int]:
    """Return the resident memory of a process by device, or divide it evenly within the `room` of each device."""
    if room is None:
        return {uuid: use.resident for uuid, use in handle.memory_by_device.items()}
    left, sizes = handle.memory_use.resident, {}
    devices = sorted(handle.devices, key=lambda uuid: room.get(uuid, 0))
    for number, uuid in enumerate(devices):
        sizes[uuid] = min(left // (len(devices) - number), room.get(uuid, 0))
        left -= sizes[uuid]
    return sizes
