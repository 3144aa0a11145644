"""Tests of turns that do not end: other clients wait for them, join them or have them interrupted."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS, MakeHost
from .simulated_host import SimulatedHost, baseline
from .simulated_process import CLOSED, CLOSING, OPEN, SimulatedProcess
from .test_turn_close import hopeless_pair

REPORTED = QUANTUM_SECONDS + 10.0  # when a drain without an end is an overrun
PATIENCE = 5.0
HALF = 1 << 29  # of a device


@pytest.fixture
def joining(make_host: MakeHost) -> SimulatedHost:
    return make_host(overrun="join", overrun_patience=PATIENCE)


def stuck(host: SimulatedHost, name: str = "a", drains_in: float = 1000.0) -> SimulatedProcess:
    """Return a process with a turn that does not end once another client waits."""
    return host.add_process(name, drains_in=drains_in, waiting=True)


def test_overrun_is_waited_for_by_default(host: SimulatedHost) -> None:
    stuck(host)
    b = host.add_process("b", busy=True)
    host.run(900)
    assert (host.phase("a"), host.phase("b"), b.openings) == ("overrun", "waiting", 0)
    assert not any(isinstance(command, cmd.InterruptKernel) for command in host.commands)


def test_overrun_is_joined_at_its_start(make_host: MakeHost) -> None:
    """Slices grow to a quantum, and a waiting client would wait for the end of a slice."""
    host = make_host(overrun="join", overrun_patience=PATIENCE, time_quantum=100.0)
    host.wait_at_gate(*hopeless_pair(host))
    b = host.add_process("b", busy=True)
    host.run_until(lambda: host.phase("a") == "overrun", within=200)
    assert host.run_until(lambda: b.gate == OPEN) == pytest.approx(PATIENCE, abs=0.02)


def test_joined_clients_alternate_turns(joining: SimulatedHost) -> None:
    stuck(joining)
    b, c = joining.add_process("b", busy=True), joining.add_process("c", busy=True)
    joining.run(REPORTED + PATIENCE + 1.0)
    since = joining.now
    for _ in range(100):
        joining.run(0.1)
        assert [b.gate, c.gate].count(OPEN) <= 1
    granted = joining.granted_seconds("gpu", since)
    assert granted["b"] == pytest.approx(granted["c"], abs=2 * QUANTUM_SECONDS) and granted["b"] > 3


@pytest.fixture
def slow_joiner(joining: SimulatedHost) -> SimulatedProcess:
    """Return a process of the offline client b, which may join the overrun of a and has not entered so far."""
    joining.wait_at_gate(joining.start_client("a", busy=False, drains_in=1000.0, service="offline"))
    b = joining.start_client("b", service="offline", drains_in=0.05)
    joining.stop_process(b)
    joining.run_until(lambda: joining.permits["b"].turn == joining.permits["a"].turn)
    return b


def test_a_client_joins_after_the_client_that_may_join_already(
    joining: SimulatedHost, slow_joiner: SimulatedProcess
) -> None:
    """A process may enter a turn by a permit that the coordinator withdraws at that moment."""
    c = joining.add_process("c", busy=True)
    assert (joining.queue("gpu"), c.gate) == (["c", "b"], CLOSED)
    joining.continue_process(slow_joiner)
    assert (slow_joiner.gate, c.gate) == (CLOSING, CLOSED)
    joining.run_until(lambda: c.gate == OPEN, within=1.0)
    assert slow_joiner.gate == CLOSED


@pytest.mark.usefixtures("slow_joiner")
def test_a_stopped_process_does_not_keep_other_clients_from_joining(joining: SimulatedHost) -> None:
    c = joining.add_process("c", busy=True)
    joining.run_until(lambda: c.gate == OPEN, within=1.1)


def test_joined_overrun_waits_for_its_next_turn(joining: SimulatedHost) -> None:
    """No client waits for the overrun any more, yet its gate closes for its next turn."""
    a = stuck(joining)
    b = joining.add_process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    a.busy = True
    joining.wait_at_gate(a)
    joining.run(2 * QUANTUM_SECONDS)
    assert (joining.queue("gpu"), joining.phase("a"), b.openings) == ([], "overrun", 1)
    a.drains_in = 0.0
    joining.run_until(lambda: joining.phase("a") == "waiting")
    assert set(joining.locks.holders("gpu")) == {"b"}
    joining.run_until(lambda: a.gate == OPEN)
    assert (joining.phase("a"), b.gate) == ("running", CLOSED)


def test_uncontended_overrun_keeps_its_turn(joining: SimulatedHost) -> None:
    a = stuck(joining)
    b = joining.add_process("b", waiting=True)
    joining.run(REPORTED + 1.0)
    joining.stop_waiting(b)
    joining.wait_at_gate(a)
    joining.run(PATIENCE)
    assert (joining.phase("a"), a.gate) == ("running", OPEN)


@pytest.fixture
def a_and_large(joining: SimulatedHost) -> tuple[SimulatedProcess, SimulatedProcess]:
    """Return two processes: a has half of the memory and does not end its turn; large, which has more, waits."""
    a = stuck(joining)
    joining.report_memory("a", HALF)
    large = joining.add_process("large")
    joining.report_memory("large", HALF + 1, 0)
    joining.wait_at_gate(large)
    return a, large


def test_client_whose_memory_does_not_fit_waits(joining: SimulatedHost) -> None:
    stuck(joining)
    joining.report_memory("a", HALF + 1)
    b = joining.add_process("b")
    joining.report_memory("b", HALF, 0)
    joining.wait_at_gate(b)
    joining.run(900)
    assert (joining.phase("b"), b.openings) == ("waiting", 0)
    joining.report_memory("a", HALF)  # in its last turns, a had more, which still counts
    assert b.gate == CLOSED


def test_client_that_does_not_fit_is_passed_by_one_that_does(
    joining: SimulatedHost, a_and_large: tuple[SimulatedProcess, SimulatedProcess]
) -> None:
    """The large client comes first as soon as there is room."""
    a, large = a_and_large
    b, c = joining.start_busy("b", "c")
    joining.run(REPORTED + PATIENCE + 100 * QUANTUM_SECONDS)
    assert b.openings > 30 and c.openings > 30 and large.openings == 0
    joining.report_memory("a", 0)
    a.drains_in = 0.0
    joining.finish_work(a)
    joining.run(2 * QUANTUM_SECONDS)
    assert large.openings == 1


@pytest.mark.usefixtures("a_and_large")
def test_no_client_joins_while_another_coordinator_waits(joining: SimulatedHost) -> None:
    """Clients of the other coordinator cannot join a turn, and would never find the device free."""
    b = joining.add_process("b", waiting=True)
    joining.handle_event(ev.LockContended("gpu", True))
    joining.run(100)
    assert (joining.phase("a"), joining.phase("b"), b.openings) == ("overrun", "waiting", 0)
    joining.handle_event(ev.LockContended("gpu", False))
    joining.run(0.5)
    assert (joining.phase("a"), joining.phase("b")) == ("overrun", "running")


@pytest.mark.usefixtures("a_and_large")
def test_an_offline_client_is_not_let_in_before_an_online_one_that_must_wait(joining: SimulatedHost) -> None:
    """The offline client's turn would be over as it began."""
    offline = joining.start_client("offline", service="offline")
    joining.run(100)
    assert (joining.phase("a"), offline.openings) == ("overrun", 0)


