"""Closing: draining, reports that are stale, and drains that wait for a thread at the gate."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM
from .world import FakeProcess, World

STUCK, STEP = 0.1, 0.02  # seconds: STUCK_NS and STEP_NS of agent_step.c


def test_next_turn_starts_after_all_processes_have_drained(world: World) -> None:
    world.process("a", busy=True)
    world.process("a", drains_in=0.09, busy=True)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM + 0.09)


def test_a_slow_drain_without_waiting_threads_is_waited_for_and_reported(world: World) -> None:
    a = world.process("a", drains_in=30, wants=True)
    world.process("b", busy=True)
    world.run(QUANTUM + 9)
    assert (world.phase("a"), a.openings) == ("draining", 1)
    world.run(2)
    assert world.phase("a") == "overrun"
    assert [c.client for c in world.commands if isinstance(c, cmd.Overrun)] == ["a"]
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(19)
    assert world.phase("a") == "idle"


def test_uncontended_slow_drain_is_no_overrun(world: World) -> None:
    """A cell has ended, its work has not."""
    a = world.process("a", drains_in=30)
    world.start_cell("a", "1")
    world.want(a)
    world.end_cell("a", "1")
    world.run(20)
    assert world.phase("a") == "draining"
    world.process("b", busy=True)
    world.run(0.2)
    assert world.phase("a") == "overrun", "now somebody does"


def pair(world: World, collectives: int) -> tuple[FakeProcess, FakeProcess]:
    """A client of two processes on one device; the first one's work waits on the device for the second's."""
    second = world.process("a")
    first = world.process("a")
    first.peer, first.collectives = second, collectives
    return first, second


def hopeless_pair(world: World) -> tuple[FakeProcess, FakeProcess]:
    """A client of two processes, each of whose work waits on the device for what the other submits next."""
    first, second = pair(world, 10**6)
    second.peer, second.collectives = first, 10**6
    first.busy = second.busy = True
    return first, second


def test_half_a_collective_is_completed_by_a_step(world: World) -> None:
    first, second = pair(world, 1)
    world.want(first, second)
    first.needs_opening = second.openings + 1
    world.process("b", busy=True)
    world.run_until(lambda: world.phase("a") == "draining")
    world.want(second)
    waited = world.run_until(lambda: world.running() == "b")
    assert waited == pytest.approx(STUCK, abs=0.01), "the step ends when it has helped"
    assert first.openings == 1, "it did not stand at the gate"
    assert not [c for c in world.commands if isinstance(c, cmd.Overrun)]


def test_a_client_that_never_drains_is_an_overrun_and_never_a_deadlock(world: World) -> None:
    """Each step submits another collective whose other half is left outside: it goes on, ever more slowly."""
    first, second = hopeless_pair(world)
    world.want(first, second)
    world.process("b", busy=True)
    world.run(QUANTUM + 20)
    assert world.phase("a") == "overrun"
    assert len([c for c in world.commands if isinstance(c, cmd.Overrun)]) == 1
    passed = second.openings
    world.run(20)
    assert second.openings > passed, "it must go on"
    first.collectives = second.collectives = 0
    world.run_until(lambda: world.running() == "b")


def test_ranks_that_wait_for_each_other_at_every_step_are_parted_soon(world: World) -> None:
    """Each is let through alone, and its next step waits for the other's: no patience between such steps."""
    first, second = pair(world, 4)
    second.peer, second.collectives = first, 4
    first.busy = second.busy = True
    world.want(first, second)
    world.process("b", busy=True)
    waited = world.run_until(lambda: world.running() == "b")
    assert first.collectives == second.collectives == 0
    assert waited < QUANTUM + STUCK + 8 * 2 * STEP
    assert not [c for c in world.commands if isinstance(c, cmd.Overrun)]


