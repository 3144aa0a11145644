"""The device is locked by somebody else on this host: the turn waits, without losing its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import IllegalEvent

from .conftest import QUANTUM
from .world import OUTSIDER, World


def attempts(world: World) -> list[float]:
    return [now for now, event in world.log if isinstance(event, ev.LockRefused)]


def test_a_refused_turn_is_tried_again_with_growing_delays(world: World) -> None:
    world.lock_elsewhere("gpu")
    world.process("a", busy=True)
    world.run(5)
    assert world.phase("a") == "waiting"
    delays = [later - sooner for sooner, later in zip(attempts(world), attempts(world)[1:], strict=False)]
    assert delays[:5] == pytest.approx([0.01, 0.02, 0.04, 0.04, 0.04])
    assert delays[5:] == pytest.approx([0.04] * len(delays[5:]))
    world.unlock_elsewhere("gpu")
    assert world.run_until(lambda: world.running() == "a") <= 0.04


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


def test_others_do_not_overtake_who_was_refused(world: World) -> None:
    world.lock_elsewhere("gpu")
    world.process("a", busy=True)
    world.run(0.3)
    world.process("b", busy=True)
    world.run(0.3)
    assert world.queue("gpu") == ["a", "b"]
    world.unlock_elsewhere("gpu")
    world.run_until(lambda: world.running() is not None)
    assert (world.running(), world.queue("gpu")) == ("a", ["b"])


def test_a_refused_turn_counts_neither_as_turn_nor_as_gpu_time_but_as_waiting(world: World) -> None:
    world.lock_elsewhere("gpu")
    world.process("a", busy=True)
    world.run(2.0)
    world.unlock_elsewhere("gpu")
    waited = 2.0 + world.run_until(lambda: world.running() == "a")
    client = world.scheduler.clients["a"]
    assert (client.quanta, client.gpu_seconds_at(world.now)) == (1, 0)
    assert client.wait_seconds_at(world.now) == pytest.approx(waited)


def test_after_a_turn_delays_start_small_again(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(3)
    world.unlock_elsewhere("gpu")
    world.run_until(lambda: world.running() == "a")
    world.kill(a)
    world.lock_elsewhere("gpu")
    del world.log[:]
    world.process("b", busy=True)
    world.run(0.01)
    assert len(attempts(world)) == 2


def test_nobody_wants_it_any_more_nobody_tries(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(0.1)
    world.unwant(a)
    assert world.scheduler.next_deadline() is None


def test_it_ends_while_it_is_refused(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.process("b", busy=True)
    world.run(0.1)
    world.kill(a)
    world.unlock_elsewhere("gpu")
    world.run_until(lambda: world.running() == "b")


def test_a_gang_that_is_refused_one_device_holds_none(make_world: Callable[..., World]) -> None:
    world = make_world("d1", "d2")
    world.lock_elsewhere("d2")
    world.process("gang", "d1", "d2", busy=True)
    assert "d1" not in world.locks
    world.unlock_elsewhere("d2")
    world.run_until(lambda: world.running("d1") == "gang")


def test_a_refused_device_beside_a_busy_one_makes_no_edge_spin(make_world: Callable[..., World]) -> None:
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


def test_refusals_of_turns_that_are_not_are_illegal(world: World) -> None:
    a = world.process("a", busy=True)
    for epoch in (a.epoch - 1, a.epoch + 1):
        with pytest.raises(IllegalEvent):
            world.feed(ev.LockRefused("a", epoch))
    world.client("b")
    with pytest.raises(IllegalEvent):
        world.feed(ev.LockRefused("b", 0))


def test_a_refused_turn_leaves_the_processes_as_they_were(world: World) -> None:
    waiting, quiet = world.process("a"), world.process("a")
    world.lock_elsewhere("gpu")
    world.want(waiting)
    assert [c for c in world.commands if isinstance(c, cmd.Free)] == []
    world.unwant(waiting)
    assert world.queue("gpu") == []
    world.want(quiet)
    assert world.queue("gpu") == ["a"]


def test_gates_of_a_lock_that_nobody_needs_are_closed_anew_but_not_during_a_turn(world: World) -> None:
    a = world.process("a")
    decided = world.feed(ev.LockStray("a"))
    assert decided == [cmd.Close("a", world.scheduler.turns.epoch, (a.number,))]
    world.want(a)
    assert world.running() == "a"
    assert world.feed(ev.LockStray("a")) == []
