"""Turns that do not end: waited for, joined, or interrupted."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM, MakeWorld
from .test_closing import hopeless_pair
from .world import CLOSED, CLOSING, OPEN, FakeProcess, World, baseline

REPORTED = QUANTUM + 10.0  # when a drain without an end is an overrun
PATIENCE = 5.0
HALF = 1 << 29  # of a device


@pytest.fixture
def joining(make_world: MakeWorld) -> World:
    return make_world(overrun="join", overrun_patience=PATIENCE)


def stuck(world: World, name: str = "a", drains_in: float = 1000.0) -> FakeProcess:
    """It has a turn that does not end, once somebody waits for it."""
    return world.process(name, drains_in=drains_in, wants=True)


def test_overrun_is_waited_for_by_default(world: World) -> None:
    stuck(world)
    b = world.process("b", busy=True)
    world.run(900)
    assert (world.phase("a"), world.phase("b"), b.openings) == ("overrun", "waiting", 0)
    assert not any(isinstance(command, cmd.Interrupt) for command in world.commands)


def test_overrun_is_joined_at_its_start(make_world: MakeWorld) -> None:
    """Slices grow to a quantum: whoever waits would wait for the end of one."""
    world = make_world(overrun="join", overrun_patience=PATIENCE, time_quantum=100.0)
    world.want(*hopeless_pair(world))
    b = world.process("b", busy=True)
    world.run_until(lambda: world.phase("a") == "overrun", within=200)
    assert world.run_until(lambda: b.gate == OPEN) == pytest.approx(PATIENCE, abs=0.02)


def test_joined_clients_alternate_turns(joining: World) -> None:
    stuck(joining)
    b, c = joining.process("b", busy=True), joining.process("c", busy=True)
    joining.run(REPORTED + PATIENCE + 1.0)
    since = joining.now
    for _ in range(100):
        joining.run(0.1)
        assert [b.gate, c.gate].count(OPEN) <= 1
    held = joining.held("gpu", since)
    assert held["b"] == pytest.approx(held["c"], abs=2 * QUANTUM) and held["b"] > 3


def test_joined_overrun_waits_for_its_next_turn(joining: World) -> None:
    """Nobody waits for it any more, yet its gate is not closed for nobody."""
    a = stuck(joining)
    b = joining.process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    a.busy = True
    joining.want(a)
    joining.run(2 * QUANTUM)
    assert (joining.queue("gpu"), joining.phase("a"), b.openings) == ([], "overrun", 1)
    a.drains_in = 0.0
    joining.run_until(lambda: joining.phase("a") == "waiting")
    assert set(joining.holders("gpu")) == {"b"}
    joining.run_until(lambda: a.gate == OPEN)
    assert (joining.phase("a"), b.gate) == ("running", CLOSED)


def test_uncontended_overrun_keeps_its_turn(joining: World) -> None:
    a = stuck(joining)
    b = joining.process("b", wants=True)
    joining.run(REPORTED + 1.0)
    joining.unwant(b)
    joining.want(a)
    joining.run(PATIENCE)
    assert (joining.phase("a"), a.gate) == ("running", OPEN)


@pytest.fixture
def a_and_large(joining: World) -> tuple[FakeProcess, FakeProcess]:
    """A has half of the device's memory and does not end its turn; the client large, which has more, waits."""
    a = stuck(joining)
    joining.holds("a", HALF)
    large = joining.process("large")
    joining.holds("large", HALF + 1, 0)
    joining.want(large)
    return a, large


def test_client_whose_memory_does_not_fit_waits(joining: World) -> None:
    stuck(joining)
    joining.holds("a", HALF + 1)
    b = joining.process("b")
    joining.holds("b", HALF, 0)
    joining.want(b)
    joining.run(900)
    assert (joining.phase("b"), b.openings) == ("waiting", 0)
    joining.holds("a", HALF)  # of its last turns it is still known to have had more
    assert b.gate == CLOSED


def test_client_that_does_not_fit_is_passed_by_one_that_does(
    joining: World, a_and_large: tuple[FakeProcess, FakeProcess]
) -> None:
    """It comes first as soon as there is room."""
    a, large = a_and_large
    b, c = joining.busy("b", "c")
    joining.run(REPORTED + PATIENCE + 100 * QUANTUM)
    assert b.openings > 30 and c.openings > 30 and large.openings == 0
    joining.holds("a", 0)
    a.drains_in = 0.0
    joining.drain(a)
    joining.run(2 * QUANTUM)
    assert large.openings == 1


@pytest.mark.usefixtures("a_and_large")
def test_no_client_joins_while_another_coordinator_waits(joining: World) -> None:
    """Those clients cannot join a turn and would never find the device free."""
    b = joining.process("b", wants=True)
    joining.feed(ev.LockWanted("gpu", True))
    joining.run(100)
    assert (joining.phase("a"), joining.phase("b"), b.openings) == ("overrun", "waiting", 0)
    joining.feed(ev.LockWanted("gpu", False))
    joining.run(0.5)
    assert (joining.phase("a"), joining.phase("b")) == ("overrun", "running")