def test_processes_that_close_by_themselves_at_their_deadline(world: World) -> None:
    """The coordinator need not be on the way of a handoff; only reports show it."""
    for drains_in in (0.001, 0.002):
        world.process("a", drains_in=drains_in, busy=True)
    b = world.process("b", busy=True)
    assert world.permits["a"].relieved and world.permits["b"].may
    world.deaf = True
    assert world.run_until(lambda: b.gate == "open") == pytest.approx(QUANTUM + 0.002, abs=0.001)
    world.hear()
    assert world.queue("gpu") == ["a"]


def test_one_that_closes_by_itself_ends_the_turn_of_the_others(world: World) -> None:
    first, second = world.process("a"), world.process("a", drains_in=0.01)
    world.want(first, second)
    world.feed(ev.Closed(first.number, first.turn, world.now))
    assert (world.phase("a"), second.gate) == ("draining", "closing")
    world.run_until(lambda: world.phase("a") == "idle")


def test_reports_of_a_turn_that_is_over_are_ignored(world: World) -> None:
    a, _ = world.busy("a", "b")
    old = a.turn
    for name in "ba":
        world.run_until(lambda name=name: world.running() == name)
        assert world.feed(ev.Ended(a.number, old)) == world.feed(ev.Closed(a.number, old, world.now)) == []
    assert world.running() == "a"


def test_a_drained_process_goes_on_with_a_turn_that_goes_on(world: World) -> None:
    """The other client gives up while a sibling drains: a thread that comes to the gate needs no new turn."""
    first, second = world.process("a", drains_in=0.3), world.process("a")
    world.want(first, second)
    b = world.process("b", busy=True)
    world.run_until(lambda: second.gate == "leaving")
    world.unwant(b)
    world.want(second)
    world.run_until(lambda: second.gate == "open", within=0.1)
    assert (first.gate, first.turn) == ("open", second.turn)


def test_idle_of_a_process_that_is_in_no_turn_is_ignored(world: World) -> None:
    a, _ = world.busy("a", "b")
    world.run_until(lambda: world.running() == "b")
    assert world.feed(ev.WentIdle(a.number)) == []
    world.run_until(lambda: world.running() == "a")
    assert world.running() == "a"


def test_wants_that_crossed_the_opening_is_ignored(world: World) -> None:
    a = world.process("a", busy=True)
    assert world.feed(ev.Wanted(a.number)) == []
    world.process("b", busy=True)
    world.run(QUANTUM)
    assert world.queue("gpu") == ["a"], "only its own, sent after the closing"


def test_gate_wait_during_a_drain_queues_last(world: World) -> None:
    a = world.process("a", drains_in=0.05, wants=True)
    world.process("b", busy=True)
    world.run(QUANTUM)
    world.want(a)
    world.process("c", busy=True)
    world.run_until(lambda: world.running() == "b")
    assert world.queue("gpu") == ["c", "a"]


def test_a_thread_that_comes_to_the_gate_while_another_process_steps(world: World) -> None:
    """It is not forgotten: if the step does not help, its own process steps."""
    first, second = pair(world, 0)
    third = world.process("a")
    world.want(first, second, third)
    first.peer, first.needs_opening = third, third.openings + 1
    world.process("b", busy=True)
    world.run_until(lambda: third.gate == "closed")
    world.want(second)
    world.run_until(lambda: second.gate == "step")
    world.want(third)
    world.run_until(lambda: third.gate == "step")
    world.run_until(lambda: world.running() == "b")


def test_a_process_that_joins_during_a_closing_waits(world: World) -> None:
    world.process("a", drains_in=0.05, wants=True)
    world.process("b", busy=True)
    world.run(QUANTUM)
    late = world.process("a", busy=True)
    assert late.gate == "closed"
    world.run_until(lambda: world.running() == "b")
    assert world.queue("gpu") == ["a"]


def test_closing_at_time_zero_is_as_late_as_any_other(world: World) -> None:
    world.process("a", drains_in=30, wants=True)
    world.process("b", busy=True)
    world.feed(ev.TurnReleased("a"))
    world.run(11)
    assert world.phase("a") == "overrun"
