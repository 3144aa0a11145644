"""The next client's memory may come back while it waits: as much as the device has room for."""

from __future__ import annotations

from jupyter_gpushare.wire.page import CLOSING, IN, OUT

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until

GIB = 1 << 30


def beats(process: ProtocolProcess) -> None:
    """The coordinator has looked at what processes hold."""
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
    wait_until(lambda: waits.control.prefetch_limit == 5 * GIB)
    assert (waits.phase, runs.control.prefetch_limit) == (OUT, 0)
    runs.allocate(GIB)
    wait_until(lambda: waits.control.prefetch_limit == 7 * GIB)
    runs.end_turn()
    waits.wait_phase(IN)
    wait_until(lambda: waits.control.prefetch_limit == 0)


def test_prefetch_is_zero_beside_plain_memory(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """A client of mode "plain" that wants more of the device is simply out of memory."""
    runs, waits = processes("a"), processes("b")
    runs.report.memory_mode = 3
    runs.run_turn()
    runs.allocate(2 * GIB)
    waits.allocate(4 * GIB)
    waits.report.resident = 0
    beats(waits)
    waits.start_waiting()
    runs.wait_phase(CLOSING)
    assert waits.control.prefetch_limit == 0


def test_prefetch_is_divided_among_processes(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    runs, first, second = processes("a"), processes("b"), processes("b")
    runs.run_turn()
    runs.allocate(2 * GIB)
    for process, there in ((first, 0), (second, 2 * GIB)):
        process.allocate(4 * GIB)
        process.report.resident = there
    room = 4 * GIB  # 8, but for 2 and 2
    first.start_waiting()
    wait_until(lambda: first.control.prefetch_limit == room * 2 // 3)
    assert second.control.prefetch_limit == 2 * GIB + room // 3
