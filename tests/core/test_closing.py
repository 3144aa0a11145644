"""Closing: draining, what is stale, closings that are retried because the device waits for a thread at the gate."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import IllegalEvent

from .conftest import QUANTUM
from .world import FakeProcess, World


def test_nobody_else_runs_before_all_processes_have_drained(world: World) -> None:
    world.process("a", busy=True)
    world.process("a", drains_in=0.09)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM + 0.09)


def test_a_slow_drain_without_waiting_threads_is_waited_for_and_reported(world: World) -> None:
    a = world.process("a", drains_in=30)
    world.want(a)
    world.process("b", busy=True)
    world.run(QUANTUM + 9)
    assert (world.phase("a"), a.openings) == ("draining", 1)
    world.run(2)
    assert world.phase("a") == "overrun"
    assert [c.client for c in world.commands if isinstance(c, cmd.Overrun)] == ["a"]
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(19)
    assert world.phase("a") == "idle"


def test_a_slow_drain_that_nobody_waits_for_is_no_overrun(world: World) -> None:
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


def test_half_a_collective_is_completed_in_a_slice(world: World) -> None:
    first, second = pair(world, 1)
    world.want(first)
    world.process("b", busy=True)
    world.run_until(lambda: world.phase("a") == "draining")
    world.want(second)
    waited = world.run_until(lambda: world.running() == "b")
    assert waited == pytest.approx(world.settings.drain_retry, abs=0.01), "the slice ends when it has helped"
    assert first.openings == 1, "it did not stand at the gate"
    assert not [c for c in world.commands if isinstance(c, cmd.Overrun)]


def test_a_client_that_never_drains_is_an_overrun_and_never_a_deadlock(world: World) -> None:
    """Each slice submits another collective whose other half is left outside: it goes on, ever more slowly."""
    first, second = hopeless_pair(world)
    world.want(first)
    world.process("b", busy=True)
    world.run(QUANTUM + 20)
    assert world.phase("a") == "overrun"
    assert len([c for c in world.commands if isinstance(c, cmd.Overrun)]) == 1
    passed = second.openings
    world.run(100)
    assert second.openings > passed, "it must go on"
    first.collectives = second.collectives = 0
    world.run_until(lambda: world.running() == "b")


def test_ranks_that_wait_for_each_other_at_every_step_are_parted_soon(world: World) -> None:
    """Each is let through alone, and its next step waits for the other's: no patience between such slices."""
    first, second = pair(world, 10**6)
    second.peer = first
    first.busy = second.busy = True
    world.want(first)
    world.process("b", busy=True)
    second.collectives = 4
    waited = world.run_until(lambda: world.running() == "b")
    assert second.collectives == 0
    settings = world.settings
    assert waited == pytest.approx(QUANTUM + settings.drain_retry + 8 * settings.drain_slice, abs=0.03)
    assert not [c for c in world.commands if isinstance(c, cmd.Overrun)]


def test_three_ranks_that_wait_for_each_other_are_parted_soon(world: World) -> None:
    """A slice may help one of two; that is reason enough to go on without patience."""
    ranks = [world.process("a") for _ in range(3)]
    for number, rank in enumerate(ranks):
        rank.peer, rank.busy = ranks[(number + 1) % 3], True
        rank.collectives = 3
    world.want(ranks[0])
    world.process("b", busy=True)
    waited = world.run_until(lambda: world.running() == "b")
    assert waited < QUANTUM + world.settings.drain_retry + 12 * 2 * world.settings.drain_slice


def test_steps_first_then_slices_with_growing_time_between_them(world: World) -> None:
    """A step lets one call of each thread through: nothing needs time for that. A queue of launches that a whole slice
    refills must have time to run empty."""
    first, _ = hopeless_pair(world)
    world.want(first)
    world.process("b", busy=True)
    world.run(5)
    closings = [now for now, command in world.timeline if isinstance(command, cmd.Close)]
    openings = [now for now, command in world.timeline if isinstance(command, cmd.Open)]
    slices = [end - begin for begin, end in zip(openings, closings[1:], strict=False)]
    closed = [end - begin for begin, end in zip(closings, openings, strict=False)]
    settings = world.settings
    assert slices == pytest.approx([settings.drain_slice] * len(slices))
    steps = [command.step for command in world.commands if isinstance(command, cmd.Open)]
    whole = steps.count(False)
    assert whole >= 4
    assert steps == [True] * settings.drain_steps + [False] * whole
    # Patience before the first step and after the last one, then doubling.
    assert closed == pytest.approx(
        [settings.drain_retry]
        + [settings.drain_slice] * settings.drain_steps
        + [settings.drain_retry * 2**n for n in range(1, len(closed) - settings.drain_steps)]
    )