def test_joined_client_that_outgrows_the_device_waits_again(joining: SimulatedHost) -> None:
    stuck(joining)
    joining.report_memory("a", HALF)
    b = joining.add_process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    joining.report_memory("b", HALF + 1, HALF)
    joining.run(1.0)
    assert (joining.phase("a"), joining.phase("b")) == ("overrun", "waiting")


def test_a_turn_that_began_before_the_setting_changed_is_joined_too(host: SimulatedHost) -> None:
    a = stuck(host)
    host.add_process("b", busy=True)
    host.run_until(lambda: a.gate == CLOSING)
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=QUANTUM_SECONDS, overrun="join", overrun_patience=0.0)))
    host.run(100)
    assert (host.phase("a"), host.phase("b")) == ("overrun", "running")


def test_a_gang_joins_where_it_must(make_host: MakeHost) -> None:
    host = make_host("d1", "d2", overrun="join", overrun_patience=PATIENCE)
    stuck(host)
    gang = host.add_process("gang", "d1", "d2", busy=True)
    host.run_until(lambda: gang.gate == OPEN)
    assert set(host.locks.holders("d1")) == {"a", "gang"} and set(host.locks.holders("d2")) == {"gang"}


def test_packed_clients_are_joined_by_suitable_clients(make_host: MakeHost) -> None:
    host = make_host(overrun="join", overrun_patience=PATIENCE, sharing="packed")
    a, b = stuck(host), host.add_process("b", busy=True)
    assert (a.gate, b.gate) == (OPEN, OPEN)
    host.report_memory("b", HALF)
    c = host.add_process("c", busy=True)
    host.report_memory("c", HALF + 1, 0)
    for _ in range(600):
        host.run(0.1)
        assert (b.gate, c.gate) != (OPEN, OPEN)
    assert host.phase("a") == "overrun"
    assert b.openings > 5 and c.openings > 5, "b and c take turns, colocated with a"


