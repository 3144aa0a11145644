"""Asking what may hang: in a thread of its own, so that nobody's turn waits for the answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Patient(Generic[T]):
    """One question at a time; the answer is there when somebody looks later. `ask` must not raise."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._wanted = threading.Semaphore(0)
        self._answers: deque[T] = deque()
        self._asked: float | None = None
        self._ends = False
        # Not waited for at the end of the program: it may hang for good.
        threading.Thread(target=self._run, name="patient", daemon=True).start()

    def answer(self, now: float) -> T | None:
        """The answer to the last question, once, after which it is asked again; None: there is none yet."""
        answer = self._answers.popleft() if self._answers else None
        if answer is not None or self._asked is None:
            self._asked = now
            self._wanted.release()
        return answer

    def silent_for(self, now: float) -> float:
        """Seconds for which the present question has been open."""
        return 0.0 if self._asked is None or self._answers else now - self._asked

    def close(self) -> None:
        self._ends = True
        self._wanted.release()

    def _run(self) -> None:
        while self._wanted.acquire() and not self._ends:
            self._answers.append(self._ask())
