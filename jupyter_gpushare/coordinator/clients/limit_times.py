"""Times since which the present limits of a client have been in force."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

LimitKey = tuple[str, tuple[str, ...]]  # the reason of a limit, and the clients in whose favour it is


class LimitTimes:
    """Times at which the present limits of one client were found first, in Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since: dict[LimitKey, float] = {}

    def update(self, present: Iterable[LimitKey]) -> dict[LimitKey, float]:
        """Return the time of each present limit. A limit that has ended begins anew when it is present again."""
        now = round(self._clock(), 1)
        self._since = {key: self._since.get(key, now) for key in present}
        return self._since
