"""Metric families of Prometheus over a snapshot, for the Jupyter server and for the coordinator itself.

docs/reference/metrics.md describes them. No labels of clients, for these are the paths of notebooks; limits have
their ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PHASES = ("idle", "waiting", "running", "draining", "overrun", "suspended")

_DEVICES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("memory_total_bytes", "Memory that the device is taken to have", lambda d: d["memory_total"]),
    ("memory_used_bytes", "Device memory in use", lambda d: d["memory_used"]),
    ("utilisation_ratio", "Part of the last second or two in which it worked", lambda d: d.get("utilisation")),
    ("grants", "Clients that hold the device", lambda d: len(d["grants"])),
    ("queue_length", "Clients that wait for the device", lambda d: len(d["queue"])),
    ("failed", "1 while it is out of use", lambda d: float(bool(d.get("failed")))),
    ("foreign_processes", "Processes on it that are not shared", lambda d: _foreign_total(d, lambda process: 1)),
    (
        "foreign_memory_bytes",
        "Memory of these",
        lambda d: _foreign_total(d, lambda process: process.get("memory") or 0),
    ),
)
_USAGE = (
    ("gpu_seconds", "Time for which clients had the device"),
    ("busy_seconds", "Time for which it worked for them, estimated"),
    ("wait_seconds", "Time for which clients waited for it"),
    ("waits", "Waits that began"),
    ("turns", "Turns that began"),
    ("evicted_bytes", "Memory moved off the device"),
    ("restored_bytes", "Memory moved back"),
)
_HISTOGRAMS = (
    ("drains", "gpushare_drain_seconds", "From the end of a turn to the end of its work"),
    ("waits", "gpushare_wait_duration_seconds", "How long waits for a turn were"),
    ("switches", "gpushare_switch_seconds", "What turns cost: their closing, and their memory's way there and back"),
)


def server_metrics(status: Mapping[str, Any] | None) -> Iterator[Metric]:
    """Families of a Jupyter server over the last snapshot; None: it follows no coordinator."""
    following = GaugeMetricFamily("gpushare_coordinator_followed", "1 while this server follows a coordinator")
    following.add_metric([], float(status is not None))
    yield following
    if status is not None:
        yield from snapshot_metrics(status)


def snapshot_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """All families but the server's own."""
    phases = GaugeMetricFamily("gpushare_clients", "Clients by phase", labels=["phase"])
    counts = Counter(client["phase"] for client in status["clients"])
    for phase in sorted({*PHASES, *counts}):
        phases.add_metric([phase], counts[phase])
    yield phases
    limits = GaugeMetricFamily("gpushare_limit", "What a client may launch", labels=["client", "unit", "reason"])
    for client in status["clients"]:
        for limit in client.get("limits", ()):
            limits.add_metric([client["id"], limit["unit"], limit["reason"]], limit["rate"])
    yield limits
    yield from _device_metrics(status["devices"])
    host = GaugeMetricFamily("gpushare_host_memory_bytes", "Host memory for what left the devices", labels=["kind"])
    for kind in ("pinned", "pageable"):
        host.add_metric([kind], sum(client.get(f"host_{kind}", 0) for client in status["clients"]))
    yield host
    about = status["coordinator"]
    for key, name, help_text in _HISTOGRAMS:
        yield from _histogram(name, help_text, about.get(key))
    yield from _usage_metrics(about.get("usage", []))
    yield from _coordinator_metrics(about)


def _device_metrics(devices: list[dict[str, Any]]) -> Iterator[Metric]:
    for name, help_text, read in _DEVICES:
        family = GaugeMetricFamily(f"gpushare_device_{name}", help_text, labels=["uuid", "name"])
        for device in devices:
            value = read(device)
            if value is not None:
                family.add_metric([device["uuid"], device["name"]], value)
        yield family


def _foreign_total(device: Mapping[str, Any], count: Callable[[Mapping[str, Any]], float]) -> float | None:
    """None where it is not known, as without NVML."""
    processes = device.get("foreign_processes")
    return None if processes is None else sum(map(count, processes))


def _usage_metrics(rows: list[dict[str, Any]]) -> Iterator[Metric]:
    for name, help_text in _USAGE:
        family = CounterMetricFamily(f"gpushare_{name}", help_text, labels=["user", "tenant", "device"])
        for row in rows:
            family.add_metric([row["user"], row["tenant"] or "", row["device"]], row[name])
        yield family


def _coordinator_metrics(about: Mapping[str, Any]) -> Iterator[Metric]:
    """Of the coordinator itself."""
    uptime = GaugeMetricFamily("gpushare_coordinator_uptime_seconds", "For how long the coordinator runs")
    uptime.add_metric([], about.get("uptime_seconds", 0))
    yield uptime
    problems = GaugeMetricFamily("gpushare_coordinator_problems", "What it warns of, as its status says")
    problems.add_metric([], len(about.get("problems", ())))
    yield problems
    overruns = CounterMetricFamily("gpushare_overruns", "Turns that did not end in time")
    overruns.add_metric([], about.get("overruns", 0))
    yield overruns
    refused = CounterMetricFamily("gpushare_refused_messages", "Messages that were refused", labels=["reason"])
    for reason, count in sorted(about.get("refused", {}).items()):
        refused.add_metric([reason], count)
    yield refused


def _histogram(name: str, help_text: str, counted: Mapping[str, Any] | None) -> Iterator[Metric]:
    """`counted`: see `drains` in docs/reference/wire.md."""
    if counted and counted["buckets"]:
        counts = list(accumulate(counted["buckets"]))
        bounds = [str(2**power / 1000) for power in range(len(counts) - 1)] + ["+Inf"]
        family = HistogramMetricFamily(name, help_text)
        family.add_metric([], list(zip(bounds, counts, strict=True)), counted["seconds"])
        yield family
