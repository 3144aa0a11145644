"""Test of colocation by the memory that clients have between two samples of the coordinator."""

from __future__ import annotations

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
