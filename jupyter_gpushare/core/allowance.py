"""A quota's `limit`: the largest fraction of time that a client may run, also while the device is idle.

A token bucket, as KubeShare's (Yeh et al., HPDC'20) and GaiaGPU's (Gu et al., 2018) limits are: a client earns `limit`
seconds per second and spends one per second of running. It starts with a turn's worth and ends when nothing is left,
so that its mean over time is the limit itself. What it earns while it wants to run and others are before it is kept,
up to a few turns' worth; what it could have earned while it did not want to run is not.
"""

from __future__ import annotations

_TURN = 0.25  # how much it must have earned before it starts, as a part of a quantum: turns that pay, short pauses
_LONGEST = 0.5  # and at most, in seconds per second: the limit holds within a minute
_PAYS = 2.0  # turns are at least so many times what switching costs
_KEPT = 3.0  # turns' worth, for who had to wait


class Allowance:
    """Of one client whose limit is below 1."""

    __slots__ = ("_at", "_earned", "_turn", "limit")

    def __init__(self, limit: float, quantum: float, cost: float, now: float, before: Allowance | None = None) -> None:
        self.limit = limit
        self.fit(quantum, cost)
        # Another limit is no new beginning.
        self._earned = min(self._turn, before._earned_at(now)) if before else self._turn
        self._at = now

    def fit(self, quantum: float, cost: float) -> None:
        """`quantum` in seconds, `cost`: seconds that taking the devices away and giving them back takes."""
        self._turn = max(min(_TURN * quantum, _LONGEST) * self.limit, _PAYS * cost * (1.0 - self.limit))

    def _earned_at(self, now: float) -> float:
        return min(self._earned + (now - self._at) * self.limit, max(_KEPT * self._turn, self._earned))

    def wanted(self, now: float) -> None:
        """From now on it wants to run; until now it did not."""
        self._earned = min(self._earned_at(now), self._turn)
        self._at = now

    def ran(self, seconds: float, now: float) -> None:
        """It ran for `seconds` until `now`. What it ran before it had this limit is not spent."""
        seconds = min(seconds, now - self._at)
        self._earned = self._earned_at(now - seconds) - seconds * (1.0 - self.limit)
        self._at = now

    def ready_at(self) -> float:
        """When it may start."""
        return self._at + max(0.0, self._turn - self._earned) / self.limit

    def ends_at(self, began: float) -> float:
        """When a turn that began at `began` has spent everything."""
        began = max(began, self._at)
        return began + max(self._earned_at(began), 0.0) / (1.0 - self.limit)
