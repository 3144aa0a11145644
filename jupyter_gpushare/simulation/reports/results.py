"""Counters of a simulation, and the figures that follow from them."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..entities import SimClient, SimDevice
from .limited_time import LimitedTime

SLOWDOWN_BOUND_SECONDS = 1.0  # a shorter cell counts as one of this length in the mean bounded slowdown
SHORT_SECONDS, MEDIUM_SECONDS = 10.0, 60.0  # seconds of GPU time
LENGTH_CLASSES = ("short", "medium", "long")


class Results:
    """Results of one simulation, or of several (`+=`) with figures over all their cells and clients."""

    def __init__(self) -> None:
        self.waits = {name: array("d") for name in LENGTH_CLASSES}
        self.slowdowns = {name: array("d") for name in LENGTH_CLASSES}
        self.bounded_slowdowns = 0.0  # the sum over all cells that have ended
        self.unfinished = dict.fromkeys(LENGTH_CLASSES, 0)
        self.longest_wait = 0.0
        self.seconds = 0.0
        self.work = 0.0  # GPU seconds
        self.busy = 0.0  # device seconds with at least one working client
        self.device_seconds = 0.0
        self.wasted = 0.0  # device seconds without a turn while a client waits for any device
        self.awaited = 0.0  # the part of `wasted` in which a client waits for that device
        self.free = self.unusable = 0.0  # see free_capacity.py
        self.reserved = 0.0  # device seconds, if each admitted client had devices of its own while it is there
        self.refused = 0  # clients that the scheduler did not admit
        self.switches = 0
        self.bytes_moved = 0
        self.bytes_faulted = 0
        self.events = 0
        self.decisions = 0
        self.limited = LimitedTime()
        self.gpu_time_ratios = array("d")  # of each client: GPU time over GPU time and waiting

    def record_wait(self, seconds: float) -> None:
        if seconds > self.longest_wait:
            self.longest_wait = seconds

    def record_free_devices(self, is_awaited: Collection[bool], seconds: float) -> None:
        """Record devices without a turn while a client waits for any device; `is_awaited`: for each of the devices."""
        self.wasted += seconds * len(is_awaited)
        self.awaited += seconds * sum(is_awaited)

    def record_cell(self, client: SimClient, now: float) -> None:
        """Record a cell that has ended."""
        name = length_class(client.cell_gpu)
        self.waits[name].append(client.cell_wait)
        exclusive_seconds = client.cell_gpu + client.cell_cpu
        took = now - client.cell_started_at
        self.bounded_slowdowns += max(1.0, took / max(exclusive_seconds, SLOWDOWN_BOUND_SECONDS))
        if exclusive_seconds > 0:
            self.slowdowns[name].append(took / exclusive_seconds)

    def finish(self, clients: Iterable[SimClient], devices: Collection[SimDevice], seconds: float) -> None:
        """Add the totals of clients and devices at the end of a simulation that has lasted `seconds`."""
        for client in clients:
            if client.cell_started_at >= 0:
                self.unfinished[length_class(client.cell_gpu)] += 1
            self.work += client.gpu_seconds
            spec = client.spec
            departs = seconds if spec.departs is None else min(spec.departs, seconds)
            if not client.is_refused:
                self.reserved += spec.gpus * max(0.0, departs - spec.arrives)
            if client.gpu_seconds or client.wait_seconds:
                self.gpu_time_ratios.append(client.gpu_seconds / (client.gpu_seconds + client.wait_seconds))
        self.seconds += seconds
        self.device_seconds += seconds * len(devices)
        self.busy += sum(device.busy_seconds for device in devices)

    def __iadd__(self, other: Results) -> Results:
        for name in LENGTH_CLASSES:
            self.waits[name].extend(other.waits[name])
            self.slowdowns[name].extend(other.slowdowns[name])
            self.unfinished[name] += other.unfinished[name]
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.gpu_time_ratios.extend(other.gpu_time_ratios)
        self.limited += other.limited
        for field in (
            *(
                "seconds",
                "work",
                "busy",
                "device_seconds",
                "reserved",
                "wasted",
                "awaited",
                "free",
                "unusable",
                "switches",
            ),
            *("bytes_moved", "bytes_faulted", "refused", "events", "decisions", "bounded_slowdowns"),
        ):
            setattr(self, field, getattr(self, field) + getattr(other, field))
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the figures of docs/explanation/simulator.md: times in seconds, and None without data."""
        cells = {}
        count = sum(len(waits) for waits in self.waits.values())
        for name in LENGTH_CLASSES:
            waits, slowdowns = sorted(self.waits[name]), sorted(self.slowdowns[name])
            cells[name] = {
                "count": len(waits),
                "wait_p50": quantile(waits, 0.5),
                "wait_p95": quantile(waits, 0.95),
                "wait_p99": quantile(waits, 0.99),
                "slowdown_p50": quantile(slowdowns, 0.5),
                "slowdown_p95": quantile(slowdowns, 0.95),
                "unfinished": self.unfinished[name],
            }
        return {
            "cells": cells,
            "mean_bounded_slowdown": round(self.bounded_slowdowns / count, 6) if count else None,
            "throughput": round(self.work / self.seconds, 6) if self.seconds else None,
            "switches": self.switches,
            "bytes_moved": self.bytes_moved,
            "jain": jain(self.gpu_time_ratios),
            "longest_wait": round(self.longest_wait, 6),
            "bytes_faulted": self.bytes_faulted,
            "utilisation": round(self.busy / self.device_seconds, 6) if self.device_seconds else None,
            "wasted": round(self.wasted / self.device_seconds, 6) if self.device_seconds else None,
            "awaited": round(self.awaited / self.device_seconds, 6) if self.device_seconds else None,
            "fragmentation": round(self.unusable / self.free, 6) if self.free else None,
            "refused": self.refused,
            "reserved_gpu_hours": round(self.reserved / 3600, 2),
            "saved_gpu_hours": round((self.reserved - self.device_seconds) / 3600, 2),
            "limited": self.limited.as_json(),
            "events": self.events,
            "decisions": self.decisions,
        }


def length_class(gpu_seconds: float) -> str:
    return "short" if gpu_seconds < SHORT_SECONDS else "medium" if gpu_seconds < MEDIUM_SECONDS else "long"


def quantile(ordered: Sequence[float], fraction: float) -> float | None:
    """Return a quantile by linear interpolation between the closest ranks, or None without values."""
    if not ordered:
        return None
    rank = (len(ordered) - 1) * fraction
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (rank - low), 6)


def jain(values: Iterable[float]) -> float | None:
    """Return Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 if all values are equal, 1/n if one is not zero."""
    values = list(values)
    squares = sum(value * value for value in values)
    return round(sum(values) ** 2 / (len(values) * squares), 6) if squares else None
