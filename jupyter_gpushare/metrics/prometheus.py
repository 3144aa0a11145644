"""Prometheus metrics of a snapshot, for the Jupyter server and for the coordinator.

docs/reference/metrics.md describes the metrics.
No metric has the label of a client, which is the path of a notebook; the metric of limits has the ids of clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PHASES = ("idle", "waiting", "running", "draining", "overrun", "suspended")

_DEVICES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("memory_total_bytes", "Memory of the device, or the setting device_memory", lambda d: d["memory_total"]),
    ("memory_used_bytes", "Device memory in use", lambda d: d["memory_used"]),
    (
        "context_memory_bytes",
        "Device memory of contexts and code of clients; 0: none, or unknown",
        lambda d: d.get("context_memory", 0),
    ),
    (
        "utilisation_ratio",
        "Fraction of the last one or two seconds in which the device worked",
        lambda d: d.get("utilisation"),
    ),
    ("grants", "Clients that have a turn on the device", lambda d: len(d["grants"])),
    ("queue_length", "Clients that wait for the device", lambda d: len(d["queue"])),
    ("failed", "1 while the device is out of use", lambda d: float(bool(d.get("failed")))),
    (
        "foreign_processes",
        "Processes on the device that belong to no client",
        lambda d: _foreign_total(d, lambda process: 1),
    ),
    (
        "foreign_memory_bytes",
        "Device memory of processes that belong to no client",
        lambda d: _foreign_total(d, lambda process: process.get("memory") or 0),
    ),
)
_USAGE = (
    ("gpu_seconds", "Time of turns on the device"),
    ("busy_seconds", "Time in which the device worked for clients, estimated"),
    ("wait_seconds", "Time for which clients waited for the device"),
    ("waits", "Waits that began"),
    ("turns", "Turns that began"),
    ("evicted_bytes", "Memory moved off the device"),
    ("restored_bytes", "Memory moved back to the device"),
    ("orphans", "Kernels that ended because no Jupyter server adopted them"),
)
_HISTOGRAMS = (
    ("drains", "gpushare_drain_seconds", "Time from the end of a turn to the end of its work"),
    ("waits", "gpushare_wait_duration_seconds", "Length of waits for a turn"),
    ("switches", "gpushare_switch_seconds", "Time to end a turn and to evict and restore memory"),
)


def server_metrics(by_node: Mapping[str, Mapping[str, Any]], answers: Mapping[str, bool]) -> Iterator[Metric]:
    """Yield the metrics of a Jupyter server from the last snapshots.

    The key "" has the snapshot of this host, if there is a coordinator. Metrics of a node have the label `node`.
    `answers` is true for each node that answers, and false for each node that does not.
    """
    following = GaugeMetricFamily("gpushare_coordinator_followed", "1 while this server follows a coordinator")
    following.add_metric([], float("" in by_node))
    yield following
    nodes = GaugeMetricFamily("gpushare_node_up", "1 while the coordinator of the node answers", labels=["node"])
    for node, is_answering in answers.items():
        nodes.add_metric([node], float(is_answering))
    yield nodes
    families: dict[str, Metric] = {}
    for node, status in by_node.items():
        for family in snapshot_metrics(status):
            if node:
                family.samples = [one._replace(labels={**one.labels, "node": node}) for one in family.samples]
            if family.name in families:
                families[family.name].samples += family.samples
            else:
                families[family.name] = family
    yield from families.values()


def snapshot_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of a snapshot."""
    phases = GaugeMetricFamily("gpushare_clients", "Clients by phase", labels=["phase"])
    counts = Counter(client["phase"] for client in status["clients"])
    for phase in sorted({*PHASES, *counts}):
        phases.add_metric([phase], counts[phase])
    yield phases
    yield from _hibernation_metrics([client.get("hibernated", 0) for client in status["clients"]])
    limits = GaugeMetricFamily("gpushare_limit", "Launch budget of a client", labels=["client", "unit", "reason"])
    for client in status["clients"]:
        for limit in client.get("limits", ()):
            if limit["rate"] is not None:
                limits.add_metric([client["id"], limit["unit"], limit["reason"]], limit["rate"])
    yield limits
    since = GaugeMetricFamily(
        "gpushare_limited_since_timestamp_seconds",
        "Time since which a client has been limited, in Unix seconds",
        labels=["client", "reason"],
    )
    for client in status["clients"]:
        begins: dict[str, float] = {}
        for limit in client.get("limits", ()):
            begins[limit["reason"]] = min(limit["since"], begins.get(limit["reason"], limit["since"]))
        for reason, begin in begins.items():
            since.add_metric([client["id"], reason], begin)
    yield since
    losses = GaugeMetricFamily(
        "gpushare_online_loss_ratio", "Measured loss of online clients beside an offline client", labels=["client"]
    )
    for client in status["clients"]:
        for limit in client.get("limits", ()):
            if limit["reason"] == "adaptive" and limit.get("loss") is not None:
                losses.add_metric([client["id"]], limit["loss"])
    yield losses
    yield from _device_metrics(status["devices"])
    host = GaugeMetricFamily("gpushare_host_memory_bytes", "Host memory for evicted memory", labels=["kind"])
    for kind in ("pinned", "pageable"):
        host.add_metric([kind], sum(client.get(f"host_{kind}", 0) for client in status["clients"]))
    yield host
    about = status["coordinator"]
    for key, name, help_text in _HISTOGRAMS:
        yield from _histogram(name, help_text, about.get(key))
    yield from _usage_metrics(about.get("usage", []))
    yield from _coordinator_metrics(about)


