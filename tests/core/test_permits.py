"""The rows of the coordinator's table in docs/explanation/turns.md: from an event of a client to its permit."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM, MakeWorld
from .world import CLOSED, CLOSING, OPEN, OUTSIDER, World

LATE = 10.0  # seconds of closing, after which it is an overrun


def test_1_the_first_in_line_is_permitted_before_the_running_one_is_relieved(world: World) -> None:
    world.busy("a", "b")
    permits = [command for command in world.commands if isinstance(command, cmd.Permit)]
    assert [(permit.client, permit.may, permit.relieved) for permit in permits] == [
        ("a", True, False),
        ("b", True, False),
        ("a", True, True),
    ]
    assert permits[0].turn != permits[1].turn


def test_2_relieved_is_cleared_before_the_next_permit_is_withdrawn(world: World) -> None:
    _, b = world.busy("a", "b")
    world.commands.clear()
    world.unwant(b)
    permits = [command for command in world.commands if isinstance(command, cmd.Permit)]
    assert [(permit.client, permit.may, permit.relieved) for permit in permits] == [
        ("a", True, False),
        ("b", False, False),
    ]


def test_3_a_beginning_sets_the_deadline(world: World) -> None:
    _, b = world.busy("a", "b")
    assert world.permits["b"].deadline is None
    world.run_until(lambda: b.gate == OPEN)
    assert world.permits["b"].deadline == pytest.approx(world.now + QUANTUM)


def test_4_a_stopped_process_is_passed_over(world: World) -> None:
    _, b, c = world.busy("a", "b", "c")
    world.stop(b)
    assert world.run_until(lambda: c.gate == OPEN) == pytest.approx(QUANTUM + 0.05)
    assert not world.permits["b"].may
    world.go_on(b)
    world.run_until(lambda: b.gate == OPEN, within=3 * QUANTUM)


def test_5_a_device_that_is_held_elsewhere_is_waited_for(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(0.5)
    assert world.scheduler.devices["gpu"].taken_since is not None, "byte 0 of the lock shows it"
    assert (world.permits["a"].may, world.phase("a")) == (True, "waiting")
    world.unlock_elsewhere("gpu")
    assert (a.gate, world.scheduler.devices["gpu"].taken_since) == (OPEN, None)


def test_6_the_next_permit_is_withdrawn_for_the_gap(world: World) -> None:
    _, b = world.busy("a", "b")
    world.feed(ev.LockWanted("gpu", True))
    world.run_until(lambda: world.running() is None)
    assert (world.permits["b"].may, b.gate) == (False, CLOSED)
    assert world.run_until(lambda: b.gate == OPEN) == pytest.approx(0.1)


def test_7_a_turn_entered_without_a_permit_is_withdrawn(world: World) -> None:
    a = world.process("a")
    world.client("b")
    world.feed(ev.ProcessJoined("b", 77, ("gpu",)))
    world.feed(ev.Began(77, 1 << 50, world.now))
    assert world.phase("b") in ("running", "draining")
    assert not world.permits.get("b") or not world.permits["b"].may or world.permits["b"].turn == 1 << 50
    world.feed(ev.Ended(77, 1 << 50))
    world.want(a)
    assert world.running() == "a"


def test_8_a_client_that_suits_a_running_turn_gets_its_number(make_world: MakeWorld) -> None:
    world = make_world(sharing="packed")
    a, b = world.process("a", busy=True), world.process("b", busy=True)
    assert (a.gate, b.gate, a.turn) == (OPEN, OPEN, b.turn)
    assert not world.permits["a"].relieved


def test_9_demand_changes_the_deadline_under_the_same_epoch(world: World) -> None:
    world.process("a", busy=True)
    first = world.permits["a"]
    world.process("b", busy=True)
    after = world.permits["a"]
    assert (first.epoch, first.deadline, first.contended) == (after.epoch, None, False)
    assert (after.deadline, after.contended) == (QUANTUM, True)


def test_10_a_turn_that_must_end_loses_its_permit(world: World) -> None:
    a = world.process("a", busy=True, drains_in=0.5)
    world.process("b", busy=True)
    world.feed(ev.TurnReleased("a"))
    assert (world.permits["a"].may, a.gate, world.phase("a")) == (False, CLOSING, "draining")


def test_11_the_last_process_that_leaves_or_dies_ends_the_turn(world: World) -> None:
    first, second = world.process("a", busy=True), world.process("a", busy=True)
    world.process("b", busy=True)
    world.kill(first)
    assert world.phase("a") == "running"
    world.kill(second)
    assert (world.phase("a"), world.running()) == ("idle", "b")


def test_12_an_ending_turn_may_go_on_once_no_client_waits(world: World) -> None:
    a = world.process("a", busy=True, drains_in=0.5)
    b = world.process("b", busy=True)
    world.run(QUANTUM + 0.05)
    assert a.gate == CLOSING
    turn, epoch = world.permits["a"].turn, world.permits["a"].epoch
    world.unwant(b)
    assert (a.gate, a.turn, world.phase("a")) == (OPEN, turn, "running")
    assert world.permits["a"].may and world.permits["a"].epoch != epoch


def test_13_with_join_the_next_client_gets_the_number_of_an_overrun(make_world: MakeWorld) -> None:
    world = make_world(overrun="join", overrun_patience=1.0)
    a = world.process("a", drains_in=1000.0, wants=True)
    b = world.process("b", busy=True)
    assert world.permits["b"].turn != a.turn
    world.run_until(lambda: b.gate == OPEN)
    assert (b.turn, world.phase("a"), world.phase("b"), a.gate) == (a.turn, "overrun", "running", CLOSING)
    assert set(world.holders("gpu")) == {"a", "b"}
    assert world.now == pytest.approx(QUANTUM + LATE + 1.0, abs=0.1)


def test_14_a_permitted_beginning_ends_the_turn_of_another_number_in_the_books(world: World) -> None:
    """The device's lock admitted it, so the other one is out, though its report has not come."""
    world.news_late = 0.3
    _, b = world.busy("a", "b")
    world.run_until(lambda: b.gate == OPEN)
    assert (world.phase("a"), world.phase("b")) != ("running", "running")
    assert [grant.client.id for grant in world.scheduler.devices["gpu"].grants] == ["b"]


@pytest.mark.parametrize("phase", [OPEN, CLOSING])
def test_15_a_turn_that_a_process_brings_is_adopted(world: World, phase: str) -> None:
    a = world.adopt("a", "gpu", turn=1 << 50, phase=phase, drains_in=0.1)
    assert (a.turn, world.scheduler.clients["a"].quanta) == (1 << 50, 1)
    b = world.process("b", busy=True)
    world.run_until(lambda: b.gate == OPEN)
    assert OUTSIDER not in world.order("gpu")