def test_joined_clients_are_adopted_as_colocated(joining: SimulatedHost) -> None:
    stuck(joining)
    b = joining.add_process("b", busy=True)
    joining.run_until(lambda: b.gate == OPEN)
    later = SimulatedHost(joining.settings)
    later.add_device("gpu")
    for client in "ab":
        later.adopt(client, "gpu", turn=b.turn)
    later.run(1.0)
    assert (later.phase("a"), later.phase("b")) == ("running", "idle"), "one at a time, as set"


def test_overrun_is_interrupted_once_a_turn(make_host: MakeHost) -> None:
    host = make_host(overrun="interrupt", overrun_patience=PATIENCE)
    a = stuck(host)
    b = host.add_process("b", busy=True)
    host.run(REPORTED + PATIENCE + 0.2)
    asked = [(at, command.seconds) for at, command in host.timeline if isinstance(command, cmd.InterruptKernel)]
    assert [value for pair in asked for value in pair] == pytest.approx(
        [REPORTED + PATIENCE, REPORTED + PATIENCE - QUANTUM_SECONDS], abs=0.15
    )
    assert host.scheduler.clients["a"].grant.is_interrupted  # type: ignore[union-attr]
    host.run(200)
    assert [c.client for c in host.commands if isinstance(c, cmd.InterruptKernel)] == ["a"], "no second interrupt"
    assert (host.phase("b"), b.openings) == ("waiting", 0)
    a.drains_in = 0.0
    host.finish_work(a)  # the cell was interrupted, and its work has ended
    assert b.gate == OPEN
    a.drains_in = 1000.0
    host.wait_at_gate(a)
    host.run(100)
    assert [c.client for c in host.commands if isinstance(c, cmd.InterruptKernel)] == ["a", "a"]


def test_eviction_overrun_is_handled(make_host: MakeHost) -> None:
    """The process is stopped, or reports that its memory leaves and never that it has left."""
    for overrun in ("join", "interrupt"):
        host = make_host(overrun=overrun, overrun_patience=PATIENCE)
        a = stuck(host)
        b = host.add_process("b", busy=True)
        host.run_until(lambda a=a: a.gate == "closing")
        for _ in range(2):  # a repeated report changes nothing
            host.handle_event(ev.EvictionStarted(a.number))
            host.run(29.75)
        assert (host.phase("a"), b.openings) == ("draining", 0), "most devices are emptied by then"
        assert host.run_until(lambda host=host: host.phase("a") == "overrun") == pytest.approx(0.5, abs=0.15)
        host.run(PATIENCE + 1.0)
        assert (b.gate == OPEN) == (overrun == "join")
        assert not any(isinstance(command, cmd.InterruptKernel) for command in host.commands)


def test_uncontended_overrun_is_not_interrupted(make_host: MakeHost) -> None:
    host = make_host(overrun="interrupt", overrun_patience=PATIENCE)
    stuck(host)
    b = host.add_process("b", waiting=True)
    host.run(REPORTED + 1.0)
    host.stop_waiting(b)
    host.run(100)
    assert not any(isinstance(command, cmd.InterruptKernel) for command in host.commands)
    host.wait_at_gate(b)
    host.run(1.0)
    assert any(isinstance(command, cmd.InterruptKernel) for command in host.commands)
