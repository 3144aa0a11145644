"""Processes that were not heard, or are out of reach: what their pages and locks say of their turns."""

from __future__ import annotations

import fcntl
import os

from jupyter_gpushare.wire.page import layout

from .conftest import Coordinator, Processes
from .fake_process import CLOSED, CLOSING, OPEN, STEP, UUID, lock_file, locked, wait_for


def test_a_process_at_the_gate_whose_word_was_lost_gets_its_turn(
    coordinator: Coordinator, processes: Processes
) -> None:
    a = processes("a")
    a.report.waiting = 1
    a.wait_gate(OPEN)
    assert coordinator.client("a")["phase"] == "running"


def test_a_process_at_the_gate_whose_word_was_lost_is_let_through_for_one_that_cannot_drain(
    coordinator: Coordinator, processes: Processes
) -> None:
    """What its client's other process has on the device may wait for that thread."""
    a, other, b = processes("a"), processes("a"), processes("b")
    a.run_turn()
    other.wait_gate(OPEN)
    b.wants()
    other.wait_gate(CLOSING)
    other.drain()
    coordinator.status()  # so that it has heard that
    other.report.waiting = 1
    other.wait_gate(STEP)


def test_a_device_that_a_process_out_of_reach_still_uses_is_unlocked_when_it_ends(
    coordinator: Coordinator, processes: Processes
) -> None:
    a, b = processes("a"), processes("b")
    a.run_turn()
    fcntl.lockf(a.client_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7)  # as a process of "a" with slot 7 would
    b.wants()
    a.wait_gate(CLOSING)
    a.drain()
    wait_for(lambda: coordinator.client("a")["phase"] == "idle")
    assert locked() and b.gate[0] == CLOSED
    fcntl.lockf(a.client_fd, fcntl.LOCK_UN, 1, 7)
    b.wait_gate(OPEN)


def test_a_process_out_of_reach_that_is_about_to_take_its_turn_keeps_the_device(
    coordinator: Coordinator, processes: Processes
) -> None:
    """It has the lock, for the client's lock is locked, and shows only then that its gate is open."""
    a, b = processes("a"), processes("b")
    a.run_turn()
    turn = 2 * layout()[1]["GPUSHARE_SLOTS"]
    fcntl.lockf(a.client_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, turn)
    b.wants()
    a.wait_gate(CLOSING)
    a.drain()
    wait_for(lambda: coordinator.client("a")["phase"] == "idle")
    assert locked() and b.gate[0] == CLOSED
    fcntl.lockf(a.client_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7)
    fcntl.lockf(a.client_fd, fcntl.LOCK_UN, 1, turn)
    coordinator.status()
    assert locked() and b.gate[0] == CLOSED
    fcntl.lockf(a.client_fd, fcntl.LOCK_UN, 1, 7)
    b.wait_gate(OPEN)


def test_a_process_out_of_reach_keeps_the_shared_lock_that_it_runs_by(
    coordinator: Coordinator, processes: Processes
) -> None:
    """To turn it into an exclusive one, as each turn begins, would give it up: somebody else shares it still."""
    a = processes("a")
    other = lock_file(UUID)
    for descriptor in (a.locks[0], other):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    fcntl.lockf(a.client_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7)  # as a process of "a" with slot 7 would
    a.wants()
    wait_for(lambda: coordinator.client("a")["phase"] == "waiting")
    os.close(other)
    assert locked() and a.gate[0] == CLOSED
    fcntl.lockf(a.client_fd, fcntl.LOCK_UN, 1, 7)
    a.wait_gate(OPEN)


def test_a_drain_of_which_nobody_was_told_is_seen(coordinator: Coordinator, processes: Processes) -> None:
    a, b = processes("a"), processes("b")
    a.run_turn()
    b.wants()
    epoch = a.wait_gate(CLOSING) and a.gate[1]
    a.report.drained_epoch = epoch
    b.wait_gate(OPEN)
