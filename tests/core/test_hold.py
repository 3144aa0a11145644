"""What people say of their turns: hold, release, suspend, resume."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import Conflict, Refused

from .conftest import QUANTUM, MakeWorld
from .world import World

GIB = 1 << 30


@pytest.fixture
def between_cells(world: World) -> World:
    """a runs a cell, and b waits."""
    world.start_cell(world.client("a"), "one")
    world.busy("a", "b")
    world.run(0.1)
    return world


def test_hold_keeps_the_device_between_cells(between_cells: World) -> None:
    world = between_cells
    world.feed(ev.TurnHeld("a", 60.0))
    world.end_cell("a", "one")
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(60.0)


def test_a_hold_outlasts_the_quantum_and_idleness(world: World) -> None:
    a = world.process("a", wants=True)
    world.process("b", busy=True)
    world.feed(ev.TurnHeld("a", 60.0))
    world.run(10 * QUANTUM)
    world.idle(a)
    assert world.running() == "a"
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(60.0 - 10 * QUANTUM)


def test_busy_client_keeps_its_turn_when_the_hold_ends(world: World) -> None:
    a = world.process("a", wants=True)
    world.process("b", busy=True)
    world.feed(ev.TurnHeld("a", QUANTUM / 2))
    world.idle(a)
    world.works_again(a)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM)


@pytest.mark.parametrize("end", [ev.TurnHeld("a", 0.0), ev.TurnReleased("a")])
def test_a_hold_is_taken_back(between_cells: World, end: ev.Event) -> None:
    world = between_cells
    world.feed(ev.TurnHeld("a", 60.0))
    world.end_cell("a", "one")
    world.run(10.0)
    world.feed(end)
    assert world.run_until(lambda: world.running() == "b") == 0


def test_one_hold_after_the_other_does_not_last_longer_than_one_may(make_world: MakeWorld) -> None:
    world = make_world(max_hold=30.0)
    world.busy("a", "b")
    for _ in range(6):
        world.feed(ev.TurnHeld("a", 30.0))
        world.run(4.0)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(30.0 - 24.0)


@pytest.mark.parametrize("seconds", [-1.0, 600.1, float("nan"), float("inf")])
def test_a_hold_out_of_range_changes_nothing(between_cells: World, seconds: float) -> None:
    with pytest.raises(Refused, match=r"allowed are 0 to 600 seconds \(max_hold\)"):
        between_cells.feed(ev.TurnHeld("a", seconds))
    assert between_cells.scheduler.clients["a"].held_for(between_cells.now) is None


def test_a_suspended_client_has_no_turns_until_it_is_resumed(world: World) -> None:
    world.busy("a", "b")
    world.run(0.1)
    world.feed(ev.Suspended("a"))
    assert world.run_until(lambda: world.running() == "b") == 0
    world.run(20 * QUANTUM)
    assert (world.phase("a"), world.running(), world.queue("gpu")) == ("suspended", "b", [])
    world.feed(ev.Resumed("a"))
    assert world.run_until(lambda: world.running() == "a") <= QUANTUM


def test_suspended_waiter_leaves_the_queue(world: World) -> None:
    world.busy("a", "b")
    world.feed(ev.Suspended("b"))
    assert world.queue("gpu") == []
    assert not world.scheduler.turns.contended(world.scheduler.clients["a"].grant)  # type: ignore[arg-type]


def test_a_suspended_client_has_nothing_to_hold(world: World) -> None:
    world.process("a", busy=True)
    world.feed(ev.Suspended("a"))
    with pytest.raises(Conflict, match="resume it first"):
        world.feed(ev.TurnHeld("a", 60.0))
    world.feed(ev.TurnHeld("a", 0.0))


def test_an_offline_client_has_what_an_online_one_held_and_does_not_use(world: World) -> None:
    """The holder said once that it is idle, while it held: nobody else will say so when the hold is over."""
    world.device("d")
    online = world.process("online")
    offline = world.start("offline", service="offline", busy=False)
    world.want(online)
    world.feed(ev.TurnHeld("online", 5.0))
    world.want(offline)
    world.run(1.0)
    world.idle(online)
    world.run(1.0)
    assert world.running() == "online"
    assert world.run_until(lambda: world.running() == "offline") == pytest.approx(3.0)


def test_the_memory_of_an_evicted_client_leaves_once(world: World) -> None:
    a = world.process("a")
    world.holds("a", GIB // 4)
    assert cmd.SetResident("a", 0) in world.feed(ev.Evicted("a"))
    world.holds("a", GIB // 4, 0)
    assert world.phase("a") == "idle"
    began = len(world.commands)
    world.want(a)
    assert world.running() == "a", "it comes back with its next turn"
    assert cmd.SetResident("a", None) in world.commands[began:]
    world.idle(a)
    world.run(10 * QUANTUM)
    assert cmd.SetResident("a", 0) not in world.commands[began:], "and stays"


def test_evicting_ends_the_turn_before_memory_leaves(world: World) -> None:
    world.process("a", busy=True, drains_in=0.05)
    world.holds("a", GIB // 4)
    said = world.feed(ev.Evicted("a"))
    kinds = [type(command) for command in said]
    assert cmd.SetResident("a", 0) in said
    assert kinds.index(cmd.SetResident) < kinds.index(cmd.Permit), "what closes looks there"
    assert world.phase("a") == "draining"
    assert world.holders("gpu")
    # Although a thread of it stands at the gate and nobody else waits, the closing is not taken back.
    assert world.run_until(lambda: bool(world.turns["gpu"])) == pytest.approx(0.05)
    assert world.running() == "a"
    assert world.scheduler.residence.said("a") is None


def test_evicting_ends_a_hold(between_cells: World) -> None:
    world = between_cells
    world.feed(ev.TurnHeld("a", 60.0))
    world.feed(ev.Evicted("a"))
    assert world.run_until(lambda: world.running() == "b") == 0
    assert world.scheduler.clients["a"].held_for(world.now) is None


def test_evicted_waiter_keeps_its_place_without_prefetch(world: World) -> None:
    world.busy("a", "b")
    world.holds("a", GIB // 4)
    world.holds("b", GIB // 4)
    began = len(world.commands)
    assert cmd.SetResident("b", 0) in world.feed(ev.Evicted("b"))
    world.holds("b", GIB // 4, 0)
    assert world.queue("gpu") == ["b"]
    world.run_until(lambda: world.running() == "b")
    assert cmd.RestoreAhead("b", True) not in world.commands[began:]
    assert world.scheduler.residence.said("b") is None


def test_evicted_client_with_a_refused_lock_stays_evicted(world: World) -> None:
    a = world.process("a")
    world.holds("a", GIB // 4)
    world.feed(ev.Evicted("a"))
    world.lock_elsewhere("gpu")
    world.want(a)
    assert world.running() is None
    assert world.scheduler.residence.said("a") == 0
    world.unlock_elsewhere("gpu")
    world.run_until(lambda: world.running() == "a")
    assert world.scheduler.residence.said("a") is None


def test_an_eviction_of_a_suspended_client_is_over_with_the_suspension(world: World) -> None:
    world.process("a", busy=True)
    world.feed(ev.Suspended("a"))
    world.feed(ev.Evicted("a"))
    world.run(QUANTUM)
    world.feed(ev.Resumed("a"))
    assert world.run_until(lambda: world.running() == "a") == 0
    assert world.scheduler.residence.said("a") is None
