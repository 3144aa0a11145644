"""What `/metrics` tells of the last snapshot. No labels of clients: they hold the paths of notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Source = Callable[[], "dict[str, Any] | None"]


class SnapshotCollector(Collector):
    """Gauges over the snapshot that `source` returns when they are read."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the source."""
        return []

    def collect(self) -> Iterable[Metric]:
        status = self._source()
        following = GaugeMetricFamily("gpushare_coordinator_followed", "1 while this server follows a coordinator")
        following.add_metric([], float(status is not None))
        yield following
        if status is None:
            return
        phases = GaugeMetricFamily("gpushare_clients", "Clients by phase", labels=["phase"])
        for phase, count in sorted(Counter(client["phase"] for client in status["clients"]).items()):
            phases.add_metric([phase], count)
        yield phases
        yield from _devices(status["devices"])
        host = GaugeMetricFamily("gpushare_host_memory_bytes", "Host memory for what left the devices", labels=["kind"])
        for kind in ("pinned", "pageable"):
            host.add_metric([kind], sum(client.get(f"host_{kind}", 0) for client in status["clients"]))
        yield host
        yield from _drains(status["coordinator"].get("drains", {"buckets": [], "seconds": 0.0}))


def _devices(devices: list[dict[str, Any]]) -> Iterable[Metric]:
    readings: list[tuple[str, str, Callable[[dict[str, Any]], float | None]]] = [
        ("memory_total_bytes", "Memory that the device is taken to have", lambda d: d["memory_total"]),
        ("memory_used_bytes", "Device memory in use", lambda d: d["memory_used"]),
        ("grants", "Clients that hold the device", lambda d: len(d["grants"])),
        ("queue_length", "Clients that wait for the device", lambda d: len(d["queue"])),
    ]
    for name, help_text, read in readings:
        family = GaugeMetricFamily(f"gpushare_device_{name}", help_text, labels=["uuid", "name"])
        for device in devices:
            value = read(device)
            if value is not None:
                family.add_metric([device["uuid"], device["name"]], value)
        yield family


def _drains(drains: dict[str, Any]) -> Iterable[Metric]:
    counts = list(accumulate(drains["buckets"]))
    bounds = [str(2**power / 1000) for power in range(len(counts) - 1)] + ["+Inf"]
    if counts:
        family = HistogramMetricFamily("gpushare_drain_seconds", "From the end of a turn to the end of its work")
        family.add_metric([], list(zip(bounds, counts, strict=True)), drains["seconds"])
        yield family


def register(source: Source) -> Callable[[], None]:
    """Show `source` in `/metrics` until the returned function is called."""
    collector = SnapshotCollector(source)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)
