"""Fragmentation of free capacity, after FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

A client cannot use the free fraction of a device that is smaller than the client's need.
The measure divides two integrals over time: the free capacity that a random client of the workload could not use, and
all free capacity.
The need of a client is its memory on one device over the device's memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class FreeCapacity:
    """Integrals over time of the free and the unusable capacity, in device seconds."""

    def __init__(self, needs: Iterable[float], devices: int) -> None:
        self._needs = sorted(needs)
        self._free = [1.0] * devices
        self._unusable_by_device = [self._unusable(1.0)] * devices
        self._since = 0.0
        self._sum_free = float(devices)
        self._sum_unusable = sum(self._unusable_by_device)
        self.free = self.unusable = 0.0

    def update(self, device: int, need: float, now: float) -> None:
        """Record a client with this `need` that arrives on the device, or departs if `need` is negative."""
        self.advance(now)
        self._free[device] -= need
        unusable = self._unusable(self._free[device])
        free = max(0.0, self._free[device])
        self._sum_unusable += unusable - self._unusable_by_device[device]
        self._sum_free += free - max(0.0, self._free[device] + need)
        self._unusable_by_device[device] = unusable

    def advance(self, now: float) -> None:
        self.free += self._sum_free * (now - self._since)
        self.unusable += self._sum_unusable * (now - self._since)
        self._since = now

    def _unusable(self, free: float) -> float:
        """Return the free fraction times the fraction of all clients that need more."""
        if free <= 1e-9 or not self._needs:
            return 0.0
        return free * (1.0 - bisect_right(self._needs, free + 1e-9) / len(self._needs))
