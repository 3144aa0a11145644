"""Measured cost of taking the devices from a client and of giving the devices back.

The device works while it drains, so draining costs next to nothing. The cost is that of the memory that moves.
"""

from __future__ import annotations

_EWMA_WEIGHT = 0.3  # the weight of the newest measurement
_HANDOFF_SECONDS = 0.001  # from a client's last launch to the first launches of the next, caches and clocks included

DEFAULT_RESTORE_BYTES_PER_SECOND = 10e9  # bytes a second at which memory comes back, until it has been measured


class SwitchCostEstimate:
    """Seconds of drain, eviction and restore, each exponentially weighted."""

    __slots__ = ("drain", "evict", "restore")

    def __init__(self) -> None:
        self.drain = 0.0
        self.evict = 0.0
        self.restore = 0.0

    @property
    def total(self) -> float:
        return _HANDOFF_SECONDS + self.evict + self.restore

    def add_drain(self, drain: float, evict: float) -> None:
        self.drain += _EWMA_WEIGHT * (drain - self.drain)
        self.evict += _EWMA_WEIGHT * (evict - self.evict)

    def add_restore(self, restore: float) -> None:
        self.restore += _EWMA_WEIGHT * (restore - self.restore)
