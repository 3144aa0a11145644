"""Tests of turns with cells: a turn ends a short linger after the last cell, so that "Run All" keeps the turn."""

from __future__ import annotations

import random

import pytest

from .conftest import QUANTUM_SECONDS
from .simulated_host import SimulatedHost
from .simulated_process import SimulatedProcess

LINGER = 0.05


def in_cell(host: SimulatedHost, drains_in: float = 0.0) -> SimulatedProcess:
    """Return a process of the client a, whose cell "1" waits for the device."""
    a = host.add_process("a", drains_in=drains_in)
    host.start_cell("a", "1")
    host.wait_at_gate(a)
    return a


def test_next_client_runs_after_the_linger_of_the_cell(host: SimulatedHost) -> None:
    in_cell(host)
    host.add_process("b", busy=True)
    host.run(0.2)
    host.end_cell("a", "1")
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(LINGER)


def test_run_all_keeps_one_turn_despite_a_busy_client(host: SimulatedHost) -> None:
    """50 cells of 10 ms, one of them longer than the linger, 2 to 5 ms apart, take one turn."""
    gaps = random.Random(7)
    a = host.add_process("a")
    host.add_process("b", busy=True)
    host.run(0.1)
    host.start_cell("a", "0")
    host.wait_at_gate(a)
    host.run_until(lambda: host.running() == "a")
    began = host.now
    for number in range(50):
        if number:
            host.start_cell("a", str(number))
            host.wait_at_gate(a)
        assert host.running() == "a", f"lost the turn before cell {number}"
        host.run(0.2 if number == 25 else 0.01)
        host.end_cell("a", str(number))
        host.run(gaps.uniform(0.002, 0.005))
    assert host.now - began < QUANTUM_SECONDS
    assert host.run_until(lambda: host.running() == "b") <= LINGER
    assert host.scheduler.clients["a"].turn_count == 1


def test_run_all_longer_than_a_quantum_takes_turns(host: SimulatedHost) -> None:
    a = in_cell(host)
    host.add_process("b", busy=True)
    for number in range(1, 100):
        host.run(0.01)
        host.end_cell("a", str(number))
        host.run(0.003)
        host.start_cell("a", str(number + 1))
        host.wait_at_gate(a)
    assert host.running() == "b"
    assert host.turns["gpu"][0][2] == pytest.approx(QUANTUM_SECONDS)


def test_overlapping_cells_are_a_set(host: SimulatedHost) -> None:
    """With subshells and nested runs, the cell has ended when the last open request has."""
    a = host.add_process("a")
    for request in ("1", "2", "3"):
        host.start_cell("a", request)
    host.wait_at_gate(a)
    host.add_process("b", busy=True)
    host.end_cell("a", "1")
    host.end_cell("a", "3")
    host.run(4 * LINGER)
    assert host.running() == "a"
    host.end_cell("a", "2")
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(LINGER)


def test_a_cell_reported_twice_ends_once(host: SimulatedHost) -> None:
    in_cell(host)
    host.start_cell("a", "1")
    host.end_cell("a", "1")
    assert not host.scheduler.clients["a"].cells
    host.end_cell("a", "1")
    host.end_cell("a", "never started")


def test_work_outside_cells_is_granted_and_keeps_its_quantum(host: SimulatedHost) -> None:
    a = host.add_process("a")
    host.start_cell("a", "1")
    host.end_cell("a", "1")
    host.wait_at_gate(a)
    host.add_process("b", busy=True)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(QUANTUM_SECONDS)


def test_a_cell_that_ends_while_it_waits_does_not_shorten_its_turn(host: SimulatedHost) -> None:
    host.add_process("b", busy=True)
    in_cell(host)
    host.end_cell("a", "1")
    host.run_until(lambda: host.running() == "a")
    began = host.now
    host.run_until(lambda: host.running() == "b")
    assert host.now - began == pytest.approx(QUANTUM_SECONDS)


@pytest.mark.parametrize("launch_is_reported_first", [False, True])
def test_uncontended_next_cell_keeps_the_turn_during_the_drain(
    host: SimulatedHost, launch_is_reported_first: bool
) -> None:
    """A cell ends with seconds of submitted work outstanding. Closing the turn would only delay the next cell."""
    a = in_cell(host, drains_in=5.0)
    host.end_cell("a", "1")
    host.run(2 * LINGER)
    assert host.phase("a") == "draining"
    if launch_is_reported_first:
        host.wait_at_gate(a)
    host.start_cell("a", "2")
    host.wait_at_gate(a)
    assert (host.phase("a"), a.gate) == ("running", "open")
    opened = a.openings
    host.run(20 * QUANTUM_SECONDS)
    assert (host.phase("a"), a.openings) == ("running", opened)


def test_contended_next_cell_waits_for_a_new_turn(host: SimulatedHost) -> None:
    a = in_cell(host, drains_in=0.08)
    host.add_process("b", busy=True)
    host.end_cell("a", "1")
    host.run(1.5 * LINGER)
    host.start_cell("a", "2")
    host.wait_at_gate(a)
    assert host.run_until(lambda: host.running() == "b") < LINGER + 0.08
    assert host.queue("gpu") == ["a"]
