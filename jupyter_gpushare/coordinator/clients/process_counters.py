"""What processes measure of themselves: read from their pages, clamped, and kept when they end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...wire import page as pages

MAX_NS = 1 << 60  # 36 years; what a process reports beyond it is nonsense
MAX_LAUNCHES = 1 << 60
MAX_MOVED_BYTES = 1 << 50  # bytes


class WorkCounters(NamedTuple):
    """What somebody's work on one device was, as far as processes tell it: time, and bytes that left and came back."""

    busy_ns: int = 0
    evicted: int = 0
    restored: int = 0

    @classmethod
    def read(cls, page: pages.Page) -> WorkCounters:
        report = page.report
        moved = (min(report.evicted_bytes, MAX_MOVED_BYTES), min(report.restored_bytes, MAX_MOVED_BYTES))
        return cls(min(report.gpu_ns, MAX_NS), *moved)

    def plus(self, other: WorkCounters) -> WorkCounters:
        return WorkCounters(*(a + b for a, b in zip(self, other, strict=True)))

    def since(self, before: WorkCounters) -> WorkCounters:
        return WorkCounters(*(max(0, a - b) for a, b in zip(self, before, strict=True)))

    def at_least(self, before: WorkCounters) -> WorkCounters:
        return WorkCounters(*map(max, self, before))

    def at_most(self, busy_ns: int) -> WorkCounters:
        return self._replace(busy_ns=min(self.busy_ns, busy_ns))

    def per_device(self, devices: tuple[str, ...]) -> dict[str, WorkCounters]:
        """Of a process with these devices, which tells one sum: each may have worked all the time, and has an equal
        part of the bytes."""
        first, count = True, len(devices)
        parts = {}
        for uuid in devices:
            moved = [size // count + (size % count if first else 0) for size in (self.evicted, self.restored)]
            parts[uuid] = WorkCounters(self.busy_ns, *moved)
            first = False
        return parts


def sum_work(parts: Iterable[Mapping[str, WorkCounters]]) -> dict[str, WorkCounters]:
    """By device."""
    total: dict[str, WorkCounters] = {}
    for part in parts:
        for uuid, work in part.items():
            total[uuid] = total.get(uuid, WorkCounters()).plus(work)
    return total


class ProcessCounters(NamedTuple):
    """Of one process, or of several together. Times in nanoseconds."""

    gpu_ns: int = 0  # how long the device worked for it: an estimate
    drain_last_ns: int = 0
    drain_max_ns: int = 0
    drain_total_ns: int = 0
    drains: tuple[int, ...] = ()  # by time: bucket i below 2^i ms, the last whatever is longer
    launches: int = 0
    blocks: int = 0  # of launches
    counted_ns: int = 0  # when these were counted last

    @classmethod
    def read(cls, page: pages.Page) -> ProcessCounters:
        report = page.report
        return cls(
            min(report.gpu_ns, MAX_NS),
            min(report.drain_ns, MAX_NS),
            min(report.drain_max_ns, MAX_NS),
            min(report.drain_total_ns, MAX_NS),
            tuple(report.drains),  # none is beyond 32 bits
            min(report.launches, MAX_LAUNCHES),
            min(report.blocks, MAX_LAUNCHES),
            min(report.sampled_ns, MAX_NS),
        )

    @classmethod
    def combine(cls, parts: Sequence[ProcessCounters]) -> ProcessCounters:
        """Of all of them, the later ones last: at least one."""
        if len(parts) == 1:
            return parts[0]
        gpu, last, most, total, drains, launches, blocks, counted = zip(*parts, strict=True)
        return cls(
            sum(gpu),
            next((one for one in reversed(last) if one), 0),
            max(most),
            sum(total),
            tuple(map(sum, itertools.zip_longest(*drains, fillvalue=0))),
            sum(launches),
            sum(blocks),
            max(counted),
        )

    def client_fields(self) -> dict[str, Any]:
        """Fields of a client in the snapshot."""
        return {
            "gpu_busy_seconds": round(self.gpu_ns / 1e9, 3),
            "drain": {"last_ms": round(self.drain_last_ns / 1e6, 3), "max_ms": round(self.drain_max_ns / 1e6, 3)},
        }

    def drain_totals(self) -> dict[str, Any]:
        """The drains of all clients that ever were, for a histogram: `buckets` by the time below which they took."""
        empty = [0] * (pages.layout()[1]["GPUSHARE_DRAIN_BUCKETS"] - len(self.drains))
        return {"buckets": [*self.drains, *empty], "seconds": round(self.drain_total_ns / 1e9, 6)}
