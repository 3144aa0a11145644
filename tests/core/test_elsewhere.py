"""Coordinators of two users share a device by its lock alone: one turn of one's clients, one of the other's."""

from __future__ import annotations

from itertools import combinations

import pytest

from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM, MakeWorld
from .world import OUTSIDER, World

LOOK = 0.1  # how often a coordinator looks whether somebody else waits
GAP = 0.1  # for how long it leaves the device to them


def wanted(world: World, yes: bool = True, uuid: str = "gpu") -> None:
    world.feed(ev.LockWanted(uuid, yes))


class Pair:
    """Two hosts' worth of clients on one device: neither scheduler knows of the other's."""

    def __init__(self, *worlds: World) -> None:
        self.worlds = worlds
        for world in worlds:
            self._look(world)

    def _look(self, world: World) -> None:
        device = world.scheduler.devices["gpu"]
        wants = bool(device.grants or device.left_until) and any(map(self._waits, self._others(world)))
        if wants != (device.wanted_since is not None):
            wanted(world, wants)
        world.at(0.01 if device.left_until else LOOK, lambda: self._look(world))

    def _others(self, world: World) -> list[World]:
        return [other for other in self.worlds if other is not world]

    @staticmethod
    def _waits(world: World) -> bool:
        device = world.scheduler.devices["gpu"]
        return device.taken_since is not None and bool(device.line)

    def process(self, number: int, name: str) -> None:
        self.worlds[number].process(name, busy=True)
        self._tell_locks(self.worlds[number])

    def run(self, seconds: float) -> None:
        end = self.worlds[0].now + seconds
        while True:
            moment, first = min(((self._next(world), world) for world in self.worlds), key=lambda pair: pair[0])
            if moment > end:
                break
            first.run_to(max(moment, first.now))
            for world in self.worlds:
                world.now = first.now
            for world in sorted(self.worlds, key=lambda world: world is not first):
                self._tell_locks(world)
        for world in self.worlds:
            world.now = end

    @staticmethod
    def _next(world: World) -> float:
        due = world.scheduler.next_deadline()
        return min(world._agenda[0][0], due if due is not None else world._agenda[0][0])

    def _tell_locks(self, world: World) -> None:
        has = bool(set(world.holders("gpu")) - {OUTSIDER})
        for other in self._others(world):
            if has and OUTSIDER not in other.holders("gpu"):
                other.lock_elsewhere("gpu")
            elif not has and OUTSIDER in other.holders("gpu"):
                other.unlock_elsewhere("gpu")

    def turns(self) -> list[tuple[float, float, int]]:
        """From, until and by whom of all that are over."""
        return sorted((a, b, number) for number, world in enumerate(self.worlds) for _, a, b in world.turns["gpu"])


def together(turns: list[tuple[float, float, int]]) -> float:
    """Seconds in which there was one of them at least."""
    seconds = until = 0.0
    for begin, end, _ in turns:
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds


