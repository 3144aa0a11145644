"""Tests of the memory of processes by device: the rows of the page, and targets and limits for each device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.wire.page import UNKNOWN

from .page_sync_harness import DEVICE, MIB, PageSyncHarness

OTHER = "GPU-other"  # of 1 GiB
SWAP = 2  # value of `memory_mode`


@pytest.fixture
def harness() -> Iterator[PageSyncHarness]:
    made = PageSyncHarness()
    made.dispatch(ev.DeviceFound(DeviceInfo(OTHER, "Fake GPU", 1 << 30, True)))
    yield made
    made.close()


def set_rows(handle: ProcessHandle, *rows: tuple[int, int], rest: int = 0) -> None:
    """Write the allocated and resident MiB of each device to the page, and `rest` MiB whose device is not known."""
    report = handle.page.report
    report.memory_mode = SWAP
    report.allocated = (sum(row[0] for row in rows) + rest) * MIB
    report.resident = (sum(row[1] for row in rows) + rest) * MIB
    for number, (allocated, resident) in enumerate(rows):
        report.devices[number].allocated, report.devices[number].resident = allocated * MIB, resident * MIB


def on_devices(harness: PageSyncHarness, client: str) -> list[tuple[int, int]]:
    """Return the allocated and resident MiB of a client on each device, as the scheduler has them."""
    harness.page_sync.read_memory(harness.runtimes[client])
    uses = [harness.scheduler.clients[client].memory_on(harness.scheduler.devices[uuid]) for uuid in (DEVICE, OTHER)]
    return [(use.allocated // MIB, use.resident // MIB) for use in uses]


def wide(harness: PageSyncHarness, name: str = "wide", runs: bool = False) -> ProcessHandle:
    return harness.process(name, 0, runs=runs, devices=(DEVICE, OTHER))


@pytest.mark.parametrize(
    ("rows", "rest", "expected"),
    [
        (((300, 200), (100, 0)), 0, [(300, 200), (100, 0)]),
        (((300, 200), (0, 0)), 100, [(350, 250), (50, 50)]),  # arrays, for example
        (((0, 0), (0, 0)), 100, [(50, 50), (50, 50)]),  # a process of another mode
    ],
)
def test_memory_counts_on_the_device_of_its_row(
    harness: PageSyncHarness, rows: tuple[tuple[int, int], ...], rest: int, expected: list[tuple[int, int]]
) -> None:
    set_rows(wide(harness), *rows, rest=rest)
    assert on_devices(harness, "wide") == expected


def test_rows_are_at_most_the_whole(harness: PageSyncHarness) -> None:
    """A process may write any value, and a page is read while the process writes."""
    handle = wide(harness)
    set_rows(handle, (300, 300), (100, 100))
    handle.page.report.allocated = handle.page.report.resident = 200 * MIB
    handle.page.report.devices[1].resident = UNKNOWN
    assert on_devices(harness, "wide") == [(200, 200), (0, 0)]


def test_a_target_goes_to_its_device(harness: PageSyncHarness) -> None:
    handle = wide(harness)
    set_rows(handle, (300, 300), (100, 100))
    harness.runtimes["wide"].set_resident_target(OTHER, 64 * MIB)
    assert list(handle.page.control.resident_target[0:2]) == [UNKNOWN, 64 * MIB]
    harness.runtimes["wide"].set_resident_target(OTHER, None)
    assert list(handle.page.control.resident_target[0:2]) == [UNKNOWN] * 2


def test_a_prefetch_is_limited_on_each_device(harness: PageSyncHarness) -> None:
    handle = wide(harness)
    set_rows(handle, (300, 100), (100, 50))
    harness.runtimes["wide"].prefetch_devices.add(OTHER)
    on_devices(harness, "wide")
    harness.page_sync.publish_prefetch(harness.runtimes["wide"])
    assert list(handle.page.control.prefetch_limit[0:2]) == [0, (50 + 1024 - 50) * MIB]


@pytest.mark.parametrize(("device", "is_refused"), [(0, False), (1, False), (2, True)])
def test_a_request_is_refused_if_nothing_can_leave_its_device(
    harness: PageSyncHarness, device: int, is_refused: bool
) -> None:
    """Memory that could leave the first device makes no room on the second one."""
    harness.process("idle", 600, runs=False)
    handle = wide(harness, "runs", runs=True)
    set_rows(handle, (300, 300), (1000, 1000))
    report = handle.page.report
    report.unmet_bytes, report.unmet_device, report.unmet_request_seq = 200 * MIB, device, 1
    assert harness.answer(handle) == (1 if is_refused else 0)
