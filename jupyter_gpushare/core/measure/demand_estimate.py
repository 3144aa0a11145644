"""Estimate of the fraction of a device that a client would use if it never waited."""

from __future__ import annotations

_HALF_LIFE_SECONDS = 10.0  # seconds after which an observation counts half
_MIN_OBSERVATION_SECONDS = 0.3  # seconds that an estimate needs
_MAX_PAUSE_SECONDS = 1.0  # the largest part of a pause that counts; after that, other work begins


class DemandEstimate:
    """Seconds with work of the client on the device, over all seconds in which the client did not wait for it."""

    __slots__ = ("_last_granted_seconds", "_last_work_seconds", "_observed_seconds", "_time", "_work")

    def __init__(self) -> None:
        self._work = 0.0
        self._time = 0.0
        self._observed_seconds = 0.0  # the part of `_time` with the device
        self._last_work_seconds = 0.0  # both counters at their last reading
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
        """Add `seconds` in which the client neither had the device nor waited for it."""
        self._time += min(seconds, _MAX_PAUSE_SECONDS)

    @property
    def fraction(self) -> float | None:
        """The demand, from 0 to 1; None: unknown."""
        return self._work / self._time if self._observed_seconds >= _MIN_OBSERVATION_SECONDS else None
