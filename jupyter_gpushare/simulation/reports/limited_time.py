"""Seconds in which limits of clients were in force, by client and reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ...core import Scheduler
from ...core.views.present_limits import present_limits
from ..entities import SimClient


class LimitedTime:
    """Seconds of work and waits in which each limit of a client was in force.

    Limits of a client that neither works nor waits do not count.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)  # by client and reason

    def add(self, scheduler: Scheduler, users: Iterable[SimClient], since: float, until: float, window: float) -> None:
        """Add the time from `since` to `until` for the clients that work or wait; `window`: the in-flight window."""
        for user in users:
            limits = present_limits(scheduler, scheduler.clients[user.id], since, window)
            for reason in {limit.reason for limit in limits}:
                self._seconds[user.id, reason] += until - since

    def __iadd__(self, other: LimitedTime) -> LimitedTime:
        for key, seconds in other._seconds.items():
            self._seconds[key] += seconds
        return self

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return the seconds by client and reason; a client without limits has no entry."""
        by_client: dict[str, dict[str, float]] = {}
        for (client, reason), seconds in sorted(self._seconds.items()):
            by_client.setdefault(client, {})[reason] = round(seconds, 6)
        return by_client
