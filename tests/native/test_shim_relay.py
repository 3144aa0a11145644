"""A process that is named as the next one opens its own gate when the device's lock comes, and hands on likewise."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.page import Page

from .conftest import Client, Machine
from .fake_coordinator import FakeCoordinator, Process, fake_coordinator, until

OPEN = 1
Started = tuple[Client, Any]


@pytest.fixture
def lock(machine: Machine, started: Started) -> Iterator[int]:
    """Of the device, in other hands."""
    device = started[1].hello["devices"][0]["uuid"]
    descriptor = os.open(machine.lock_folder / f"{device}.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def waits_for_a_lock(client: Client) -> bool:
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(words[1:3] == ["->", "FLOCK"] and str(client.pid) in words for words in lines)


def name(process: Process, epoch: int) -> None:
    process.page.orders.carry = epoch
    process.doorbell()


def have_a_turn(client: Client, process: Process, lock: int) -> None:
    """The first one, given by the coordinator."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    process.lock()
    process.open(1)
    assert client.run("cuda.spin()") == 0


def end_it_alone(process: Process, coordinator: FakeCoordinator) -> None:
    """At its deadline, soon after the coordinator has died."""
    process.page.orders.hand_on = 1
    process.page.orders.deadline_ns = time.monotonic_ns() + 300_000_000
    process.doorbell()
    coordinator.die()


def test_it_opens_its_gate_when_the_lock_comes(started: Started, lock: int) -> None:
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    name(process, 7)
    assert client.waits()
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert client.result() == 0
    assert process.page.orders.gate == 7 << 2 | OPEN
    assert not is_free(lock)
    process.open(7)  # the coordinator, which has just heard that the turn before is over
    process.page.orders.carry = 0
    assert client.run("cuda.spin()") == 0
    process.drain(7)


def test_its_name_can_be_taken_back(started: Started, lock: int) -> None:
    """The lock stays until the coordinator gives it up: it might be granting it at that moment."""
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    name(process, 7)
    until(lambda: waits_for_a_lock(client))
    name(process, 0)
    fcntl.flock(lock, fcntl.LOCK_UN)
    process.expect("declined")
    assert client.waits()
    assert not is_free(lock)
    process.unlock()
    assert is_free(lock)
    name(process, 9)
    assert client.result() == 0
    assert process.page.orders.gate == 9 << 2 | OPEN


def test_named_anew_for_a_later_turn(started: Started, lock: int) -> None:
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    for epoch in (3, 4, 5):
        name(process, epoch)
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert client.result() == 0
    assert process.page.orders.gate == 5 << 2 | OPEN
    assert process.silent()


def test_a_thread_that_was_interrupted_needs_no_turn(started: Started, lock: int) -> None:
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    name(process, 7)
    until(lambda: process.page.report.waiting == 1 and waits_for_a_lock(client))
    os.kill(client.pid, signal.SIGINT)
    process.expect("unwants")
    assert client.raw()["error"] == "KeyboardInterrupt"
    fcntl.flock(lock, fcntl.LOCK_UN)
    process.expect("declined")
    assert process.page.orders.gate == 0


def test_it_gives_the_lock_up_before_it_says_drained(started: Started, lock: int) -> None:
    client, process = started
    fcntl.flock(lock, fcntl.LOCK_UN)
    process.lock()
    process.open(1)
    assert client.run("cuda.spin(5)") == 0
    assert not is_free(lock)
    process.page.orders.hand_on = 1
    process.drain(1)
    assert is_free(lock)
    process.lock()
    process.page.orders.hand_on = 0
    process.open(2)
    assert client.run("cuda.spin()") == 0
    process.drain(2)
    assert not is_free(lock), "that is the coordinator's to give up"


def test_at_its_deadline_it_hands_on_without_a_coordinator(
    machine: Machine, coordinator: FakeCoordinator, started: Started, lock: int
) -> None:
    client, process = started
    have_a_turn(client, process, lock)
    end_it_alone(process, coordinator)
    until(lambda: is_free(lock))
    assert "by the lock files" not in machine.log_text()


def test_a_new_coordinator_is_not_held_to_an_old_ones_word(
    machine: Machine, coordinator: FakeCoordinator, started: Started, lock: int
) -> None:
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    name(process, 7)
    until(lambda: waits_for_a_lock(client))
    process.connection.close()
    again = coordinator.accept()
    assert (again.page.orders.carry, again.hello["running"]) == (0, False)
    again.welcome()
    again.expect("wants")
    fcntl.flock(lock, fcntl.LOCK_UN)
    again.expect("declined")
    assert client.waits()
    again.open(1)
    assert client.result() == 0


def test_it_keeps_the_lock_for_a_process_of_its_client_that_is_out_of_reach(
    machine: Machine, coordinator: FakeCoordinator, started: Started, lock: int
) -> None:
    """A coordinator that has lost sight of the other process takes the first for the client's only one."""
    client, process = started
    second = machine.client(GPUSHARE_CLIENT="one", GPUSHARE_TOKEN="secret")
    second.start("cuda = Cuda()")
    other = coordinator.accept().join(process, 1)
    assert second.result() is None
    fcntl.flock(lock, fcntl.LOCK_UN)
    process.lock()
    for one, program in ((process, client), (other, second)):
        one.open(1)
        assert program.run("cuda.spin()") == 0
    other.connection.close()
    coordinator.accept().welcome()
    process.page.orders.hand_on = 1
    process.drain(1)
    assert not is_free(lock)


def test_who_drained_out_of_reach_is_seen_not_to_run(
    machine: Machine, coordinator: FakeCoordinator, started: Started, lock: int
) -> None:
    client, process = started
    have_a_turn(client, process, lock)
    assert process.client_page.any_gate_open()
    watched = Page(os.dup(process.page.descriptor))
    end_it_alone(process, coordinator)
    until(lambda: watched.report.drained_epoch == 1)
    with fake_coordinator(machine.socket) as another:
        again = another.accept().welcome()
        again.expect("drained", epoch=1)
        assert not again.client_page.any_gate_open()


def test_an_opening_that_came_as_the_connection_ended_lets_nobody_in_unseen(
    coordinator: FakeCoordinator, started: Started
) -> None:
    """Else the coordinator, which sees the end and no record lock, would give the device to the next one."""
    client, process = started
    client.start("cuda.spin()")
    process.expect("wants")
    process.connection.close()
    coordinator.accept()
    process.page.open_gate(1)
    assert client.result() == 0
    assert process.client_page.any_gate_open()


def test_shared_locks_are_kept_without_a_coordinator(
    machine: Machine, coordinator: FakeCoordinator, started: Started, lock: int
) -> None:
    """Clients that ran together end their turns first; a try for the exclusive lock would lose the shared one."""
    client, process = started
    for descriptor in (lock, *process.locks):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    process.page.orders.quantum_ns = 60_000_000_000
    process.page.orders.idle_release_ns = 0
    process.open(1)
    assert client.run("cuda.spin()") == 0
    watched = Page(os.dup(process.page.descriptor))
    coordinator.die()
    until(lambda: "by the lock files" in machine.log_text())
    until(lambda: watched.report.mode == 1)
    assert client.run("cuda.spin()") == 0
    assert watched.gate_open
    assert not is_free(lock)