def test_a_busy_loop_with_a_second_of_launches_ahead_still_ends_its_turn(world: World) -> None:
    """One process submits as fast as its queue of launches takes them: a slice refills what it worked off meanwhile."""
    ahead = 1.0
    a = world.process("a", busy=True)
    left = [ahead]
    closed_at = [0.0]

    def drain(process: FakeProcess, epoch: int) -> None:
        if process.gate == "closing" and process.epoch == epoch:
            process.gate = "closed"
            world.feed(ev.Drained(process.number, epoch))

    original_close, original_open = world._close, world._open

    def close(process: FakeProcess, epoch: int) -> None:
        if process is a:
            closed_at[0] = world.now
            process.drains_in = left[0]
        original_close(process, epoch)

    def open_gates(epoch: int, numbers: tuple[int, ...]) -> None:
        if a.number in numbers:
            slice_refills = world.settings.drain_slice
            left[0] = min(ahead, max(0.0, left[0] - (world.now - closed_at[0])) + slice_refills)
        original_open(epoch, numbers)

    world._close, world._open = close, open_gates  # type: ignore[method-assign]
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b", within=10) < QUANTUM + 3 * ahead


def test_a_waiting_thread_of_another_client_is_no_reason_to_reopen(world: World) -> None:
    a = world.process("a", drains_in=5)
    world.want(a)
    world.process("b", busy=True)
    world.run(QUANTUM + 3)
    assert a.openings == 1


def test_drained_of_a_closing_that_was_taken_back_is_ignored(world: World) -> None:
    first, second = hopeless_pair(world)
    world.want(first)
    world.process("b", busy=True)
    world.run(QUANTUM)
    stale = first.epoch
    world.run_until(lambda: first.gate == "open")
    first.collectives = second.collectives = 0
    assert world.feed(ev.Drained(first.number, stale)) == []
    assert world.phase("a") == "draining"
    world.run_until(lambda: first.gate == "closing")
    assert world.feed(ev.Drained(first.number, stale)) == []
    assert world.running("gpu") is None
    world.run_until(lambda: world.running() == "b")


def test_processes_that_close_by_themselves_at_their_deadline(world: World) -> None:
    """The coordinator need not be on the way of a hand-over; it hears of it by "drained"."""
    first, second = world.process("a", drains_in=0.001, busy=True), world.process("a", drains_in=0.002)
    b = world.process("b", busy=True)
    world.at(QUANTUM - 0.0001, lambda: world.close_by_itself(first))
    world.at(QUANTUM - 0.0001, lambda: world.close_by_itself(second))
    assert world.run_until(lambda: b.gate == "open") == pytest.approx(QUANTUM + 0.002, abs=0.001)
    assert world.queue("gpu") == ["a"]


def test_one_that_closes_by_itself_ends_the_turn_of_the_others(world: World) -> None:
    first, second = world.process("a"), world.process("a", drains_in=0.01)
    world.want(first)
    world.close_by_itself(first)
    world.run(0)
    assert (world.phase("a"), second.gate) == ("draining", "closing")
    world.run_until(lambda: world.phase("a") == "idle")


def test_drained_of_a_turn_that_is_over_is_ignored(world: World) -> None:
    a = world.process("a", busy=True)
    world.process("b", busy=True)
    old = a.epoch
    world.run_until(lambda: world.running() == "b")
    assert world.feed(ev.Drained(a.number, old)) == []
    world.run_until(lambda: world.running() == "a")
    assert world.feed(ev.Drained(a.number, old)) == []
    assert world.running() == "a"


