"""How much of a device a client would use if it had it whenever it wanted."""

from __future__ import annotations

_MEMORY = 10.0  # seconds after which what was seen counts half
_ENOUGH = 0.3  # seconds, of which something can be said
_PAUSE = 1.0  # a pause counts for so long at most: then it is another piece of work


class Demand:
    """Seconds in which the device had work of the client, of all seconds in which it did not wait for it."""

    __slots__ = ("_held", "_seen", "_time", "_work", "_worked")

    def __init__(self) -> None:
        self._work = 0.0
        self._time = 0.0
        self._seen = 0.0  # of that, with the device
        self._worked = 0.0  # both counters when they were read last
        self._held = 0.0

    def progress(self, worked: float, held: float, alone: bool) -> None:
        """Counters in seconds: in which the device had work of the client, and in which the client had the device.

        What it did beside others, not `alone`, took longer than it does alone: it counts only as long as nothing better
        is known.
        """
        if alone or self._seen < _ENOUGH:
            time = max(held - self._held, 0.0)
            self._work += min(max(worked - self._worked, 0.0), time)
            self._time += time
            self._seen += time
        self._worked, self._held = worked, held
        if self._time > 2 * _MEMORY:
            self._work, self._time = self._work / 2, self._time / 2

    def paused(self, seconds: float) -> None:
        """It neither had the device nor waited for it."""
        self._time += min(seconds, _PAUSE)

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None: not known yet."""
        return self._work / self._time if self._seen >= _ENOUGH else None
