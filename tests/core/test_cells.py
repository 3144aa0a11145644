"""Cells: the turn ends a short linger after the last one, so that "Run All" keeps it."""

from __future__ import annotations

import random

import pytest

from .conftest import QUANTUM
from .world import FakeProcess, World

LINGER = 0.05


def in_cell(world: World, drains_in: float = 0.0) -> FakeProcess:
    """A process of the client a, whose cell "1" wants the device."""
    a = world.process("a", drains_in=drains_in)
    world.start_cell("a", "1")
    world.want(a)
    return a


def test_after_the_cell_the_next_in_line_runs_after_the_linger_not_the_quantum(world: World) -> None:
    in_cell(world)
    world.process("b", busy=True)
    world.run(0.2)
    world.end_cell("a", "1")
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(LINGER)


def test_run_all_beside_a_busy_neighbour_keeps_one_turn(world: World) -> None:
    """50 cells of 10 ms, one of them longer than the linger, 2 to 5 ms apart, take one turn."""
    gaps = random.Random(7)
    a = world.process("a")
    world.process("b", busy=True)
    world.run(0.1)
    world.start_cell("a", "0")
    world.want(a)
    world.run_until(lambda: world.running() == "a")
    began = world.now
    for number in range(50):
        if number:
            world.start_cell("a", str(number))
            world.want(a)
        assert world.running() == "a", f"lost the turn before cell {number}"
        world.run(0.2 if number == 25 else 0.01)
        world.end_cell("a", str(number))
        world.run(gaps.uniform(0.002, 0.005))
    assert world.now - began < QUANTUM
    assert world.run_until(lambda: world.running() == "b") <= LINGER
    assert world.scheduler.clients["a"].quanta == 1


def test_run_all_longer_than_a_quantum_takes_turns(world: World) -> None:
    a = in_cell(world)
    world.process("b", busy=True)
    for number in range(1, 100):
        world.run(0.01)
        world.end_cell("a", str(number))
        world.run(0.003)
        world.start_cell("a", str(number + 1))
        world.want(a)
    assert world.running() == "b"
    assert world.turns["gpu"][0][2] == pytest.approx(QUANTUM)


def test_overlapping_cells_are_a_set(world: World) -> None:
    """Subshells and nested runs: the cell has ended when the last open request has."""
    a = world.process("a")
    for request in ("1", "2", "3"):
        world.start_cell("a", request)
    world.want(a)
    world.process("b", busy=True)
    world.end_cell("a", "1")
    world.end_cell("a", "3")
    world.run(4 * LINGER)
    assert world.running() == "a"
    world.end_cell("a", "2")
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(LINGER)


def test_a_cell_reported_twice_ends_once(world: World) -> None:
    in_cell(world)
    world.start_cell("a", "1")
    world.end_cell("a", "1")
    assert not world.scheduler.clients["a"].cells
    world.end_cell("a", "1")
    world.end_cell("a", "never started")


def test_work_outside_cells_is_granted_and_keeps_its_quantum(world: World) -> None:
    a = world.process("a")
    world.start_cell("a", "1")
    world.end_cell("a", "1")
    world.want(a)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM)


def test_a_cell_that_ends_while_it_waits_does_not_shorten_its_turn(world: World) -> None:
    world.process("b", busy=True)
    in_cell(world)
    world.end_cell("a", "1")
    world.run_until(lambda: world.running() == "a")
    began = world.now
    world.run_until(lambda: world.running() == "b")
    assert world.now - began == pytest.approx(QUANTUM)


@pytest.mark.parametrize("launch_is_reported_first", [False, True])
def test_uncontended_next_cell_keeps_the_turn_during_the_drain(world: World, launch_is_reported_first: bool) -> None:
    """A cell ends with seconds of submitted work outstanding. Closing it harms nobody's turn but the next cell's."""
    a = in_cell(world, drains_in=5.0)
    world.end_cell("a", "1")
    world.run(2 * LINGER)
    assert world.phase("a") == "draining"
    if launch_is_reported_first:
        world.want(a)
    world.start_cell("a", "2")
    world.want(a)
    assert (world.phase("a"), a.gate) == ("running", "open")
    opened = a.openings
    world.run(20 * QUANTUM)
    assert (world.phase("a"), a.openings) == ("running", opened)


def test_contended_next_cell_waits_for_a_new_turn(world: World) -> None:
    a = in_cell(world, drains_in=0.08)
    world.process("b", busy=True)
    world.end_cell("a", "1")
    world.run(1.5 * LINGER)
    world.start_cell("a", "2")
    world.want(a)
    assert world.run_until(lambda: world.running() == "b") < LINGER + 0.08
    assert world.queue("gpu") == ["a"]