@pytest.mark.parametrize("sharing", ["exclusive", "auto", "packed"])
@pytest.mark.parametrize("clients", [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("policy", ["fcfs", "fair", "interactive"])
def test_coordinators_alternate_turns(
    make_world: MakeWorld, sharing: str, clients: tuple[int, int], policy: str
) -> None:
    settings = {"sharing": sharing, "policy": policy}
    pair = Pair(*(make_world("gpu", **settings) for _ in clients))  # type: ignore[arg-type]
    for number, count in enumerate(clients):
        for name in range(count):
            pair.process(number, f"{number}-{name}")
    pair.run(30)
    turns = pair.turns()
    for (_, end, one), (begin, _, other) in combinations(turns, 2):
        assert end <= begin + 1e-6 or one == other, "two users' clients at once"
    for begin, end, _ in turns:
        assert end - begin <= QUANTUM + 2 * LOOK
    held = [together([turn for turn in turns if turn[2] == number]) for number in (0, 1)]
    # It goes turn by turn. `fair` gives many clients short turns, and so does `interactive` while their work is new.
    assert min(held) > {"fcfs": 10, "interactive": 6, "fair": 2}[policy], held
    assert sum(held) > 0.8 * 30
    for world in pair.worlds:
        assert all(seconds > 0.5 for name, seconds in world.held("gpu").items() if name != OUTSIDER)


def test_waiter_of_another_coordinator_ends_an_uncontended_turn(world: World) -> None:
    world.process("a", busy=True)
    world.run(0.3)
    wanted(world)
    permit = world.permits["a"]
    assert (permit.contended, permit.relieved, permit.deadline) == (True, True, QUANTUM)
    assert world.run_until(lambda: world.running() is None) == pytest.approx(QUANTUM - 0.3)


def test_other_coordinator_that_never_enters_costs_little_time(world: World) -> None:
    world.process("a", busy=True)
    wanted(world)
    world.run(22)
    assert world.held("gpu")["a"] == pytest.approx(22 * QUANTUM / (QUANTUM + GAP), rel=0.05)


def test_turn_has_no_end_without_waiters_elsewhere(world: World) -> None:
    world.process("a", busy=True)
    wanted(world)
    world.run(0.5)
    wanted(world, False)
    world.run(20)
    assert world.order("gpu") == ["a"]


def test_device_is_taken_at_once_without_other_waiters(world: World) -> None:
    world.process("a", busy=True)
    wanted(world)
    world.run_until(lambda: world.running() is None)
    wanted(world, False)
    assert world.running() == "a"


def test_clients_here_keep_their_order_and_none_follows_by_itself(world: World) -> None:
    world.busy(*"abc")
    wanted(world)
    for _ in range(3):
        world.slip_in.add("gpu")
        world.run_until(lambda: OUTSIDER in world.holders("gpu"))
        wanted(world, False)
        world.run(0.5)
        world.unlock_elsewhere("gpu")
        world.run_until(lambda: world.running() is not None)
        wanted(world)
        assert [client for client, permit in world.permits.items() if permit.may] == [world.running()]
    assert [name for name in world.order("gpu") if name != OUTSIDER] == ["a", "b", "c", "a"]


def test_offline_clients_here_make_no_turn_longer(world: World) -> None:
    world.process("a", busy=True)
    world.start("b", service="offline")
    wanted(world)
    assert world.run_until(lambda: world.running() is None) == pytest.approx(QUANTUM)


def test_a_hold_is_kept_for_as_long_as_any(make_world: MakeWorld) -> None:
    world = make_world(max_hold=5.0)
    world.process("a", busy=True)
    world.run(0.5)
    world.feed(ev.TurnHeld("a", 5.0))
    wanted(world)
    assert world.run_until(lambda: world.running() is None) == pytest.approx(5.0)


def test_a_gang_leaves_the_device_that_is_wanted(make_world: MakeWorld) -> None:
    world = make_world("d1", "d2")
    world.process("gang", "d1", "d2", busy=True)
    wanted(world, uuid="d2")
    world.slip_in.add("d2")
    world.run(QUANTUM + 0.5)
    assert OUTSIDER in world.holders("d2") and not world.holders("d1")
    wanted(world, False, "d2")
    world.unlock_elsewhere("d2")
    world.run_until(lambda: world.running("d1") == "gang")


def test_a_wait_for_the_lock_counts_neither_as_turn_nor_as_gpu_time_but_as_waiting(world: World) -> None:
    world.lock_elsewhere("gpu")
    world.process("a", busy=True)
    world.run(2.0)
    world.unlock_elsewhere("gpu")
    waited = 2.0 + world.run_until(lambda: world.running() == "a")
    client = world.scheduler.clients["a"]
    assert (client.quanta, client.gpu_seconds_at(world.now)) == (1, 0)
    assert client.wait_seconds_at(world.now) == pytest.approx(waited)


def test_device_without_waiters_is_not_probed(world: World) -> None:
    world.lock_elsewhere("gpu")
    a = world.process("a", busy=True)
    world.run(0.1)
    world.unwant(a)
    assert world.scheduler.next_deadline() is None


def test_a_device_that_is_held_elsewhere_beside_a_busy_one_makes_no_edge_spin(make_world: MakeWorld) -> None:
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
