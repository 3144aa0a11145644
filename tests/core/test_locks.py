"""The device is held by a client of another coordinator: the next client waits, without losing its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import QUANTUM
from .world import OPEN, OUTSIDER, World


def test_the_next_client_keeps_its_permit_and_begins_when_the_device_is_free(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(5)
    assert (world.phase("a"), world.permits["a"].may) == ("waiting", True)
    world.unlock_elsewhere("gpu", ring=False)
    assert world.run_until(lambda: a.gate == OPEN) <= 0.021


def test_another_user_slips_in_between_two_turns(world: World) -> None:
    """Coordinators of different users take turns by the lock; within each, the order of the queue holds."""
    for name in "abc":
        world.process(name, busy=True)
    world.slip_in.add("gpu")
    world.run(QUANTUM + 0.5)
    assert (world.order("gpu"), world.queue("gpu")) == (["a", OUTSIDER], ["b", "c", "a"])
    world.unlock_elsewhere("gpu")
    world.run_until(lambda: world.running() == "b")
    assert world.scheduler.clients["b"].wait_seconds_at(world.now) == pytest.approx(world.now)


def test_a_wait_for_the_lock_counts_neither_as_turn_nor_as_gpu_time_but_as_waiting(world: World) -> None:
    world.lock_elsewhere("gpu")
    world.process("a", busy=True)
    world.run(2.0)
    world.unlock_elsewhere("gpu")
    waited = 2.0 + world.run_until(lambda: world.running() == "a")
    client = world.scheduler.clients["a"]
    assert (client.quanta, client.gpu_seconds_at(world.now)) == (1, 0)
    assert client.wait_seconds_at(world.now) == pytest.approx(waited)


def test_nobody_wants_it_any_more_nobody_tries(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(0.1)
    world.unwant(a)
    assert world.scheduler.next_deadline() is None


def test_a_gang_that_cannot_have_one_device_holds_none(make_world: Callable[..., World]) -> None:
    world = make_world("d1", "d2")
    world.lock_elsewhere("d2")
    world.process("gang", "d1", "d2", busy=True)
    assert not world.holders("d1")
    world.unlock_elsewhere("d2")
    world.run_until(lambda: world.running("d1") == "gang")


def test_a_device_that_is_held_elsewhere_beside_a_busy_one_makes_no_edge_spin(make_world: Callable[..., World]) -> None:
    """The world fails if a deadline has passed and is not acted upon."""
    world = make_world("d1", "d2")
    world.lock_elsewhere("d2")
    world.process("a", "d1", busy=True)
    world.process("b", "d2", busy=True)
    world.process("gang", "d1", "d2", busy=True)
    world.run(0.5 * QUANTUM)
    world.process("c", "d1", "d2", busy=True)
    world.run(3 * QUANTUM)
    world.unlock_elsewhere("d2")
    world.run_until(lambda: world.running("d2") == "b")
