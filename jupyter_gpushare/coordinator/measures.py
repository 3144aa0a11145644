"""What processes measure of themselves: read from their pages, clamped, and kept when they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..wire import page as pages

MOST_NS = 1 << 60  # 36 years; what a process reports beyond it is nonsense
MOST_DRAINS = 1 << 32
MOST_LAUNCHED = 1 << 60


@dataclass(frozen=True)
class Measures:
    """Of one process, or of several together. Times in nanoseconds."""

    gpu_ns: int = 0  # how long the device worked for it: an estimate
    drain_last_ns: int = 0
    drain_most_ns: int = 0
    drain_total_ns: int = 0
    drains: tuple[int, ...] = ()  # by time: bucket i below 2^i ms, the last whatever is longer
    launches: int = 0
    blocks: int = 0  # of launches
    counted_ns: int = 0  # when these were counted last

    @classmethod
    def read(cls, page: pages.Page) -> Measures:
        report = page.report
        return cls(
            min(report.gpu_ns, MOST_NS),
            min(report.drain_ns, MOST_NS),
            min(report.drain_most_ns, MOST_NS),
            min(report.drain_total_ns, MOST_NS),
            tuple(min(count, MOST_DRAINS) for count in report.drains),
            min(report.launches, MOST_LAUNCHED),
            min(report.blocks, MOST_LAUNCHED),
            min(report.sampled_ns, MOST_NS),
        )

    def __add__(self, later: Measures) -> Measures:
        count = max(len(self.drains), len(later.drains))
        pairs = zip(self._padded(count), later._padded(count), strict=True)
        return Measures(
            self.gpu_ns + later.gpu_ns,
            later.drain_last_ns or self.drain_last_ns,
            max(self.drain_most_ns, later.drain_most_ns),
            self.drain_total_ns + later.drain_total_ns,
            tuple(a + b for a, b in pairs),
            self.launches + later.launches,
            self.blocks + later.blocks,
            max(self.counted_ns, later.counted_ns),
        )

    def _padded(self, count: int) -> tuple[int, ...]:
        return self.drains + (0,) * (count - len(self.drains))

    def of_client(self) -> dict[str, Any]:
        """Fields of a client in the snapshot."""
        return {
            "gpu_busy_seconds": round(self.gpu_ns / 1e9, 3),
            "drain": {"last_ms": round(self.drain_last_ns / 1e6, 3), "max_ms": round(self.drain_most_ns / 1e6, 3)},
        }

    def of_all(self) -> dict[str, Any]:
        """The drains of all clients that ever were, for a histogram: `buckets` by the time below which they took."""
        buckets = self._padded(pages.layout()[1]["GPUSHARE_DRAIN_BUCKETS"])
        return {"buckets": list(buckets), "seconds": round(self.drain_total_ns / 1e9, 6)}
