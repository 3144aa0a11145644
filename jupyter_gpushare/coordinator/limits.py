"""What one user, and one connection, may take of the coordinator: so that nobody's flood drowns others."""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import Refused

MOST_BUFFERED = 32 << 20  # bytes of all connections of a user: sent and not read by it, or begun and not finished
_BREATH = 0.1  # seconds of messages that a connection is given at once after it has used up what it had


class TooMany(Refused):
    """A user has as much already as anybody may have; the message says of what, and how much that is."""

    reason = "too_many"


class Ledger:
    """Of one user: connections, and bytes that are kept for them."""

    def __init__(self) -> None:
        self.connections = 0
        self.buffered = 0

    @property
    def overdrawn(self) -> bool:
        return self.buffered > MOST_BUFFERED


class Bucket:
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
        return max(_BREATH, (1.0 - self._left) / rate)
