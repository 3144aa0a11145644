"""Clients that run together and ask for more than the device has: one of them goes, and they take turns from then."""

from __future__ import annotations

import itertools

import pytest

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.memory import can_come
from jupyter_gpushare.core.quota import Quota
from jupyter_gpushare.core.settings import Settings

from .world import CLOSING, OPEN, FakeProcess, World

MIB = 1 << 20  # the device has 1024 of them; each test says how many of these the clients find there
STEP = 16 * MIB


@pytest.fixture
def world() -> World:
    """Under the settings that are shipped."""
    world = World(Settings())
    world.device("d")
    return world


def together(world: World, *sizes: int, quotas: tuple[Quota, ...] = ()) -> list[FakeProcess]:
    """Clients a, b … that run and have so many MiB each; they have joined in this order."""
    processes = []
    for number, (name, size) in enumerate(zip("abcd", sizes, strict=False)):
        world.client(name, quotas[number] if quotas else None)
        processes.append(world.process(name, busy=True, drains_in=0.001))
        holds(world, name, size)
    assert [process.gate for process in processes] == [OPEN] * len(sizes)
    return processes


def holds(world: World, client: str, mib: int, short: int = 0, pinned: int = 0, resident: int | None = None) -> None:
    """As a process says it: what it is short of counts as allocated and resident already."""
    there = mib if resident is None else resident
    world.feed(ev.MemoryHeld(client, mib * MIB, there * MIB, pinned * MIB, short * MIB))


def leaves(world: World, client: str) -> None:
    """Return what the scheduler has asked the client to evict."""
    known = world.scheduler.clients[client]
    target = world.scheduler.residence.said(client)
    if target is not None:
        world.feed(ev.MemoryHeld(client, known.held.allocated, target))


def open_gates(world: World) -> list[str]:
    return [process.client for process in world.processes.values() if process.gate == OPEN]


def overlaps(world: World, since: float) -> bool:
    """Return whether several clients had the device at the same time after `since`."""
    turns = [(began, until) for _, began, until in world.turns["d"]]
    turns = sorted((began, until) for began, until in turns if until > since)
    return any(later < until - 1e-9 for (_, until), (later, _) in itertools.pairwise(turns))


def test_the_last_that_joined_goes_and_its_memory_makes_room(world: World) -> None:
    """The driver has 80 MiB of the device, which no coordinator can know."""
    first, last = together(world, 480, 464)
    holds(world, "a", 496, short=16)
    assert (first.gate, last.gate) == (OPEN, CLOSING)
    world.run(0.01)
    assert open_gates(world) == ["a"]
    assert world.phase("b") == "waiting"
    assert world.scheduler.residence.said("b") == 448 * MIB


def test_one_that_asks_itself_goes_as_well(world: World) -> None:
    first, last = together(world, 480, 464)
    holds(world, "b", 480, short=16)
    assert (first.gate, last.gate) == (OPEN, CLOSING)


def test_of_two_that_ask_at_once_one_goes(world: World) -> None:
    together(world, 480, 464)
    holds(world, "b", 480, short=16)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    assert open_gates(world) == ["a"]
    assert world.phase("b") == "waiting"


def test_they_take_turns_and_are_not_together_again(world: World) -> None:
    together(world, 480, 464)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    leaves(world, "b")
    holds(world, "a", 496)
    parted = world.now
    world.run(60.0)
    turns = [client for client, began, _ in world.turns["d"] if began > parted]
    assert turns.count("a") > 2 and turns.count("b") > 2
    assert not overlaps(world, parted)


def test_after_a_while_it_is_tried_again_in_case_the_device_has_more_room(world: World) -> None:
    together(world, 480, 464)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    holds(world, "a", 496)
    world.run_until(lambda: len(open_gates(world)) == 2, within=700.0)
    assert world.now > 500.0


def test_what_has_shrunk_fits_again_at_once(world: World) -> None:
    together(world, 480, 464)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    holds(world, "a", 100)
    world.run_until(lambda: len(open_gates(world)) == 2, within=60.0)


def test_an_offline_one_goes_first(world: World) -> None:
    offline, online = together(world, 480, 464, quotas=(Quota(service="offline"), Quota()))
    holds(world, "b", 480, short=16)
    assert (offline.gate, online.gate) == (CLOSING, OPEN)


def test_no_more_go_than_make_room() -> None:
    world = World(Settings(sharing="packed"))
    world.device("d")
    first, second, last = together(world, 300, 300, 300)
    holds(world, "a", 316, short=16)
    assert (first.gate, second.gate, last.gate) == (OPEN, OPEN, CLOSING)
    world.run(0.01)
    leaves(world, "c")
    holds(world, "a", 316)
    world.run(1.0)
    assert "a" in open_gates(world)
    assert len(open_gates(world)) == 2


def test_no_one_goes_while_idle_clients_can_make_room(world: World) -> None:
    idle = world.process("idle")
    world.want(idle)
    holds(world, "idle", 100)
    world.feed(ev.TurnReleased("idle"))
    world.run(0.1)
    first, last = together(world, 400, 400)
    holds(world, "a", 416, short=16)
    assert (first.gate, last.gate) == (OPEN, OPEN)
    assert world.scheduler.residence.said("idle") == 84 * MIB
    leaves(world, "idle")
    holds(world, "a", 416)
    holds(world, "a", 516, short=100)  # more than the idle one has left
    assert (first.gate, last.gate) == (OPEN, CLOSING)


def test_no_one_goes_where_nothing_can_leave(world: World) -> None:
    first, last = together(world, 480, 464)
    holds(world, "b", 464, pinned=464)
    holds(world, "a", 496, short=16)
    assert (first.gate, last.gate) == (OPEN, OPEN)


def test_what_idle_clients_cannot_give_up_counts(world: World) -> None:
    """Two that fit on the device, but not beside what is pinned there."""
    idle = world.process("idle")
    world.want(idle)
    holds(world, "idle", 600, pinned=600)
    world.feed(ev.TurnReleased("idle"))
    world.run(0.1)
    world.process("a", busy=True)
    second = world.process("b")
    holds(world, "a", 300)
    holds(world, "b", 300, resident=0)
    world.want(second)
    assert open_gates(world) == ["a"]


class TestWhatCanCome:
    def client(self, world: World, name: str) -> bool:
        return can_come(world.scheduler.devices["d"], world.scheduler.clients[name])

    def test_while_others_have_anything_that_can_leave(self, world: World) -> None:
        together(world, 480, 464)
        assert self.client(world, "a")
        holds(world, "b", 464, pinned=463)
        assert self.client(world, "a")
        holds(world, "b", 464, pinned=464)
        assert not self.client(world, "a")

    def test_also_while_theirs_is_on_its_way_back(self, world: World) -> None:
        together(world, 480, 464)
        holds(world, "b", 464, resident=0)
        assert self.client(world, "a")

    def test_not_more_than_the_device_has_beside_what_stays(self, world: World) -> None:
        together(world, 480, 464)
        holds(world, "b", 464, pinned=200)
        holds(world, "a", 824, short=344)
        assert self.client(world, "a")
        holds(world, "a", 825, short=345)
        assert not self.client(world, "a")

    def test_its_own_memory_makes_no_room(self, world: World) -> None:
        together(world, 480)
        assert not self.client(world, "a")
