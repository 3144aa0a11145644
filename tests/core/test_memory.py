"""Who keeps how much on the device: what is needed latest leaves, and only as much as the next client needs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.memory import stays
from jupyter_gpushare.core.model import Held
from jupyter_gpushare.core.quota import Quota

from .world import World, baseline

GIB = 1 << 30
NAMES = ["a", "b", "c", "d", "e"]


def full(size: int) -> Held:
    return Held(size, size)


def away(size: int) -> Held:
    return Held(size, 0)


class TestStays:
    def test_nothing_leaves_where_all_fits(self) -> None:
        assert stays(10, {"a": full(5), "b": full(5)}, ["a"], ["b"], []) == {}

    def test_the_next_one_needs_room_when_the_turn_ends(self) -> None:
        assert stays(10, {"a": full(7), "b": away(5)}, ["a"], ["b"], []) == {"a": 5}

    def test_idle_ones_go_first_the_longest_idle_one_before_the_others(self) -> None:
        held = {"a": full(4), "b": away(5), "old": full(3), "new": full(3)}
        assert stays(10, held, ["a"], ["b"], ["old", "new"]) == {"old": 0, "new": 1}

    def test_the_one_whose_turn_ends_goes_before_those_that_come(self) -> None:
        held = {"a": full(5), "b": away(5), "c": full(5)}
        assert stays(10, held, ["a"], ["b", "c"], []) == {"a": 0}

    def test_the_last_of_the_queue_makes_room_for_who_runs(self) -> None:
        held = {"a": away(6), "b": full(4), "c": full(5)}
        assert stays(10, held, ["a"], ["b", "c"], []) == {"c": 0}

    def test_what_cannot_leave_stays(self) -> None:
        assert stays(10, {"a": Held(8, 8, 6), "b": away(5)}, ["a"], ["b"], []) == {"a": 6}

    def test_a_client_larger_than_the_device_gets_all_that_others_can_give(self) -> None:
        assert stays(10, {"a": full(4), "b": away(30)}, ["a"], ["b"], []) == {"a": 0}

    def test_what_was_refused_is_made_room_for_whatever_the_figures_say(self) -> None:
        assert stays(10, {"a": full(2), "i": full(5)}, ["a"], [], ["i"], short=3) == {"i": 2}


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, dict[str, Held], str | None, list[str], list[str]]:
    memory = draw(st.integers(1, 50))
    held = {}
    room = memory
    for name in NAMES[: draw(st.integers(1, 5))]:
        resident = draw(st.integers(0, room))
        room -= resident
        held[name] = Held(resident + draw(st.integers(0, 40)), resident, draw(st.integers(0, resident)))
    order = draw(st.permutations(list(held)))
    running = order.pop() if draw(st.booleans()) else None
    cut = draw(st.integers(0, len(order)))
    return memory, held, running, order[:cut], order[cut:]


@given(situations())
def test_always_enough_and_never_too_much(
    situation: tuple[int, dict[str, Held], str | None, list[str], list[str]],
) -> None:
    memory, held, running, queue, idle = situation
    kept = stays(memory, held, [running] if running is not None else [], queue, idle)
    for name, left in kept.items():
        assert held[name].pinned <= left < (held[name].allocated if name == running else held[name].resident)
    now = {name: kept.get(name, one.resident) for name, one in held.items() if name != running}
    if running is not None:  # while it runs, there is room for it, as far as others can leave
        others = sum(now.values())
        assert others + held[running].allocated <= memory or all(now[n] == held[n].pinned for n in [*idle, *queue[1:]])
        assert not kept or queue or others + held[running].allocated >= memory
    if queue:
        now |= {running: kept.get(running, held[running].allocated)} if running is not None else {}
        coming = queue[0]
        total = sum(left for name, left in now.items() if name != coming) + held[coming].allocated
        movable = [n for n in now if n != coming and now[n] > held[n].pinned]
        assert total <= memory or not movable
        # What is needed later has left before anything that is needed earlier does.
        order = [*idle, *([running] if running is not None else []), *reversed(queue[1:])]
        leaving = [name for name in order if name in kept and name != running]
        for name in leaving:
            before = [other for other in order[: order.index(name)] if other != running]
            assert all(now[other] == held[other].pinned for other in before)
    elif running is None:
        assert kept == {}


def told(world: World) -> dict[str, int | None]:
    return {command.client: command.bytes for command in world.commands if isinstance(command, cmd.SetResident)}


def holds(world: World, client: str, allocated: int, resident: int | None = None, short: int = 0) -> None:
    world.feed(ev.MemoryHeld(client, allocated, allocated if resident is None else resident, 0, short))


def test_said_before_the_gate_closes_and_taken_back_when_all_fits(world: World) -> None:
    world.device("d")
    world.process("a", busy=True)
    second = world.process("b")
    holds(world, "a", 3 * GIB // 4)
    holds(world, "b", GIB // 2, 0)
    assert told(world) == {}
    world.want(second)
    assert told(world) == {"a": GIB // 2}
    world.run(world.settings.time_quantum + 1)
    mine = [command for command in world.commands if getattr(command, "client", "") == "a"]
    withdrawn = next(n for n, command in enumerate(mine) if isinstance(command, cmd.Permit) and not command.may)
    assert [type(command) for command in mine].index(cmd.SetResident) < withdrawn
    holds(world, "b", 0)
    assert set(told(world).values()) == {None}


def test_an_idle_client_makes_room_for_what_was_refused(world: World) -> None:
    world.device("d")
    idle, runs = world.process("idle", busy=False), world.process("runs")
    world.want(idle)
    holds(world, "idle", GIB // 2)
    world.feed(ev.TurnReleased("idle"))
    world.run(0.1)
    world.want(runs)
    holds(world, "runs", GIB // 2)
    assert told(world) == {}
    holds(world, "runs", GIB // 2, short=GIB // 8)
    assert told(world) == {"idle": 3 * GIB // 8}


def test_the_quota_for_while_others_wait(world: World) -> None:
    world.device("d")
    world.client("a", Quota(resident=GIB // 4))
    world.process("a", busy=True)
    holds(world, "a", GIB // 2)
    assert told(world) == {}
    world.want(world.process("b"))
    assert told(world) == {"a": GIB // 4}


def test_the_quantum_counts_from_when_memory_is_back() -> None:
    world = World(baseline(time_quantum=1.0))
    world.device("d")
    first = world.process("a", busy=True)
    world.process("b", busy=True)
    world.run(0.4)
    world.feed(ev.Restored(first.number))
    world.run_until(lambda: world.running() == "b")
    assert world.now == pytest.approx(1.4)


def test_a_short_quantum_does_not_end_before_memory_is_back() -> None:
    """Or a client of much memory would do nothing but move it. Nobody knows yet how long that takes."""
    world = World(baseline(time_quantum=0.1))
    world.device("d")
    other = world.process("b", busy=True)
    first = world.process("a", busy=True)
    holds(world, "a", GIB, 0)
    world.run_until(lambda: world.running() == "a")
    world.run(0.105)
    assert world.running() == "a"
    world.feed(ev.Restored(first.number))
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(0.1)
    world.run_until(lambda: world.running() == "a")
    assert other.openings and world.scheduler.clients["a"].switching.restore > 0


def test_who_brings_nothing_back_gets_no_time_for_it() -> None:
    """Unified memory that was never touched is not on the device either."""
    world = World(baseline(time_quantum=0.1))
    world.device("d")
    world.busy("b", "a")
    holds(world, "a", GIB, 0)
    world.run(2.0)
    turns = [until - since for client, since, until in world.turns["d"] if client == "a"]
    assert turns[1:] == [pytest.approx(0.1)] * len(turns[1:])
    assert len(turns) > 4


def test_nobody_gets_more_than_two_quanta_by_saying_so() -> None:
    world = World(baseline(time_quantum=1.0))
    world.device("d")
    first = world.process("a", busy=True)
    world.run(5.0)
    world.feed(ev.Restored(first.number))
    world.process("b", busy=True)
    world.run_until(lambda: world.running() == "b")
    assert world.now == pytest.approx(5.0)
    assert world.scheduler.clients["a"].gpu_seconds == pytest.approx(5.0)


@st.composite
def together(draw: st.DrawFn) -> tuple[int, dict[str, Held], list[str], list[str], list[str]]:
    memory, held, running, first, second = draw(situations())
    runs = [running] if running is not None else []
    room = memory - sum(held[name].allocated for name in runs)
    for name in list(first):  # whose memory fits beside theirs
        if runs and held[name].allocated <= room and draw(st.booleans()):
            runs.append(name)
            first.remove(name)
            room -= held[name].allocated
    return memory, held, runs, first, second


@given(together())
def test_with_several_running_clients_what_is_needed_latest_leaves_first(
    situation: tuple[int, dict[str, Held], list[str], list[str], list[str]],
) -> None:
    memory, held, running, queue, idle = situation
    kept = stays(memory, held, running, queue, idle)
    left = {name: kept.get(name, one.resident) for name, one in held.items()}
    others = [*idle, *reversed(queue)]
    needed = sum(held[name].allocated for name in running)
    if running:
        stay = [name for name in others if name not in queue[:1]]
        assert needed + sum(left[name] for name in others) <= memory or all(
            left[name] == held[name].pinned for name in stay
        )
        # Nobody who runs gives anything up as long as idle clients have something that could leave.
        for name in running:
            if kept.get(name, held[name].allocated) < held[name].allocated:
                assert all(left[other] == held[other].pinned for other in idle)
    for earlier, later in itertools.pairwise(reversed(idle)):
        if left[earlier] < held[earlier].resident:
            assert left[later] == held[later].pinned, "the longest idle one leaves first"


def test_the_memory_of_a_suspended_client_leaves_also_if_nobody_else_is_there(world: World) -> None:
    world.process("a", busy=True)
    holds(world, "a", GIB // 2)
    world.feed(ev.Suspended("a"))
    assert told(world) == {"a": 0}
    world.run(1)
    assert world.running() is None
    world.feed(ev.Resumed("a"))
    assert told(world) == {"a": None}
    assert world.run_until(lambda: world.running() == "a") == 0


def test_memory_comes_back_ahead_only_where_there_is_room(world: World) -> None:
    world.device("d")
    world.process("a", busy=True)
    second = world.process("b")
    holds(world, "a", GIB)
    holds(world, "b", GIB // 4, 0)
    world.want(second)
    assert not [command for command in world.commands if isinstance(command, cmd.RestoreAhead)]
    holds(world, "a", GIB // 2)
    assert cmd.RestoreAhead("b", True) in world.commands
    holds(world, "a", GIB, GIB // 2)  # the rest is on its way back to the one that runs
    assert cmd.RestoreAhead("b", False) in world.commands
