"""How much of the devices somebody has used lately."""

from __future__ import annotations

import math


class Usage:
    """Seconds of use, of which those `memory` seconds ago count 1/e, as in an exponentially weighted window.

    `key` orders usages without naming a time: all decay alike, so whoever has the smaller key has used less, at any
    moment, until one of them is used again. It never shrinks.
    """

    __slots__ = ("_at", "_memory", "_value", "key")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._value = 0.0
        self._at = 0.0
        self.key = -math.inf

    def remember(self, memory: float) -> None:
        """From now on what was used `memory` seconds ago counts 1/e."""
        self._memory = memory
        self._set_key()

    def at(self, now: float) -> float:
        """Seconds."""
        return self._value * math.exp((self._at - now) / self._memory)

    def add(self, seconds: float, now: float) -> None:
        """`seconds` of use that end at `now`; they count in full."""
        self._value = self.at(now) + seconds
        self._at = now
        self._set_key()

    def _set_key(self) -> None:
        self.key = -math.inf if self._value <= 0 else math.log(self._value) + self._at / self._memory
