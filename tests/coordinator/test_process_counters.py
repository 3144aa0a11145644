"""Tests of the counters that processes report: in the snapshot, after the end of processes, and within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.registry import Collector

from jupyter_gpushare.server.metrics import SnapshotCollector
from jupyter_gpushare.wire import messages

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until

MS = 1_000_000


def report_drains(process: ProtocolProcess, *milliseconds: int) -> None:
    """Report drains of these lengths as the shim does."""
    report = process.report
    for taken in milliseconds:
        report.drains[min(taken.bit_length(), len(report.drains) - 1)] += 1
        report.drain_ns = taken * MS
        report.drain_total_ns += taken * MS
        report.drain_max_ns = max(report.drain_max_ns, taken * MS)


def histogram(collector: Collector) -> Iterator[tuple[str, float]]:
    for family in collector.collect():
        if family.name == "gpushare_drain_seconds":
            for sample in family.samples:
                yield sample.labels.get("le", sample.name.rpartition("_")[2]), sample.value


def test_drains_and_gpu_time_are_shown(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    first, second, other = processes("a"), processes("a"), processes("b")
    report_drains(first, 0, 3, 5)
    report_drains(second, 700)
    report_drains(other, 5000)
    first.report.gpu_ns, second.report.gpu_ns = 1500 * MS, 250 * MS
    client = coordinator.client("a") or {}
    assert (client["gpu_busy_seconds"], client["drain"]["max_ms"]) == (1.75, 700)
    assert (coordinator.client("b") or {})["drain"] == {"last_ms": 5000, "max_ms": 5000}
    found = dict(histogram(SnapshotCollector(lambda: {"": coordinator.status()})))
    assert [found[bound] for bound in ("0.001", "0.002", "0.004", "0.008", "0.512", "1.024", "+Inf")] == [
        1, 1, 2, 3, 3, 4, 5
    ]  # fmt: skip
    assert found["sum"] == pytest.approx(5.708)


def test_counters_survive_the_end_of_processes_and_clients(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    stays, leaves = processes("a"), processes("a")
    report_drains(leaves, 12)
    leaves.report.gpu_ns = 2000 * MS
    leaves.disconnect()
    wait_until(lambda: len((coordinator.client("a") or {"processes": []})["processes"]) == 1)
    client = coordinator.client("a") or {}
    assert (client["gpu_busy_seconds"], client["drain"]["max_ms"]) == (2, 12)
    stays.disconnect()
    coordinator.request(messages.Unregister(client="a"))
    wait_until(lambda: coordinator.client("a") is None)
    assert sum(coordinator.status()["coordinator"]["drains"]["buckets"]) == 1


def test_host_memory_of_all_clients(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    for name, pinned in (("a", 5), ("b", 7)):
        report = processes(name).report
        report.host_pinned, report.host_pageable = pinned, 100
    families = {family.name: family for family in SnapshotCollector(lambda: {"": coordinator.status()}).collect()}
    samples = families["gpushare_host_memory_bytes"].samples
    assert {sample.labels["kind"]: sample.value for sample in samples} == {"pinned": 12, "pageable": 200}


def test_invalid_counters_are_clamped(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    process.report.gpu_ns = process.report.drain_max_ns = process.report.drain_total_ns = (1 << 64) - 1
    for number in range(len(process.report.drains)):
        process.report.drains[number] = (1 << 32) - 1
    assert (coordinator.client("a") or {})["gpu_busy_seconds"] < 2e9
    assert coordinator.status()["coordinator"]["drains"]["seconds"] < 2e9
