"""A quota's `limit`: the largest fraction of time that a client may run, also while the device is idle.

A token bucket, as KubeShare's (Yeh et al., HPDC'20) and GaiaGPU's (Gu et al., 2018) limits are: a client earns `limit`
seconds per second and spends one per second of running. It starts with a turn's worth and ends when nothing is left,
so that its mean over time is the limit itself. What it earns while it wants to run and others are before it is kept,
up to a few turns' worth; what it could have earned while it did not want to run is not.
"""

from __future__ import annotations

_START_FRACTION = (
    0.25  # how much it must have earned before it starts, as a part of a quantum: turns that pay, short pauses
)
_MAX_START_SECONDS = 0.5  # and at most, in seconds per second: the limit holds within a minute
_MIN_TURN_SWITCH_COSTS = 2.0  # turns are at least so many times what switching costs
_MAX_BURST_TURNS = 3.0  # turns' worth, for who had to wait


class TimeLimitBucket:
    """Of one client whose limit is below 1."""

    __slots__ = ("_earned", "_turn_seconds", "_updated_at", "limit")

    def __init__(
        self, limit: float, quantum: float, cost: float, now: float, previous: TimeLimitBucket | None = None
    ) -> None:
        self.limit = limit
        self.resize(quantum, cost)
        # Another limit is no new beginning.
        self._earned = min(self._turn_seconds, previous._earned_at(now)) if previous else self._turn_seconds
        self._updated_at = now

    def resize(self, quantum: float, cost: float) -> None:
        """`quantum` in seconds, `cost`: seconds that taking the devices away and giving them back takes."""
        self._turn_seconds = max(
            min(_START_FRACTION * quantum, _MAX_START_SECONDS) * self.limit,
            _MIN_TURN_SWITCH_COSTS * cost * (1.0 - self.limit),
        )

    def _earned_at(self, now: float) -> float:
        return min(
            self._earned + (now - self._updated_at) * self.limit,
            max(_MAX_BURST_TURNS * self._turn_seconds, self._earned),
        )

    def start_wait(self, now: float) -> None:
        """From now on it wants to run; until now it did not."""
        self._earned = min(self._earned_at(now), self._turn_seconds)
        self._updated_at = now

    def charge(self, seconds: float, now: float) -> None:
        """It ran for `seconds` until `now`. What it ran before it had this limit is not spent."""
        seconds = min(seconds, now - self._updated_at)
        self._earned = self._earned_at(now - seconds) - seconds * (1.0 - self.limit)
        self._updated_at = now

    def ready_at(self) -> float:
        """When it may start."""
        return self._updated_at + max(0.0, self._turn_seconds - self._earned) / self.limit

    def ends_at(self, started_at: float) -> float:
        """When a turn that began at `started_at` has spent everything."""
        started_at = max(started_at, self._updated_at)
        return started_at + max(self._earned_at(started_at), 0.0) / (1.0 - self.limit)
