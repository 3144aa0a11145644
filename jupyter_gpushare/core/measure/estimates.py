"""Estimates of a client's demand, recent usage and switch cost."""

from __future__ import annotations

import math

_DEMAND_HALF_LIFE_SECONDS = 10.0  # seconds after which an observation counts half
_MIN_DEMAND_OBSERVATION_SECONDS = 0.3  # seconds that an estimate needs
_MAX_PAUSE_SECONDS = 1.0  # the largest part of a pause that counts; after that, other work begins
_USAGE_TIME_CONSTANT_SECONDS = 600.0  # after which a second of use counts 1/e
_SWITCH_COST_EWMA_WEIGHT = 0.3  # the weight of the newest measurement
_HANDOFF_SECONDS = 0.001  # from a client's last launch to the first launches of the next, caches and clocks included

DEFAULT_RESTORE_BYTES_PER_SECOND = 10e9  # bytes a second at which memory comes back, until it has been measured
MIN_RESTORE_BYTES_PER_SECOND = 1e9  # the quantum counts from the end of a restore that is at least as fast


class DemandEstimate:
    """Estimate of the fraction of a device that a client would use if it never waited.

    The fraction is the seconds with work of the client on the device, over all seconds in which the client did not wait
    for the device.
    """

    __slots__ = ("_last_granted_seconds", "_last_work_seconds", "_observed_seconds", "_time", "_work")

    def __init__(self) -> None:
        self._work = 0.0
        self._time = 0.0
        self._observed_seconds = 0.0  # the part of `_time` with the device
        self._last_work_seconds = 0.0  # both counters at their last reading
        self._last_granted_seconds = 0.0

    def add_sample(self, work_seconds: float, granted_seconds: float, exclusive: bool) -> None:
        """Add the seconds in which the device had work of the client, of those in which the client had the device.

        Work in a colocation (not `exclusive`) takes longer than exclusive work. Such a sample counts only until there
        is an exclusive one.
        """
        if exclusive or self._observed_seconds < _MIN_DEMAND_OBSERVATION_SECONDS:
            time = max(granted_seconds - self._last_granted_seconds, 0.0)
            self._work += min(max(work_seconds - self._last_work_seconds, 0.0), time)
            self._time += time
            self._observed_seconds += time
        self._last_work_seconds, self._last_granted_seconds = work_seconds, granted_seconds
        if self._time > 2 * _DEMAND_HALF_LIFE_SECONDS:
            self._work, self._time = self._work / 2, self._time / 2

    def add_pause(self, seconds: float) -> None:
        """Add `seconds` in which the client neither had the device nor waited for it."""
        self._time += min(seconds, _MAX_PAUSE_SECONDS)

    @property
    def fraction(self) -> float | None:
        """The demand, from 0 to 1; None: unknown."""
        return self._work / self._time if self._observed_seconds >= _MIN_DEMAND_OBSERVATION_SECONDS else None


class DecayingUsage:
    """Recent usage of devices by a client: seconds of use, of which older seconds count less."""

    __slots__ = ("_at", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._at = 0.0

    def at(self, now: float) -> float:
        """Return the seconds of use as they count at `now`."""
        return self._value * math.exp((self._at - now) / _USAGE_TIME_CONSTANT_SECONDS)

    def add(self, seconds: float, now: float) -> None:
        """Add `seconds` of use that end at `now`; they count in full."""
        self._value = self.at(now) + seconds
        self._at = now


class SwitchCostEstimate:
    """Measured cost of taking the devices from a client and of giving the devices back, in seconds.

    The seconds of drain, eviction and restore are each exponentially weighted. The device works during a drain, so the
    total has no drain: it is the time for the memory that moves, plus a constant.
    """

    __slots__ = ("drain", "evict", "restore")

    def __init__(self) -> None:
        self.drain = 0.0
        self.evict = 0.0
        self.restore = 0.0

    @property
    def total(self) -> float:
        return _HANDOFF_SECONDS + self.evict + self.restore

    def add_drain(self, drain: float, evict: float) -> None:
        self.drain += _SWITCH_COST_EWMA_WEIGHT * (drain - self.drain)
        self.evict += _SWITCH_COST_EWMA_WEIGHT * (evict - self.evict)

    def add_restore(self, restore: float) -> None:
        self.restore += _SWITCH_COST_EWMA_WEIGHT * (restore - self.restore)
