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
    world.holds(client, mib * MIB, None if resident is None else resident * MIB, pinned * MIB, short * MIB)


def leaves(world: World, client: str) -> None:
    """Return what the scheduler has asked the client to evict."""
    known = world.scheduler.clients[client]
    target = world.scheduler.residence.said(client)
    if target is not None:
        world.holds(client, known.held.allocated, target)


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


@pytest.fixture
def parted(world: World) -> World:
    """A runs and has found no room for more; b, whose memory is about to leave, waits."""
    together(world, 480, 464)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    return world


def test_of_two_that_ask_at_once_one_goes(world: World) -> None:
    together(world, 480, 464)
    holds(world, "b", 480, short=16)
    holds(world, "a", 496, short=16)
    world.run(0.01)
    assert open_gates(world) == ["a"]
    assert world.phase("b") == "waiting"


def test_they_take_turns_and_are_not_together_again(parted: World) -> None:
    leaves(parted, "b")
    holds(parted, "a", 496)
    since = parted.now
    parted.run(60.0)
    turns = [client for client, began, _ in parted.turns["d"] if began > since]
    assert turns.count("a") > 2 and turns.count("b") > 2
    assert not overlaps(parted, since)


@pytest.mark.parametrize(("size", "least", "most"), [(496, 500.0, 700.0), (100, 0.0, 60.0)], ids=["the same", "less"])
def test_it_is_tried_again_after_a_while_or_as_soon_as_they_have_shrunk(
    parted: World, size: int, least: float, most: float
) -> None:
    """The device may have more room by then."""
    holds(parted, "a", size)
    parted.run_until(lambda: len(open_gates(parted)) == 2, within=most)
    assert parted.now > least


@pytest.mark.parametrize(
    ("quotas", "gates"),
    [((), (OPEN, CLOSING)), ((Quota(service="offline"), Quota()), (CLOSING, OPEN))],
    ids=["the-last-also-if-it-asks-itself", "an-offline-one-first"],
)
def test_which_one_goes(world: World, quotas: tuple[Quota, ...], gates: tuple[str, str]) -> None:
    first, last = together(world, 480, 464, quotas=quotas)
    holds(world, "b", 480, short=16)
    assert (first.gate, last.gate) == gates


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
    world.process("idle", wants=True)
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
    world.process("idle", wants=True)
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
