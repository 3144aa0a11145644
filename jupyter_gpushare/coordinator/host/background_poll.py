"""Calls that may hang, in a thread of their own, so that no turn waits for the result."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundPoller(Generic[T]):
    """Poller of one query at a time, whose result a later call takes. `query` must not raise."""

    def __init__(self, query: Callable[[], T]) -> None:
        self._query = query
        self._requests = threading.Semaphore(0)
        self._results: deque[T] = deque()
        self._requested_at: float | None = None
        self._is_closed = False
        # A daemon thread, because a query may hang for good and must not keep the program from its end.
        threading.Thread(target=self._run, name="background poll", daemon=True).start()

    def take_result(self, now: float) -> T | None:
        """Return the result of the last query and start the next query; None while there is no result."""
        result = self._results.popleft() if self._results else None
        if result is not None or self._requested_at is None:
            self._requested_at = now
            self._requests.release()
        return result

    def seconds_pending(self, now: float) -> float:
        """Return the seconds since the start of the present query; 0 without one."""
        return 0.0 if self._requested_at is None or self._results else now - self._requested_at

    def close(self) -> None:
        self._is_closed = True
        self._requests.release()

    def _run(self) -> None:
        while self._requests.acquire() and not self._is_closed:
            self._results.append(self._query())
