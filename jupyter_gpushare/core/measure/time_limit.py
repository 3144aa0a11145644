"""Token bucket for a quota's `limit`, the largest fraction of time that a client may run, even on an idle device.

KubeShare (Yeh et al., HPDC'20) and GaiaGPU (Gu et al., 2018) use token buckets as well. A client earns `limit`
seconds per second and spends one second per second of running. A client's first bucket starts with the seconds of one
turn. The turn ends when the bucket is empty, so that the mean over time is the limit itself. A client that waits keeps
what it earns, up to the seconds of a few turns. A client that neither waits nor runs keeps nothing beyond one turn.
"""

from __future__ import annotations

_START_FRACTION = 0.25  # of a quantum, earned before a turn: the turn pays for its switch, and the pause stays short
_MAX_START_SECONDS = 0.5  # upper bound of these seconds, per unit of `limit`: the limit holds within a minute
_MIN_TURN_SWITCH_COSTS = 2.0  # the shortest turn, in switch costs
_MAX_BURST_TURNS = 3.0  # the most turns that a client can earn while it waits


class TimeLimitBucket:
    """Token bucket of one client whose limit is below 1."""

    __slots__ = ("_earned", "_turn_seconds", "_updated_at", "limit")

    def __init__(
        self, limit: float, quantum: float, cost: float, now: float, previous: TimeLimitBucket | None = None
    ) -> None:
        self.limit = limit
        self.resize(quantum, cost)
        # A change of the limit does not refill the bucket.
        self._earned = min(self._turn_seconds, previous._earned_at(now)) if previous else self._turn_seconds
        self._updated_at = now

    def resize(self, quantum: float, cost: float) -> None:
        """Set the length of a turn from `quantum` and from `cost`, the switch cost, both in seconds."""
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
        """Note that the client begins to wait at `now`. Time without a wait earns at most one turn."""
        self._earned = min(self._earned_at(now), self._turn_seconds)
        self._updated_at = now

    def charge(self, seconds: float, now: float) -> None:
        """Spend `seconds` of running that end at `now`. Time from before this limit is not spent."""
        seconds = min(seconds, now - self._updated_at)
        self._earned = self._earned_at(now - seconds) - seconds * (1.0 - self.limit)
        self._updated_at = now

    def ready_at(self) -> float:
        """Return when the client may start."""
        return self._updated_at + max(0.0, self._turn_seconds - self._earned) / self.limit

    def ends_at(self, started_at: float) -> float:
        """Return when a turn that began at `started_at` has spent everything."""
        started_at = max(started_at, self._updated_at)
        return started_at + max(self._earned_at(started_at), 0.0) / (1.0 - self.limit)
