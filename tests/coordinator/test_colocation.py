"""Tests of colocation by the memory that clients have between two samples of the coordinator."""

from __future__ import annotations

import signal

from jupyter_gpushare.wire.page import OUT

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until

MOST = 5 << 30  # of 8 GiB: two clients with so much memory do not fit together


def test_new_memory_of_a_running_client_counts_for_a_newcomer(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The coordinator samples the memory once a second, and the newcomer comes sooner."""
    idle_coordinator.start(quantum=20, sharing="packed")
    a, b = processes("a"), processes("b")
    a.run_turn()
    a.allocate(MOST)
    b.allocate(MOST)
    b.start_waiting()
    wait_until(lambda: a.contended)
    assert b.phase == OUT
    assert idle_coordinator.grants() == ["a"]


def test_memory_of_a_client_in_its_turn_counts_for_a_new_coordinator(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The waiting client is the first that connects with the new coordinator."""
    idle_coordinator.start(quantum=20, sharing="packed")
    a, b = processes("a"), processes("b")
    a.allocate(MOST)
    b.allocate(MOST)
    a.run_turn()
    b.start_waiting()
    wait_until(lambda: a.contended)
    idle_coordinator.stop(signal.SIGKILL)
    idle_coordinator.start(quantum=20, sharing="packed")
    for process in (b, a):
        process.disconnect()
        process.send_hello()
    wait_until(lambda: (idle_coordinator.client("a") or {}).get("phase") == "running")
    assert b.phase == OUT
