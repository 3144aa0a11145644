"""Tests of turns of fake processes with a real coordinator: sockets, pages and locks."""

from __future__ import annotations

import time

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import CLOSING, IN, OUT

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import is_locked, wait_until


def test_page_has_permit_quota_and_limits(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    quantum = 20.0  # seconds; longer than a busy machine needs until the other client waits
    idle_coordinator.start(quantum=quantum)
    a = processes("a", quota="memory=2GiB share=0.25 limit=0.99 service=offline")
    assert a.phase == OUT
    a.run_turn()
    control = a.control
    assert (a.contended, control.queue_position) == (False, 0)
    wait_until(lambda: a.permit.deadline_ns > 0)  # from the client's limit, because no other client waits
    assert (control.memory_limit, control.memory_total) == (2 << 30, 2 << 30)
    assert (control.share_ppm, control.limit_ppm, control.quota_flags) == (250_000, 990_000, 1 | 2 | 4)
    assert (control.quantum_ns, control.idle_release_ns) == (int(quantum * 1e9), 250_000_000)
    assert control.resident_target[0] == (1 << 64) - 1
    assert control.memory_backing > 0
    heartbeat = control.heartbeat_ns
    wait_until(lambda: control.heartbeat_ns > heartbeat)
    assert 0 < heartbeat / 1e9 < control.heartbeat_ns / 1e9 <= time.monotonic()
    b = processes("b", quota="service=offline")
    started_at = time.monotonic()
    b.start_waiting()
    wait_until(lambda: a.contended)
    assert started_at < a.permit.deadline_ns / 1e9 <= time.monotonic() + quantum
    assert b.control.memory_limit == b.control.memory_total == 8 << 30
    assert b.control.quota_flags == 1 | 4


def test_turn_holds_the_lock_until_its_end(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    a = processes("a")
    assert not is_locked()
    a.run_turn()
    assert is_locked()
    coordinator.request(messages.Release(client="a"))
    a.wait_phase(CLOSING)
    assert is_locked(), "the lock was released before the drain"
    a.drain()
    wait_until(lambda: not is_locked())


def test_a_turn_changes_while_the_coordinator_is_stopped(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The next client gets its permit before the previous turn ends."""
    coordinator = idle_coordinator.start(quantum=60.0)
    first, second = processes("first"), processes("second")
    first.run_turn()
    second.start_waiting()
    wait_until(lambda: second.permit.flags & 1 and first.permit.deadline_ns)
    assert second.phase == OUT
    coordinator.request(messages.Release(client="first"))
    with coordinator.stopped():
        first.end_turn()
        second.wait_phase(IN)
        first.start_waiting()
    wait_until(lambda: [c["phase"] for c in coordinator.status()["clients"]] == ["waiting", "running"])
    assert [c["turn_count"] for c in coordinator.status()["clients"]] == [1, 1]
    coordinator.request(messages.Release(client="second"))
    second.end_turn()
    first.wait_phase(IN)


def test_a_joiner_keeps_the_turn_that_its_first_client_has_left(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The coordinator reads the end of the turn before it reads that the joiner has entered."""
    coordinator = idle_coordinator.start(quantum=60.0, sharing="packed")
    first, joiner = processes("first"), processes("joiner")
    first.run_turn()
    before = joiner.page.permit_bytes()
    joiner.start_waiting()
    wait_until(lambda: joiner.page.permit_bytes() != before, act=False)
    coordinator.request(messages.Release(client="first"))
    with coordinator.stopped():
        joiner.disable_doorbell()
        joiner.wait_phase(IN)
        assert joiner.turn.turn == first.turn.turn
        epoch = joiner.permit.epoch
        first.end_turn()
    wait_until(lambda: (coordinator.client("first") or {})["phase"] == "idle")
    assert (coordinator.client("joiner") or {})["phase"] == "running"
    assert (joiner.phase, joiner.permit.epoch) == (IN, epoch)


def test_turn_ends_with_a_cell_whose_end_overtakes_its_doorbell(
    long_quantum_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The end of a cell and the doorbell come through two connections, so the doorbell may be the later one."""
    kernel, a = processes.kernel("a"), processes("a")
    kernel.cell("start", "1")
    a.start_waiting()
    a.disable_doorbell()
    wait_until(lambda: a.is_working)
    a.finish()
    kernel.cell("end", "1")
    wait_until(lambda: (long_quantum_coordinator.client("a") or {})["phase"] == "idle")


@pytest.mark.parametrize("end", ["cell", "kernel"])
def test_turn_ends_with_the_cell_or_the_kernel(
    long_quantum_coordinator: CoordinatorProcess, processes: ProcessFactory, end: str
) -> None:
    kernel = processes.kernel("a")
    a, b = processes("a"), processes("b")
    kernel.cell("start", "m1")
    wait_until(lambda: (long_quantum_coordinator.client("a") or {})["cells"] == 1)
    a.run_turn()
    b.start_waiting()
    wait_until(lambda: a.contended)
    if end == "cell":
        kernel.cell("end", "m1")
    else:
        processes.disconnect()
    a.wait_phase(CLOSING)
    assert (long_quantum_coordinator.client("a") or {})["cells"] == 0
    a.drain()
    b.wait_phase(IN)


class TestTwoProcessesOfAClient:
    def test_the_second_shares_the_first_ones_page_and_turn(
        self, coordinator: CoordinatorProcess, processes: ProcessFactory
    ) -> None:
        first = processes("a")
        second = processes("a", connect=False)
        assert second.send_hello() == "join"
        assert second.client_page.inode == first.client_page.inode
        assert (first.control.slot, second.control.slot) == (0, 1)
        first.run_turn()
        second.run_turn()
        assert first.turn.turn == second.turn.turn
        first.close()
        assert is_locked(), "the second process has no lock"

    def test_memory_of_processes_adds_up(self, coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
        first, second = processes("a"), processes("a")
        first.allocate(1000)
        second.allocate(234)
        assert first.slots(2) == [1000, 234]
        wait_until(lambda: coordinator.client("a")["allocated"] == 1234)  # type: ignore[index]
        second.close()
        wait_until(lambda: coordinator.client("a")["allocated"] == 1000)  # type: ignore[index]
        assert first.slots(2) == [1000, 0], "the bytes of an ended process still count"


class TestLocks:
    def test_a_process_that_lost_its_connection_keeps_the_device_locked(
        self, coordinator: CoordinatorProcess, processes: ProcessFactory
    ) -> None:
        """The process runs on, so no other client may run before the process has reconnected or ended."""
        a, b = processes("a"), processes("b")
        a.run_turn()
        a.disconnect()
        b.start_waiting()
        wait_until(lambda: coordinator.status()["devices"][0]["queue"] == ["b"])
        wait_until(lambda: coordinator.client("a")["phase"] == "idle")  # type: ignore[index]
        assert (is_locked(), b.phase) == (True, OUT)
        assert a.send_hello() == "welcome"
        a.end_turn()
        b.wait_phase(IN)


def test_interrupt_wakes_the_waiting_calls(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    a = processes("a")
    before = a.control.interrupt_seq
    assert coordinator.request(messages.Interrupt(client="a")) == {"processes": 1}
    assert a.control.interrupt_seq == before + 1


def test_turn_covers_two_devices(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    one, two, gang = processes("one", "GPU-1"), processes("two", "GPU-2"), processes("gang", "GPU-1", "GPU-2")
    one.run_turn()
    two.run_turn()
    gang.start_waiting()
    for process in (one, two):
        process.end_turn()
    gang.wait_phase(IN)
    assert is_locked("GPU-1") and is_locked("GPU-2")
    wait_until(lambda: coordinator.grants() == ["gang", "gang"])


def test_lost_doorbell_delays_but_loses_no_turn(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Without a doorbell, the coordinator reads the turns from the page once a second."""
    a, b = processes("a"), processes("b")
    a.disable_doorbell()
    a.run_turn()
    wait_until(lambda: (coordinator.client("a") or {})["phase"] == "running")
    b.start_waiting()
    a.end_turn()
    b.wait_phase(IN)
    wait_until(lambda: (coordinator.client("a") or {})["phase"] == "idle")
