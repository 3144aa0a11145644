"""Recent usage of devices by a client."""

from __future__ import annotations

import math

_TIME_CONSTANT_SECONDS = 600.0


class DecayingUsage:
    """Seconds of use. A second that lies `_TIME_CONSTANT_SECONDS` seconds back counts 1/e."""

    __slots__ = ("_at", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._at = 0.0

    def at(self, now: float) -> float:
        """Return the seconds of use as they count at `now`."""
        return self._value * math.exp((self._at - now) / _TIME_CONSTANT_SECONDS)

    def add(self, seconds: float, now: float) -> None:
        """Add `seconds` of use that end at `now`; they count in full."""
        self._value = self.at(now) + seconds
        self._at = now
