"""Asking what may hang: in a thread of its own, so that nobody's turn waits for the answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundPoller(Generic[T]):
    """One question at a time; the answer is there when somebody looks later. `ask` must not raise."""

    def __init__(self, query: Callable[[], T]) -> None:
        self._query = query
        self._requests = threading.Semaphore(0)
        self._results: deque[T] = deque()
        self._requested_at: float | None = None
        self._is_closed = False
        # Not waited for at the end of the program: it may hang for good.
        threading.Thread(target=self._run, name="patient", daemon=True).start()

    def take_result(self, now: float) -> T | None:
        """The answer to the last question, once, after which it is asked again; None: there is none yet."""
        answer = self._results.popleft() if self._results else None
        if answer is not None or self._requested_at is None:
            self._requested_at = now
            self._requests.release()
        return answer

    def seconds_pending(self, now: float) -> float:
        """Seconds for which the present question has been open."""
        return 0.0 if self._requested_at is None or self._results else now - self._requested_at

    def close(self) -> None:
        self._is_closed = True
        self._requests.release()

    def _run(self) -> None:
        while self._requests.acquire() and not self._is_closed:
            self._results.append(self._query())