def test_drained_of_an_epoch_never_granted_is_illegal(world: World) -> None:
    a = world.process("a", busy=True)
    with pytest.raises(IllegalEvent, match="never granted"):
        world.feed(ev.Drained(a.number, a.epoch + 1))


def test_an_absurd_epoch_at_a_hello_harms_nobody(world: World) -> None:
    """Epochs have 30 bits. Were they to wrap around, a process might see one twice and think that it had drained."""
    a = world.process("a", busy=True)
    world.process("b", busy=True)
    world.adopt("c", "gpu", epoch=(1 << 30) - 1, running=False)
    seen = [a.epoch]
    for _ in range(5):
        world.run_until(lambda: world.running() == "b")
        world.run_until(lambda: world.running() == "a")
        seen.append(a.epoch)
    assert seen == sorted(set(seen))


def test_idle_of_another_turn_is_ignored(world: World) -> None:
    a = world.process("a", busy=True)
    world.process("b", busy=True)
    old = a.epoch
    world.run_until(lambda: world.running() == "b")
    assert world.feed(ev.WentIdle(a.number, old)) == []
    world.run_until(lambda: world.running() == "a")
    world.feed(ev.WentIdle(a.number, old))
    world.feed(ev.WentIdle(a.number, old + 1000))
    assert world.running() == "a"


def test_wants_that_crossed_the_opening_is_ignored(world: World) -> None:
    a = world.process("a", busy=True)
    assert world.feed(ev.Wanted(a.number)) == []
    world.process("b", busy=True)
    world.run(QUANTUM)
    assert world.queue("gpu") == ["a"], "only its own, sent after the closing"


def test_wants_while_draining_queues_it_behind_those_who_wait(world: World) -> None:
    a = world.process("a", drains_in=0.05)
    world.want(a)
    world.process("b", busy=True)
    world.run(QUANTUM)
    world.want(a)
    world.process("c", busy=True)
    world.run_until(lambda: world.running() == "b")
    assert world.queue("gpu") == ["c", "a"]


def test_who_drained_and_waits_is_let_through_without_the_rest(world: World) -> None:
    """The second half stands at the gate, drained; the first half is on the device and needs it, and nothing new."""
    first, second = pair(world, 1)
    first.busy = True
    world.want(first)
    world.process("b", busy=True)
    world.run_until(lambda: second.gate == "closed")
    world.want(second)
    world.run_until(lambda: second.gate == "open")
    assert first.gate == "closing"
    world.run_until(lambda: world.running() == "b")


def test_a_thread_that_comes_to_the_gate_while_another_process_has_a_slice(world: World) -> None:
    """It is not forgotten: if the slice does not help, it is let through the next time."""
    first, second = pair(world, 1)
    third = world.process("a")
    world.want(first)
    world.process("b", busy=True)
    world.run_until(lambda: third.gate == "closed")
    first.peer = third  # not whom the first slice lets through
    first.needs_opening = third.openings + 1
    world.want(second)
    world.run_until(lambda: second.gate == "open")
    world.want(third)
    world.run_until(lambda: third.gate == "open")
    world.run_until(lambda: world.running() == "b")


def test_a_process_that_dies_in_its_slice(world: World) -> None:
    first, second = pair(world, 1)
    world.want(first)
    world.process("b", busy=True)
    world.run_until(lambda: second.gate == "closed")
    first.peer, first.drains_in = None, 0.5
    world.want(second)
    world.run_until(lambda: second.gate == "open")
    world.kill(second)
    world.at(0.1, lambda: world._drain(first, first.epoch))
    world.run_until(lambda: world.running() == "b")


def test_a_process_that_joins_during_a_closing_waits(world: World) -> None:
    a = world.process("a", drains_in=0.05)
    world.want(a)
    world.process("b", busy=True)
    world.run(QUANTUM)
    late = world.process("a", busy=True)
    assert late.gate == "closed"
    world.run_until(lambda: world.running() == "b")
    assert world.queue("gpu") == ["a"]


def test_closing_at_time_zero_is_as_late_as_any_other(world: World) -> None:
    a = world.process("a", drains_in=30)
    world.want(a)
    world.process("b", busy=True)
    world.feed(ev.TurnReleased("a"))
    world.run(11)
    assert world.phase("a") == "overrun"