@pytest.mark.usefixtures("a_and_large")
def test_an_offline_client_is_not_let_in_before_an_online_one_that_must_wait(joining: World) -> None:
    """Its turn would be over as it began."""
    offline = joining.start("offline", service="offline")
    joining.run(100)
    assert (joining.phase("a"), offline.openings) == ("overrun", 0)


def test_joined_client_that_outgrows_the_device_waits_again(joining: World) -> None:
    stuck(joining)
    joining.holds("a", HALF)
    b = joining.process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    joining.holds("b", HALF + 1, HALF)
    joining.run(1.0)
    assert (joining.phase("a"), joining.phase("b")) == ("overrun", "waiting")


def test_a_turn_that_began_before_the_setting_changed_is_joined_too(world: World) -> None:
    a = stuck(world)
    world.process("b", busy=True)
    world.run_until(lambda: a.gate == CLOSING)
    world.feed(ev.SettingsChanged(baseline(time_quantum=QUANTUM, overrun="join", overrun_patience=0.0)))
    world.run(100)
    assert (world.phase("a"), world.phase("b")) == ("overrun", "running")


def test_a_gang_joins_where_it_must(make_world: MakeWorld) -> None:
    world = make_world("d1", "d2", overrun="join", overrun_patience=PATIENCE)
    stuck(world)
    gang = world.process("gang", "d1", "d2", busy=True)
    world.run_until(lambda: gang.gate == OPEN)
    assert set(world.holders("d1")) == {"a", "gang"} and set(world.holders("d2")) == {"gang"}


def test_packed_clients_are_joined_by_suitable_clients(make_world: MakeWorld) -> None:
    world = make_world(overrun="join", overrun_patience=PATIENCE, sharing="packed")
    a, b = stuck(world), world.process("b", busy=True)
    assert (a.gate, b.gate) == (OPEN, OPEN)
    world.holds("b", HALF)
    c = world.process("c", busy=True)
    world.holds("c", HALF + 1, 0)
    for _ in range(600):
        world.run(0.1)
        assert (b.gate, c.gate) != (OPEN, OPEN)
    assert world.phase("a") == "overrun"
    assert b.openings > 5 and c.openings > 5, "they take turns, with a beside them"


def test_joined_clients_are_adopted_as_colocated(joining: World) -> None:
    stuck(joining)
    b = joining.process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    later = World(joining.settings)
    later.device("gpu")
    for client in "ab":
        later.adopt(client, "gpu", turn=b.turn)
    later.run(1.0)
    assert (later.phase("a"), later.phase("b")) == ("running", "idle"), "one at a time, as set"


def test_overrun_is_interrupted_once_a_turn(make_world: MakeWorld) -> None:
    world = make_world(overrun="interrupt", overrun_patience=PATIENCE)
    a = stuck(world)
    b = world.process("b", busy=True)
    world.run(REPORTED + PATIENCE + 0.2)
    asked = [(at, command.seconds) for at, command in world.timeline if isinstance(command, cmd.Interrupt)]
    assert [value for pair in asked for value in pair] == pytest.approx(
        [REPORTED + PATIENCE, REPORTED + PATIENCE - QUANTUM], abs=0.15
    )
    assert world.scheduler.clients["a"].grant.interrupted  # type: ignore[union-attr]
    world.run(200)
    assert [c.client for c in world.commands if isinstance(c, cmd.Interrupt)] == ["a"], "and no more"
    assert (world.phase("b"), b.openings) == ("waiting", 0)
    a.drains_in = 0.0
    world.drain(a)  # its cell was interrupted, and its work has ended
    assert b.gate == OPEN
    a.drains_in = 1000.0
    world.want(a)
    world.run(100)
    assert [c.client for c in world.commands if isinstance(c, cmd.Interrupt)] == ["a", "a"]


def test_eviction_overrun_is_handled(make_world: MakeWorld) -> None:
    """Its process is stopped, or says that it leaves and never that it has."""
    for overrun in ("join", "interrupt"):
        world = make_world(overrun=overrun, overrun_patience=PATIENCE)
        a = stuck(world)
        b = world.process("b", busy=True)
        world.run_until(lambda a=a: a.gate == "closing")
        for _ in range(2):  # whatever it says
            world.feed(ev.Evicting(a.number))
            world.run(29.75)
        assert (world.phase("a"), b.openings) == ("draining", 0), "most devices are emptied by then"
        assert world.run_until(lambda world=world: world.phase("a") == "overrun") == pytest.approx(0.5, abs=0.15)
        world.run(PATIENCE + 1.0)
        assert (b.gate == OPEN) == (overrun == "join")
        assert not any(isinstance(command, cmd.Interrupt) for command in world.commands)


def test_uncontended_overrun_is_not_interrupted(make_world: MakeWorld) -> None:
    world = make_world(overrun="interrupt", overrun_patience=PATIENCE)
    stuck(world)
    b = world.process("b", wants=True)
    world.run(REPORTED + 1.0)
    world.unwant(b)
    world.run(100)
    assert not any(isinstance(command, cmd.Interrupt) for command in world.commands)
    world.want(b)
    world.run(1.0)
    assert any(isinstance(command, cmd.Interrupt) for command in world.commands)
