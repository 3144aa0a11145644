"""What it costs to take the devices from a client and to give them back, measured."""

from __future__ import annotations

_NEW = 0.3  # the weight of the newest measurement
_DRAIN = 0.015  # seconds, before the first measurement


class Switching:
    """Seconds, exponentially weighted."""

    __slots__ = ("drain", "evict", "restore")

    def __init__(self) -> None:
        self.drain = _DRAIN
        self.evict = 0.0
        self.restore = 0.0

    @property
    def cost(self) -> float:
        return self.drain + self.evict + self.restore

    def drained(self, drain: float, evict: float) -> None:
        self.drain += _NEW * (drain - self.drain)
        self.evict += _NEW * (evict - self.evict)

    def restored(self, restore: float) -> None:
        self.restore += _NEW * (restore - self.restore)
