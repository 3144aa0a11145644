"""Tests of context memory: its measurement, and its part in the plan of device memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpushare.coordinator.clients.context_memory import ContextMemory
from jupyter_gpushare.coordinator.gpu import simulated_driver
from jupyter_gpushare.coordinator.monitoring.foreign_processes import ForeignProcesses
from jupyter_gpushare.wire.page import UNKNOWN, layout

from .page_sync_harness import DEVICE, MIB, PageSyncHarness

SWAP, UNIFIED = (layout()[1][f"GPUSHARE_MEMORY_{mode}"] for mode in ("SWAP", "UNIFIED"))


def measured(*samples: tuple[int, int]) -> int:
    memory = ContextMemory()
    for driver_bytes, resident in samples:
        memory.sample(driver_bytes, resident)
    return memory.bytes


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(500, 0), (500, 0)], 0),  # one sample with unchanged resident memory is not enough
        ([(500, 0), (500, 0), (510, 0)], 500),
        ([(500, 0), (500, 0), (500, 0), (900, 400), (900, 400), (910, 400)], 500),
        ([(900, 400), (900, 0), (500, 0), (500, 0)], 500),  # the driver's figure is late
        ([(500, 0), (500, 0), (500, 0), (700, 300), (900, 200), (500, 0)], 500),  # memory moves all the time
        ([(100, 400), (100, 400), (100, 400)], 0),
        ([(500, 0), (500, 0), (500, 0), (800, 0), (800, 0)], 800),  # a module was loaded
    ],
)
def test_a_measurement_needs_figures_of_the_same_time(samples: list[tuple[int, int]], expected: int) -> None:
    assert measured(*samples) == expected


class Host(PageSyncHarness):
    """Host whose driver reports what the pages report and `context` MiB for each process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.context: dict[int, int | None] = {}
        self._processes = ForeignProcesses(cast(Any, SimpleNamespace()))
        monkeypatch.setattr(simulated_driver, "processes", lambda: {DEVICE: self._present()})

    def _present(self) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for handle in self.handles.values():
            context = self.context.get(handle.connection.pid)
            found[handle.connection.pid] = None if context is None else handle.memory_use.resident + context * MIB
        return found

    def pass_seconds(self, count: int = 3) -> None:
        for _ in range(count):
            self._processes.sample(self.scheduler.devices, self.handles.values())
            for runtime in self.runtimes.values():
                self.page_sync.read_memory(runtime)
                self.page_sync.write_pages(runtime)

    def memory(self, name: str) -> tuple[int, int, int, int]:
        use = self.scheduler.clients[name].memory_use
        return use.allocated // MIB, use.resident // MIB, use.unmovable // MIB, use.context // MIB


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_context_memory_is_unmovable_memory_of_its_client(host: Host) -> None:
    host.process("one", 300, pid=11).page.report.memory_mode = SWAP
    two = host.process("two", 200, unmovable=50, runs=False, pid=12)
    two.page.report.memory_mode = SWAP
    host.context = {11: 100, 12: 90}
    host.pass_seconds()
    assert (host.memory("one"), host.memory("two")) == ((400, 400, 100, 100), (290, 290, 140, 90))
    assert host.scheduler.devices[DEVICE].context == 190 * MIB
    assert two.page.control.context_bytes == 190 * MIB


def test_unknown_context_memory_counts_as_none(host: Host) -> None:
    handle = host.process("one", 300, pid=11)
    handle.page.report.memory_mode = SWAP
    host.context = {11: None}
    host.pass_seconds()
    assert host.memory("one") == (300, 300, 0, 0)
    assert handle.page.control.context_bytes == 0


def test_unified_memory_is_measured_before_the_first_allocation(host: Host) -> None:
    """The resident figure of unified memory is an estimate, so the last measurement holds."""
    handle = host.process("one", 0, pid=11)
    handle.page.report.memory_mode = UNIFIED
    host.context = {11: 100}
    host.pass_seconds()
    handle.page.report.allocated = handle.page.report.resident = 300 * MIB
    host.context = {11: 7}
    host.pass_seconds()
    assert host.memory("one") == (400, 400, 100, 100)


def test_the_turn_limit_of_a_process_has_no_context_memory(host: Host) -> None:
    handle = host.process("one", 500, pid=11)
    handle.page.report.memory_mode = SWAP
    host.context = {11: 100}
    host.pass_seconds()
    for limit, expected in ((350 * MIB, 250 * MIB), (50 * MIB, 1), (None, 0)):
        host.runtimes["one"].set_turn_limit(limit)
        assert handle.page.control.turn_limit == expected


def test_the_resident_target_of_a_process_has_no_context_memory(host: Host) -> None:
    handle = host.process("one", 500, pid=11)
    handle.page.report.memory_mode = SWAP
    host.context = {11: 100}
    host.pass_seconds()
    for target, expected in ((350 * MIB, 250 * MIB), (0, 0), (None, UNKNOWN)):
        host.runtimes["one"].set_resident_target(DEVICE, target)
        assert handle.page.control.resident_target[0] == expected
