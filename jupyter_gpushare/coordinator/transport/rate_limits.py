"""What one user, and one connection, may take of the coordinator: so that nobody's flood drowns others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable

from ...core.base.errors import Refused

MAX_BUFFERED_BYTES = 32 << 20  # bytes of all connections of a user: sent and not read by it, or begun and not finished
MAX_TIME_FRACTION = 0.25  # of the coordinator's time, that one user's messages may take; admins' may take all of it
BURST_SECONDS = 0.02  # seconds of it, after a rest
_MIN_PAUSE_SECONDS = 0.1  # seconds of messages that a connection is given at once after it has used up what it had


class LimitExceeded(Refused):
    """A user has as much already as anybody may have; the message says of what, and how much that is."""

    reason = "too_many"


class UserBudget:
    """Of one user: connections, bytes that are kept for them, and the coordinator's time that their messages take."""

    def __init__(self) -> None:
        self.connections = 0
        self.buffered_bytes = 0
        self._seconds_left = BURST_SECONDS
        self._at = float("-inf")

    def charge(self, now: float, seconds: float) -> None:
        """A message has taken so long."""
        self._refill(now)
        self._seconds_left -= seconds

    def seconds_until_allowed(self, now: float) -> float:
        """For how many seconds no message of this user is to be taken."""
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
    """A token bucket: `rate` messages a second, and as many at once after a second's silence; 0: no bound."""

    def __init__(self, rate: Callable[[], float], now: float) -> None:
        self._rate = rate
        self._left = rate()
        self._at = now

    def take(self, now: float) -> float:
        """One message. Returns 0, or for how many seconds none is to be taken."""
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
    """Counts by key, and begins anew after so many seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._counts: Counter[Hashable] = Counter()

    def count(self, key: Hashable) -> int:
        """One more. Returns how many there are by now."""
        now = self._clock()
        if now - self._began >= self._seconds:
            self._began = now
            self._counts.clear()
        self._counts[key] += 1
        return self._counts[key]
