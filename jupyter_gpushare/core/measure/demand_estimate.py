"""How much of a device a client would use if it had it whenever it wanted."""

from __future__ import annotations

_HALF_LIFE_SECONDS = 10.0  # seconds after which what was seen counts half
_MIN_OBSERVATION_SECONDS = 0.3  # seconds, of which something can be said
_MAX_PAUSE_SECONDS = 1.0  # a pause counts for so long at most: then it is another piece of work


class DemandEstimate:
    """Seconds in which the device had work of the client, of all seconds in which it did not wait for it."""

    __slots__ = ("_last_granted_seconds", "_last_work_seconds", "_observed_seconds", "_time", "_work")

    def __init__(self) -> None:
        self._work = 0.0
        self._time = 0.0
        self._observed_seconds = 0.0  # of that, with the device
        self._last_work_seconds = 0.0  # both counters when they were read last
        self._last_granted_seconds = 0.0

    def add_sample(self, work_seconds: float, granted_seconds: float, exclusive: bool) -> None:
        """Add the seconds in which the device had work of the client, of those in which the client had the device.

        Work in a colocation (not `exclusive`) takes longer than work alone. Such a sample counts only until there is an
        exclusive one.
        """
        if exclusive or self._observed_seconds < _MIN_OBSERVATION_SECONDS:
            time = max(granted_seconds - self._last_granted_seconds, 0.0)
            self._work += min(max(work_seconds - self._last_work_seconds, 0.0), time)
            self._time += time
            self._observed_seconds += time
        self._last_work_seconds, self._last_granted_seconds = work_seconds, granted_seconds
        if self._time > 2 * _HALF_LIFE_SECONDS:
            self._work, self._time = self._work / 2, self._time / 2

    def add_pause(self, seconds: float) -> None:
        """It neither had the device nor waited for it."""
        self._time += min(seconds, _MAX_PAUSE_SECONDS)

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None: not known yet."""
        return self._work / self._time if self._observed_seconds >= _MIN_OBSERVATION_SECONDS else None
