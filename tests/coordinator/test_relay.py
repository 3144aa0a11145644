"""Turns that pass by the device's lock itself: what the coordinator tells both processes, and what it makes of it."""

from __future__ import annotations

import fcntl
import os

import pytest

from .conftest import QUANTUM, Coordinator, Processes
from .fake_process import CLOSED, CLOSING, OPEN, FakeProcess, lock_file, wait_for


def hand_on(process: FakeProcess) -> None:
    """As the shim does: the lock goes first, then it is said."""
    fcntl.flock(process.locks[0], fcntl.LOCK_UN)
    process.drain()


def take_over(process: FakeProcess) -> int:
    """As the shim does when the lock has come; returns the epoch."""
    fcntl.flock(process.locks[0], fcntl.LOCK_EX)
    epoch = int(process.orders.carry)
    process.orders.gate = epoch << 2 | OPEN
    return epoch


@pytest.fixture
def pair(coordinator: Coordinator, processes: Processes) -> tuple[FakeProcess, FakeProcess]:
    """One that runs, one that is named as the next."""
    first, second = processes("first"), processes("second")
    first.wants()
    first.wait_gate(OPEN)
    second.wants()
    wait_for(lambda: second.orders.carry != 0 and first.orders.hand_on != 0)
    return first, second


def test_a_turn_that_was_taken_over_is_granted(coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]) -> None:
    first, second = pair
    first.wait_gate(CLOSING)
    fcntl.flock(first.locks[0], fcntl.LOCK_UN)
    epoch = take_over(second)
    first.drain()
    wait_for(lambda: second.orders.carry == 0)
    assert second.gate == (OPEN, epoch)
    assert coordinator.client("second")["phase"] == "running"
    first.wants()
    second.wait_gate(CLOSING, within=5 * QUANTUM + 1)  # a turn like any other
    wait_for(lambda: first.orders.carry != 0)


def test_without_its_help_the_next_one_runs_all_the_same(pair: tuple[FakeProcess, FakeProcess]) -> None:
    first, second = pair
    first.wait_gate(CLOSING)
    hand_on(first)
    second.wait_gate(OPEN)
    wait_for(lambda: second.orders.carry == 0)


def test_a_lock_that_nobody_needs_is_given_back(
    coordinator: Coordinator, processes: Processes, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    first, second = pair
    second.say("unwants")
    wait_for(lambda: second.orders.carry == 0)
    first.wait_gate(OPEN)
    assert first.orders.hand_on == 0
    first.say("idle", epoch=first.gate[1])
    third = processes("third")
    third.wants()
    first.wait_gate(CLOSING)
    hand_on(first)
    third.wait_gate(OPEN)
    third.say("idle", epoch=third.gate[1])
    fcntl.flock(third.locks[0], fcntl.LOCK_UN)
    fcntl.flock(second.locks[0], fcntl.LOCK_EX)
    second.say("declined")  # the lock came late, for the name that was taken back
    outsider = lock_file(first.devices[0])
    wait_for(lambda: _can_lock(outsider))
    os.close(outsider)


def test_a_lock_of_which_nobody_says_anything_is_given_back(
    processes: Processes, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    """Whoever has it might open its gate yet: only when it has drained of one more closing it cannot."""
    first, second = pair
    second.say("unwants")
    wait_for(lambda: second.orders.carry == 0)
    third = processes("third")
    third.wants()
    first.wait_gate(CLOSING)
    fcntl.flock(first.locks[0], fcntl.LOCK_UN)
    fcntl.flock(second.locks[0], fcntl.LOCK_EX)
    first.drain()
    second.wait_gate(CLOSING)
    assert third.gate[0] == CLOSED
    second.drain()
    third.wait_gate(OPEN)


def test_an_old_word_does_not_unlock_what_was_taken_over(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    first, second = pair
    first.wait_gate(CLOSING)
    fcntl.flock(first.locks[0], fcntl.LOCK_UN)
    fcntl.flock(second.locks[0], fcntl.LOCK_EX)
    for _ in range(2):  # before its gate is open, and after
        second.say("declined")
        second.say("drained", epoch=0)
        coordinator.status()
        outsider = lock_file(first.devices[0])
        assert not _can_lock(outsider)
        os.close(outsider)
        epoch = take_over(second)
    first.drain()
    wait_for(lambda: second.orders.carry == 0)
    assert second.gate == (OPEN, epoch)


def test_who_took_over_too_late_is_closed(
    coordinator: Coordinator, processes: Processes, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    """It opened its gate while the coordinator took its name back: then its turn ends, and everybody gets theirs."""
    first, second = pair
    epoch = int(second.orders.carry)
    first.wait_gate(CLOSING)
    second.say("unwants")
    wait_for(lambda: second.orders.carry == 0)
    fcntl.flock(first.locks[0], fcntl.LOCK_UN)
    fcntl.flock(second.locks[0], fcntl.LOCK_EX)
    second.orders.gate = epoch << 2 | OPEN
    third = processes("third")
    third.wants()
    first.drain()
    second.wait_gate(CLOSING)
    assert third.gate[0] == CLOSED
    second.drain()
    third.wait_gate(OPEN)


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
