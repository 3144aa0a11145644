"""Counters that processes report in their pages, within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...wire import page as pages

# Upper bounds of values in a report, because a process may write any value there.
MAX_NS = 1 << 60  # 36 years
MAX_LAUNCHES = 1 << 60
MAX_MOVED_BYTES = 1 << 50  # bytes


class WorkCounters(NamedTuple):
    """Work of processes on one device, as they report it: busy time, evicted bytes and restored bytes."""

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
        """Divide the work of a process among its devices, for which the process reports only one sum.

        Each device may have worked all the time, and gets an equal part of the bytes.
        """
        first, count = True, len(devices)
        work = {}
        for uuid in devices:
            moved = [size // count + (size % count if first else 0) for size in (self.evicted, self.restored)]
            work[uuid] = WorkCounters(self.busy_ns, *moved)
            first = False
        return work


def sum_work(parts: Iterable[Mapping[str, WorkCounters]]) -> dict[str, WorkCounters]:
    """Add up work by device."""
    total: dict[str, WorkCounters] = {}
    for work_by_device in parts:
        for uuid, work in work_by_device.items():
            total[uuid] = total.get(uuid, WorkCounters()).plus(work)
    return total


class ProcessCounters(NamedTuple):
    """Counters of one process, or the combined counters of several. Times in nanoseconds."""

    gpu_ns: int = 0  # busy time
    drain_last_ns: int = 0
    drain_max_ns: int = 0
    drain_total_ns: int = 0
    drains: tuple[int, ...] = ()  # by length: bucket i has drains below 2^i ms, the last bucket all longer drains
    launches: int = 0
    blocks: int = 0  # in these launches
    counted_ns: int = 0  # time of the last count
    training_steps: int = 0  # that the programs have marked

    @classmethod
    def read(cls, page: pages.Page) -> ProcessCounters:
        report = page.report
        return cls(
            min(report.gpu_ns, MAX_NS),
            min(report.drain_ns, MAX_NS),
            min(report.drain_max_ns, MAX_NS),
            min(report.drain_total_ns, MAX_NS),
            tuple(report.drains),  # 32 bits each
            min(report.launches, MAX_LAUNCHES),
            min(report.blocks, MAX_LAUNCHES),
            min(report.sampled_ns, MAX_NS),
            min(report.training_steps, MAX_LAUNCHES),
        )

    @classmethod
    def combine(cls, parts: Sequence[ProcessCounters]) -> ProcessCounters:
        """Combine the counters of one or more processes, which are in the order of their ends."""
        if len(parts) == 1:
            return parts[0]
        gpu, last, maximum, total, drains, launches, blocks, counted, steps = zip(*parts, strict=True)
        return cls(
            sum(gpu),
            next((one for one in reversed(last) if one), 0),
            max(maximum),
            sum(total),
            tuple(map(sum, itertools.zip_longest(*drains, fillvalue=0))),
            sum(launches),
            sum(blocks),
            max(counted),
            sum(steps),
        )

    def client_fields(self) -> dict[str, Any]:
        """Return fields of a client in the snapshot."""
        return {
            "gpu_busy_seconds": round(self.gpu_ns / 1e9, 3),
            "drain": {"last_ms": round(self.drain_last_ns / 1e6, 3), "max_ms": round(self.drain_max_ns / 1e6, 3)},
        }

    def drain_totals(self) -> dict[str, Any]:
        """Return the drains for a histogram: `buckets` by upper bound of the length, and the sum of seconds."""
        empty = [0] * (pages.layout()[1]["GPUSHARE_DRAIN_BUCKETS"] - len(self.drains))
        return {"buckets": [*self.drains, *empty], "seconds": round(self.drain_total_ns / 1e9, 6)}
