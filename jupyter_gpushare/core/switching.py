"""What it costs to take the devices from a client and to give them back, measured.

The device works while it drains, so that draining costs next to nothing; what costs is the memory that moves.
"""

from __future__ import annotations

_NEW = 0.3  # the weight of the newest measurement
_PASSING = 0.001  # seconds from the last launch of a client to the first ones of the next, caches and clocks included

SLOW_LINK = 10e9  # bytes a second at which memory comes back, until it has been measured


class Switching:
    """Seconds, exponentially weighted."""

    __slots__ = ("drain", "evict", "restore")

    def __init__(self) -> None:
        self.drain = 0.0
        self.evict = 0.0
        self.restore = 0.0

    @property
    def cost(self) -> float:
        return _PASSING + self.evict + self.restore

    def drained(self, drain: float, evict: float) -> None:
        self.drain += _NEW * (drain - self.drain)
        self.evict += _NEW * (evict - self.evict)

    def restored(self, restore: float) -> None:
        self.restore += _NEW * (restore - self.restore)
