"""Tests of the end of turns: drains, steps for a waiting thread, and reports of earlier turns."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS
from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess

GIB = 1 << 30
STUCK, STEP = 0.1, 0.02  # seconds: STUCK_NS and STEP_NS of agent_step.c


def test_next_turn_starts_after_all_processes_have_drained(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.add_process("a", drains_in=0.09, busy=True)
    host.add_process("b", busy=True)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(QUANTUM_SECONDS + 0.09)


def test_a_slow_drain_without_waiting_threads_is_waited_for_and_reported(host: SimulatedHost) -> None:
    a = host.add_process("a", drains_in=30, waiting=True)
    host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS + 9)
    assert (host.phase("a"), a.openings) == ("draining", 1)
    host.run(2)
    assert host.phase("a") == "overrun"
    assert [c.client for c in host.commands if isinstance(c, cmd.ReportOverrun)] == ["a"]
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(19)
    assert host.phase("a") == "idle"


def test_uncontended_slow_drain_is_no_overrun(host: SimulatedHost) -> None:
    """The cell has ended, and its work has not."""
    a = host.add_process("a", drains_in=30)
    host.start_cell("a", "1")
    host.wait_at_gate(a)
    host.end_cell("a", "1")
    host.run(20)
    assert host.phase("a") == "draining"
    host.add_process("b", busy=True)
    host.run(0.2)
    assert host.phase("a") == "overrun", "now another client waits"


def pair(host: SimulatedHost, collectives: int) -> tuple[SimulatedProcess, SimulatedProcess]:
    """Return two processes of a client on one device. The first one's work waits on the device for the second's."""
    second = host.add_process("a")
    first = host.add_process("a")
    first.peer, first.collectives = second, collectives
    return first, second


def hopeless_pair(host: SimulatedHost) -> tuple[SimulatedProcess, SimulatedProcess]:
    """Return two processes of a client. The work of each waits on the device for the other's next submission."""
    first, second = pair(host, 10**6)
    second.peer, second.collectives = first, 10**6
    first.busy = second.busy = True
    return first, second


def test_half_a_collective_is_completed_by_a_step(host: SimulatedHost) -> None:
    first, second = pair(host, 1)
    host.wait_at_gate(first, second)
    first.needs_opening = second.openings + 1
    host.add_process("b", busy=True)
    host.run_until(lambda: host.phase("a") == "draining")
    host.wait_at_gate(second)
    waited = host.run_until(lambda: host.running() == "b")
    assert waited == pytest.approx(STUCK, abs=0.01), "the step ends when it has helped"
    assert first.openings == 1, "no thread of the first process waited at the gate"
    assert not [c for c in host.commands if isinstance(c, cmd.ReportOverrun)]


def test_a_client_that_never_drains_is_an_overrun_and_never_a_deadlock(host: SimulatedHost) -> None:
    """Each step submits another collective whose other half waits at the gate, so the steps become rarer."""
    first, second = hopeless_pair(host)
    host.wait_at_gate(first, second)
    host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS + 20)
    assert host.phase("a") == "overrun"
    assert len([c for c in host.commands if isinstance(c, cmd.ReportOverrun)]) == 1
    passed = second.openings
    host.run(20)
    assert second.openings > passed, "the steps must go on"
    first.collectives = second.collectives = 0
    host.run_until(lambda: host.running() == "b")


def test_ranks_that_wait_for_each_other_at_every_step_are_separated_soon(host: SimulatedHost) -> None:
    """Each rank passes a step by itself, and its next step waits for the other rank. No such step needs a long wait."""
    first, second = pair(host, 4)
    second.peer, second.collectives = first, 4
    first.busy = second.busy = True
    host.wait_at_gate(first, second)
    host.add_process("b", busy=True)
    waited = host.run_until(lambda: host.running() == "b")
    assert first.collectives == second.collectives == 0
    assert waited < QUANTUM_SECONDS + STUCK + 8 * 2 * STEP
    assert not [c for c in host.commands if isinstance(c, cmd.ReportOverrun)]


def test_processes_that_close_by_themselves_at_their_deadline(host: SimulatedHost) -> None:
    """The handoff needs no coordinator, which only reads reports of it."""
    for drains_in in (0.001, 0.002):
        host.add_process("a", drains_in=drains_in, busy=True)
    b = host.add_process("b", busy=True)
    assert host.permits["a"].relieved and host.permits["b"].may
    host.ignores_reports = True
    assert host.run_until(lambda: b.gate == "open") == pytest.approx(QUANTUM_SECONDS + 0.002, abs=0.001)
    host.read_reports()
    assert host.queue("gpu") == ["a"]


def test_process_that_closes_by_itself_ends_the_turn_of_its_siblings(host: SimulatedHost) -> None:
    first, second = host.add_process("a"), host.add_process("a", drains_in=0.01)
    host.wait_at_gate(first, second)
    host.handle_event(ev.GateClosed(first.number, first.turn, host.now))
    assert (host.phase("a"), second.gate) == ("draining", "closing")
    host.run_until(lambda: host.phase("a") == "idle")


