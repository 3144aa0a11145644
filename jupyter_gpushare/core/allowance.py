"""A quota's `limit`: the largest fraction of time that a client may run, also while the device is idle.

A token bucket, as KubeShare's (Yeh et al., HPDC'20) and GaiaGPU's (Gu et al., 2018) limits are: a client earns `limit`
seconds per second and spends one per second of running. It starts with a turn's worth and ends when nothing is left,
so that its mean over time is the limit itself.
"""

from __future__ import annotations

_TURN = 0.25  # how much it must have earned before it starts, as a part of a quantum: turns that pay, short pauses


class Allowance:
    """Of one client whose limit is below 1."""

    __slots__ = ("_at", "_earned", "_turn", "limit")

    def __init__(self, limit: float, quantum: float, now: float) -> None:
        self.limit = limit
        self._turn = _TURN * quantum * limit
        self._earned = self._turn
        self._at = now

    def ran(self, seconds: float, now: float) -> None:
        """It ran for `seconds` until `now`. What it could have earned while it did not want to run is not kept;
        what it ran before it had this limit is not spent."""
        seconds = min(seconds, now - self._at)
        self._earned = min(self._earned + (now - seconds - self._at) * self.limit, self._turn)
        self._earned -= seconds * (1.0 - self.limit)
        self._at = now

    def ready_at(self) -> float:
        """When it may start."""
        return self._at + max(0.0, self._turn - self._earned) / self.limit

    def ends_at(self, began: float) -> float:
        """When a turn that began at `began` has spent everything."""
        began = max(began, self._at)
        earned = min(self._earned + (began - self._at) * self.limit, self._turn)
        return began + max(earned, 0.0) / (1.0 - self.limit)
