"""How often something took how long."""

from __future__ import annotations

from typing import Any

BUCKETS = 22  # the last but one ends after 17 minutes


class Histogram:
    """Bucket i counts what took less than 2^i ms, and not less than the one before; the last whatever took longer."""

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._buckets[min(int(seconds * 1000).bit_length(), BUCKETS - 1)] += 1
        self._seconds += seconds

    def as_json(self) -> dict[str, Any]:
        return {"buckets": list(self._buckets), "seconds": round(self._seconds, 6)}
