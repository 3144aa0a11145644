"""Limits on the use of the coordinator by one user or connection.

The limits are a budget of time and buffers, a token bucket for messages, and a counter of events in a window.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable

from ...core.base.errors import Refused

MAX_BUFFERED_BYTES = 32 << 20  # unread lines to, and incomplete lines from, all connections of a user
MAX_TIME_FRACTION = 0.25  # of the coordinator's time for the messages of one user; admins have no limit
BURST_SECONDS = 0.02  # of the coordinator's time, after a rest
_MIN_PAUSE_SECONDS = 0.1  # after an exhausted budget, so that messages are handled in batches


class LimitExceeded(Refused):
    """Error for a request beyond a limit per user; the message has the limit."""

    reason = "too_many"


class UserBudget:
    """Connections of one user, their buffered bytes, and the time that their messages take in the coordinator."""

    def __init__(self) -> None:
        self.connections = 0
        self.buffered_bytes = 0
        self._seconds_left = BURST_SECONDS
        self._at = float("-inf")

    def charge(self, now: float, seconds: float) -> None:
        """Charge the seconds that a message has taken."""
        self._refill(now)
        self._seconds_left -= seconds

    def seconds_until_allowed(self, now: float) -> float:
        """Return the seconds until the next message of this user may be handled."""
        self._refill(now)
        return max(_MIN_PAUSE_SECONDS, -self._seconds_left / MAX_TIME_FRACTION) if self._seconds_left < 0 else 0.0

    def is_idle(self, now: float) -> bool:
        return not self.connections and not self.seconds_until_allowed(now)

    def _refill(self, now: float) -> None:
        self._seconds_left = min(BURST_SECONDS, self._seconds_left + (now - self._at) * MAX_TIME_FRACTION)
        self._at = now

    @property
    def is_exhausted(self) -> bool:
        return self.buffered_bytes > MAX_BUFFERED_BYTES


class TokenBucket:
    """Token bucket for `rate` messages a second, and as many at once after a second without messages; 0: no limit."""

    def __init__(self, rate: Callable[[], float], now: float) -> None:
        self._rate = rate
        self._left = rate()
        self._at = now

    def take(self, now: float) -> float:
        """Take a token for one message and return 0, or return the seconds until the next attempt."""
        rate = self._rate()
        if not rate:
            return 0.0
        self._left = min(rate, self._left + (now - self._at) * rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return max(_MIN_PAUSE_SECONDS, (1.0 - self._left) / rate)


class WindowCounter:
    """Counter by key, which restarts from 0 after each window of `seconds`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started_at = clock()
        self._counts: Counter[Hashable] = Counter()

    def count(self, key: Hashable) -> int:
        """Count one more of a key, and return its count in this window."""
        now = self._clock()
        if now - self._started_at >= self._seconds:
            self._started_at = now
            self._counts.clear()
        self._counts[key] += 1
        return self._counts[key]