def _hibernation_metrics(sizes: Sequence[int]) -> Iterator[Metric]:
    """Yield the metrics of hibernated clients. `sizes`: the bytes of each client; 0: the client is not hibernated."""
    clients = GaugeMetricFamily("gpushare_hibernated_clients", "Clients without any memory on their devices")
    clients.add_metric([], sum(size > 0 for size in sizes))
    yield clients
    memory = GaugeMetricFamily("gpushare_hibernated_bytes", "Host memory of hibernated clients")
    memory.add_metric([], sum(sizes))
    yield memory


def _device_metrics(devices: list[dict[str, Any]]) -> Iterator[Metric]:
    for name, help_text, read in _DEVICES:
        family = GaugeMetricFamily(f"gpushare_device_{name}", help_text, labels=["uuid", "name"])
        for device in devices:
            value = read(device)
            if value is not None:
                family.add_metric([device["uuid"], device["name"]], value)
        yield family


def _foreign_total(device: Mapping[str, Any], count: Callable[[Mapping[str, Any]], float]) -> float | None:
    """Return a sum over the foreign processes of a device, or None if they are unknown, as without NVML."""
    processes = device.get("foreign_processes")
    return None if processes is None else sum(map(count, processes))


def _usage_metrics(rows: list[dict[str, Any]]) -> Iterator[Metric]:
    for name, help_text in _USAGE:
        family = CounterMetricFamily(f"gpushare_{name}", help_text, labels=["user", "tenant", "device"])
        for row in rows:
            family.add_metric([row["user"], row["tenant"] or "", row["device"]], row[name])
        yield family


def _coordinator_metrics(about: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics about the coordinator."""
    uptime = GaugeMetricFamily("gpushare_coordinator_uptime_seconds", "Time since the coordinator started")
    uptime.add_metric([], about.get("uptime_seconds", 0))
    yield uptime
    problems = GaugeMetricFamily("gpushare_coordinator_problems", "Warnings in the coordinator's status")
    problems.add_metric([], len(about.get("problems", ())))
    yield problems
    overruns = CounterMetricFamily("gpushare_overruns", "Turns that have not ended in time")
    overruns.add_metric([], about.get("overruns", 0))
    yield overruns
    refused = CounterMetricFamily("gpushare_refused_messages", "Refused messages", labels=["reason"])
    for reason, count in sorted(about.get("refused", {}).items()):
        refused.add_metric([reason], count)
    yield refused


def _histogram(name: str, help_text: str, counted: Mapping[str, Any] | None) -> Iterator[Metric]:
    """Yield a histogram of the form that docs/reference/wire.md describes under `drains`."""
    if counted and counted["buckets"]:
        counts = list(accumulate(counted["buckets"]))
        bounds = [str(2**power / 1000) for power in range(len(counts) - 1)] + ["+Inf"]
        family = HistogramMetricFamily(name, help_text)
        family.add_metric([], list(zip(bounds, counts, strict=True)), counted["seconds"])
        yield family
