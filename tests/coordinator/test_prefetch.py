"""Tests of the prefetch limit: bounded by the free memory, 0 with memory of mode plain, divided among processes."""

from __future__ import annotations

from jupyter_gpushare.wire.page import CLOSING, IN, OUT

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until

GIB = 1 << 30
PLAIN = 3  # value of `memory_mode`


def wait_for_two_heartbeats(process: ProtocolProcess) -> None:
    """Wait until the coordinator has read the memory use of all processes."""
    for _ in range(2):
        before = process.control.heartbeat_ns
        wait_until(lambda: process.control.heartbeat_ns != before)  # noqa: B023


def test_prefetch_is_limited_to_the_free_memory(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    runs, waits = processes("a"), processes("b")
    runs.run_turn()
    runs.allocate(3 * GIB)
    waits.allocate(6 * GIB)
    waits.report.resident = GIB
    waits.start_waiting()
    wait_until(lambda: waits.control.prefetch_limit[0] == 5 * GIB)
    assert (waits.phase, runs.control.prefetch_limit[0]) == (OUT, 0)
    runs.allocate(GIB)
    wait_until(lambda: waits.control.prefetch_limit[0] == 7 * GIB)
    runs.end_turn()
    waits.wait_phase(IN)
    wait_until(lambda: waits.control.prefetch_limit[0] == 0)


def test_prefetch_is_zero_with_plain_memory_of_another_client(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """A client in mode plain cannot request an eviction, so prefetched memory could make its allocations fail."""
    runs, waits = processes("a"), processes("b")
    runs.report.memory_mode = PLAIN
    runs.run_turn()
    runs.allocate(2 * GIB)
    waits.allocate(4 * GIB)
    waits.report.resident = 0
    wait_for_two_heartbeats(waits)
    waits.start_waiting()
    runs.wait_phase(CLOSING)
    assert waits.control.prefetch_limit[0] == 0


def test_prefetch_is_divided_among_processes(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    runs, first, second = processes("a"), processes("b"), processes("b")
    runs.run_turn()
    runs.allocate(2 * GIB)
    for process, resident in ((first, 0), (second, 2 * GIB)):
        process.allocate(4 * GIB)
        process.report.resident = resident
    room = 4 * GIB  # of 8 GiB, 2 are used by a and 2 by b
    first.allocate(5 * GIB)
    first.report.resident, first.report.unmade = 0, GIB
    first.start_waiting()
    limits = [room * 2 // 3, 2 * GIB + room // 3]
    wait_until(lambda: [process.control.prefetch_limit[0] for process in (first, second)] == limits)
