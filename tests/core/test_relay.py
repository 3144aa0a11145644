"""The next client takes over by the device's lock itself, whatever the coordinator is doing at that moment."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM
from .world import World, baseline


def named(world: World) -> list[tuple[str, int]]:
    return [(command.client, command.epoch) for command in world.commands if isinstance(command, cmd.NameNext)]


def test_the_next_one_is_named_when_somebody_waits_and_granted_what_it_was_told(world: World) -> None:
    world.process("a", busy=True)
    assert not named(world)
    world.process("b", busy=True)
    world.process("c", busy=True)
    assert [client for client, _ in named(world)] == ["b"]
    world.run(3.5 * QUANTUM)
    granted = [(c.client, c.epoch) for c in world.commands if isinstance(c, cmd.Grant)]
    assert granted[1:] == named(world)[: len(granted) - 1]
    assert world.order("gpu") == ["a", "b", "c", "a"]


def test_a_slow_coordinator_delays_no_turn(world: World) -> None:
    """What it hears late has happened long ago; and both turns are accounted for all the same."""
    world.process("a", busy=True)
    world.process("b", busy=True)
    world.news_late = 0.4
    world.run_until(lambda: world.running() == "b")
    assert world.now == QUANTUM
    assert world.phase("b") == "waiting"
    world.run_until(lambda: world.phase("b") == "running")
    assert world.now <= QUANTUM + 0.4
    world.run_until(lambda: world.running() == "a")
    assert world.order("gpu") == ["a", "b", "a"]


def test_who_dies_hands_on_too(world: World) -> None:
    a = world.process("a", busy=True)
    world.process("b", busy=True)
    world.run(0.1)
    world.kill(a)
    assert (world.now, world.running()) == (0.1, "b")


def test_who_gave_up_waiting_is_not_the_next_one(world: World) -> None:
    world.process("a", busy=True)
    b = world.process("b")
    world.want(b)
    world.process("c", busy=True)
    world.unwant(b)
    assert [client for client, _ in named(world)] == ["b", "c"]
    world.run_until(lambda: world.running() == "c")
    assert world.now == QUANTUM


def test_one_that_took_over_before_it_could_be_told_otherwise_gives_way(world: World) -> None:
    """`a` is killed while its process hands on and its client's other threads are not heard of: nobody is stuck."""
    a = world.process("a", drains_in=0.05)
    world.want(a)
    b = world.process("b", busy=True)
    world.news_late = 0.3
    world.close_by_itself(a)
    world.run(0.1)
    assert world.running() == "b"
    world.process("a", busy=True)  # the client that gave the lock up has a second process from now on
    world.run(5 * QUANTUM)
    assert {"a", "b"} <= set(world.order("gpu")[-3:])
    assert b.openings > 1


def test_a_client_of_two_processes_neither_takes_over_nor_hands_on(world: World) -> None:
    world.process("a", busy=True)
    pair = [world.process("pair", busy=True) for _ in range(2)]
    world.commands.clear()
    world.run(3 * QUANTUM)
    assert world.order("gpu") == ["a", "pair", "a", "pair"]
    assert not named(world)
    world.kill(pair[0])
    world.run(QUANTUM)
    assert named(world)


def test_nor_does_a_client_of_two_devices(make_world: Callable[..., World]) -> None:
    world = make_world("d1", "d2")
    world.process("a", "d1", busy=True)
    world.process("gang", "d1", "d2", busy=True)
    world.run(3 * QUANTUM)
    assert not named(world)
    assert {"a", "gang"} <= set(world.order("d1"))


def test_nor_does_an_older_shim(world: World) -> None:
    world.process("a", busy=True)
    world.process("old", busy=True, relays=False)
    world.run(3 * QUANTUM)
    assert not named(world)
    assert world.order("gpu")[:3] == ["a", "old", "a"]


def test_a_turn_that_is_refused_is_promised_to_nobody(world: World) -> None:
    """Somebody else on this host was faster than the one that was named."""
    for name in "abc":
        world.process(name, busy=True)
    world.slip_in.add("gpu")
    world.run(QUANTUM + 0.5)
    assert all(process.carry == 0 for process in world.processes.values())
    world.unlock_elsewhere("gpu")
    world.run(1.5 * QUANTUM)
    assert world.order("gpu")[1:] == ["b", "c"]


def test_who_waits_at_the_lock_runs_beside_nobody(world: World) -> None:
    """Its relay waits for the exclusive lock until it has it, named or not: a shared one would be lost by that."""
    settings = baseline(sharing="packed")
    world.process("a", busy=True)
    b = world.process("b", busy=True)
    assert named(world)
    world.feed(ev.SettingsChanged(settings))
    world.run_until(lambda: world.running() == "b")
    grant = world.scheduler.clients["b"].grant
    assert grant and not grant.shared
    world.feed(ev.TurnReleased("b"))
    world.run_until(lambda: b.openings > 1)
    grant = world.scheduler.clients["b"].grant
    assert grant and grant.shared
