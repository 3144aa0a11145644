"""Queue of deadlines by key."""

from __future__ import annotations

import heapq

Key = tuple[str, str]


class DeadlineQueue:
    """Deadlines, at most one for each key. A change, or the removal of one due key, costs O(log n), amortised.

    A deadline that has changed stays in the heap until it is the earliest there.
    """

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def set(self, key: Key, time: float | None) -> None:
        if time is None:
            self._times.pop(key, None)
        elif self._times.get(key) != time:
            self._times[key] = time
            heapq.heappush(self._heap, (time, key))

    def earliest(self) -> tuple[float, Key] | None:
        while self._heap:
            time, key = self._heap[0]
            if self._times.get(key) == time:
                return time, key
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> list[Key]:
        """Remove the keys whose deadline has come, and return these keys, the earliest first."""
        due = []
        while (first := self.earliest()) and first[0] <= now:
            heapq.heappop(self._heap)
            del self._times[first[1]]
            due.append(first[1])
        return due
