"""How much of the devices somebody has used lately."""

from __future__ import annotations

import math


class Usage:
    """Seconds of use, of which those `memory` seconds ago count 1/e, as in an exponentially weighted window.

    `key` orders usages without naming a time: all decay alike, so whoever has the smaller key has used less, at any
    moment, until one of them is used again. It never shrinks.
    """

    __slots__ = ("_at", "_value", "memory")

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self._value = 0.0
        self._at = 0.0

    def at(self, now: float) -> float:
        """Seconds."""
        return self._value * math.exp((self._at - now) / self.memory)

    def add(self, seconds: float, now: float) -> None:
        """`seconds` of use that end at `now`; they count in full."""
        self._value = self.at(now) + seconds
        self._at = now

    @property
    def key(self) -> float:
        return -math.inf if self._value <= 0 else math.log(self._value) + self._at / self.memory