def test_reports_of_a_turn_that_is_over_are_ignored(host: SimulatedHost) -> None:
    a, _ = host.start_busy("a", "b")
    old = a.turn
    for name in "ba":
        host.run_until(lambda name=name: host.running() == name)
        assert (
            host.handle_event(ev.TurnLeft(a.number, old))
            == host.handle_event(ev.GateClosed(a.number, old, host.now))
            == []
        )
    assert host.running() == "a"


def test_a_drained_process_goes_on_with_a_turn_that_goes_on(host: SimulatedHost) -> None:
    """The other client stops waiting while a sibling drains. A thread that comes to the gate needs no new turn."""
    first, second = host.add_process("a", drains_in=0.3), host.add_process("a")
    host.wait_at_gate(first, second)
    b = host.add_process("b", busy=True)
    host.run_until(lambda: second.gate == "leaving")
    host.stop_waiting(b)
    host.wait_at_gate(second)
    host.run_until(lambda: second.gate == "open", within=0.1)
    assert (first.gate, first.turn) == ("open", second.turn)


def test_idle_of_a_process_that_is_in_no_turn_is_ignored(host: SimulatedHost) -> None:
    a, _ = host.start_busy("a", "b")
    host.run_until(lambda: host.running() == "b")
    assert host.handle_event(ev.ProcessIdle(a.number)) == []
    host.run_until(lambda: host.running() == "a")
    assert host.running() == "a"


def test_gate_wait_that_crossed_the_opening_is_ignored(host: SimulatedHost) -> None:
    a = host.add_process("a", busy=True)
    assert host.handle_event(ev.GateWaitStarted(a.number)) == []
    host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS)
    assert host.queue("gpu") == ["a"], "only for the wait that a reported after the closing"


def test_gate_wait_during_a_drain_queues_last(host: SimulatedHost) -> None:
    a = host.add_process("a", drains_in=0.05, waiting=True)
    host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS)
    host.wait_at_gate(a)
    host.add_process("c", busy=True)
    host.run_until(lambda: host.running() == "b")
    assert host.queue("gpu") == ["c", "a"]


def test_a_thread_that_comes_to_the_gate_while_another_process_steps(host: SimulatedHost) -> None:
    """If the step of the other process does not help, the thread's own process steps."""
    first, second = pair(host, 0)
    third = host.add_process("a")
    host.wait_at_gate(first, second, third)
    first.peer, first.needs_opening = third, third.openings + 1
    host.add_process("b", busy=True)
    host.run_until(lambda: third.gate == "closed")
    host.wait_at_gate(second)
    host.run_until(lambda: second.gate == "step")
    host.wait_at_gate(third)
    host.run_until(lambda: third.gate == "step")
    host.run_until(lambda: host.running() == "b")


def test_a_process_that_joins_during_a_closing_waits(host: SimulatedHost) -> None:
    host.add_process("a", drains_in=0.05, waiting=True)
    host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS)
    late = host.add_process("a", busy=True)
    assert late.gate == "closed"
    host.run_until(lambda: host.running() == "b")
    assert host.queue("gpu") == ["a"]


def test_closing_at_time_zero_is_as_late_as_any(host: SimulatedHost) -> None:
    host.add_process("a", drains_in=30, waiting=True)
    host.add_process("b", busy=True)
    host.handle_event(ev.ReleaseRequested("a"))
    host.run(11)
    assert host.phase("a") == "overrun"


def test_turns_grow_until_a_slow_restore_is_done_within_one() -> None:
    """Each turn ends before the memory is back. Without longer turns, the client would never work."""
    host = host_of("d", time_quantum=0.1)
    host.start_busy("a", "b")
    lengths = []
    for _ in range(40):
        host.run_until(lambda: host.running() == "b")
        host.report_memory("a", GIB // 2, 0)
        host.run_until(lambda: host.running() == "a")
        began = host.now
        host.report_memory("a", GIB // 2, GIB // 8)
        host.run_until(lambda: host.running() == "b")
        lengths.append(host.now - began)
    assert lengths == pytest.approx(sorted(lengths))
    assert lengths[-1] > 1.5 * lengths[0]


def test_freed_evicted_memory_does_not_count_as_restored() -> None:
    """Otherwise a client that allocates and frees memory would get the time for a restore in each turn."""
    host = host_of("d", time_quantum=0.1)
    host.start_busy("a", "b")
    lengths = []
    for _ in range(4):
        host.run_until(lambda: host.running() == "b")
        host.report_memory("a", 20 * GIB, 0)
        host.run_until(lambda: host.running() == "a")
        began = host.now
        host.report_memory("a", 19 * GIB, 0)
        host.run_until(lambda: host.running() == "b")
        lengths.append(host.now - began)
    assert lengths[1:] == pytest.approx([0.1] * 3)
