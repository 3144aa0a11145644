"""Tests of users' requests in the core: hold, release, suspend, resume and evict."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.errors import Conflict, Refused
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS, MakeHost
from .simulated_host import SimulatedHost

GIB = 1 << 30


@pytest.fixture
def between_cells(host: SimulatedHost) -> SimulatedHost:
    """Return a host where a runs a cell, and b waits."""
    host.start_cell(host.add_client("a"), "one")
    host.start_busy("a", "b")
    host.run(0.1)
    return host


def test_hold_keeps_the_device_between_cells(between_cells: SimulatedHost) -> None:
    host = between_cells
    host.handle_event(ev.HoldRequested("a", 60.0))
    host.end_cell("a", "one")
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(60.0)


def test_a_hold_outlasts_the_quantum_and_idleness(host: SimulatedHost) -> None:
    a = host.add_process("a", waiting=True)
    host.add_process("b", busy=True)
    host.handle_event(ev.HoldRequested("a", 60.0))
    host.run(10 * QUANTUM_SECONDS)
    host.report_idle(a)
    assert host.running() == "a"
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(60.0 - 10 * QUANTUM_SECONDS)


def test_busy_client_keeps_its_turn_when_the_hold_ends(host: SimulatedHost) -> None:
    a = host.add_process("a", waiting=True)
    host.add_process("b", busy=True)
    host.handle_event(ev.HoldRequested("a", QUANTUM_SECONDS / 2))
    host.report_idle(a)
    host.report_busy(a)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(QUANTUM_SECONDS)


@pytest.mark.parametrize("end", [ev.HoldRequested("a", 0.0), ev.ReleaseRequested("a")])
def test_hold_ends_by_a_request(between_cells: SimulatedHost, end: ev.Event) -> None:
    host = between_cells
    host.handle_event(ev.HoldRequested("a", 60.0))
    host.end_cell("a", "one")
    host.run(10.0)
    host.handle_event(end)
    assert host.run_until(lambda: host.running() == "b") == 0


def test_successive_holds_last_no_longer_than_one_may(make_host: MakeHost) -> None:
    host = make_host(max_hold=30.0)
    host.start_busy("a", "b")
    for _ in range(6):
        host.handle_event(ev.HoldRequested("a", 30.0))
        host.run(4.0)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(30.0 - 24.0)


@pytest.mark.parametrize("seconds", [-1.0, 600.1, float("nan"), float("inf")])
def test_a_hold_out_of_range_changes_nothing(between_cells: SimulatedHost, seconds: float) -> None:
    with pytest.raises(Refused, match=r"allowed are 0 to 600 seconds \(max_hold\)"):
        between_cells.handle_event(ev.HoldRequested("a", seconds))
    assert between_cells.scheduler.clients["a"].hold_seconds_left(between_cells.now) is None


def test_a_suspended_client_has_no_turns_until_it_is_resumed(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run(0.1)
    host.handle_event(ev.SuspendRequested("a"))
    assert host.run_until(lambda: host.running() == "b") == 0
    host.run(20 * QUANTUM_SECONDS)
    assert (host.phase("a"), host.running(), host.queue("gpu")) == ("suspended", "b", [])
    host.handle_event(ev.ResumeRequested("a"))
    assert host.run_until(lambda: host.running() == "a") <= QUANTUM_SECONDS


def test_suspended_waiter_leaves_the_queue(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.handle_event(ev.SuspendRequested("b"))
    assert host.queue("gpu") == []
    assert not host.scheduler.turns.table.has_contenders(host.scheduler.clients["a"].grant)  # type: ignore[arg-type]


def test_suspended_client_cannot_hold(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.handle_event(ev.SuspendRequested("a"))
    with pytest.raises(Conflict, match="resume it first"):
        host.handle_event(ev.HoldRequested("a", 60.0))
    host.handle_event(ev.HoldRequested("a", 0.0))


def test_offline_client_gets_the_unused_device_after_the_hold_of_an_online_client(host: SimulatedHost) -> None:
    """The holder reported its idleness once, during the hold, and no process reports it when the hold is over."""
    host.add_device("d")
    online = host.add_process("online")
    offline = host.start_client("offline", service="offline", busy=False)
    host.wait_at_gate(online)
    host.handle_event(ev.HoldRequested("online", 5.0))
    host.wait_at_gate(offline)
    host.run(1.0)
    host.report_idle(online)
    host.run(1.0)
    assert host.running() == "online"
    assert host.run_until(lambda: host.running() == "offline") == pytest.approx(3.0)


def test_the_memory_of_an_evicted_client_leaves_once(host: SimulatedHost) -> None:
    a = host.add_process("a")
    host.report_memory("a", GIB // 4)
    assert cmd.SetResident("a", "gpu", 0) in host.handle_event(ev.EvictRequested("a"))
    host.report_memory("a", GIB // 4, 0)
    assert host.phase("a") == "idle"
    began = len(host.commands)
    host.wait_at_gate(a)
    assert host.running() == "a", "the memory comes back with the next turn of a"
    assert cmd.SetResident("a", "gpu", None) in host.commands[began:]
    host.report_idle(a)
    host.run(10 * QUANTUM_SECONDS)
    assert cmd.SetResident("a", "gpu", 0) not in host.commands[began:], "and stays"


def test_evicting_ends_the_turn_before_memory_leaves(host: SimulatedHost) -> None:
    host.add_process("a", busy=True, drains_in=0.05)
    host.report_memory("a", GIB // 4)
    commands = host.handle_event(ev.EvictRequested("a"))
    kinds = [type(command) for command in commands]
    assert cmd.SetResident("a", "gpu", 0) in commands
    assert kinds.index(cmd.SetResident) < kinds.index(cmd.Permit), "a closing process reads its resident target"
    assert host.phase("a") == "draining"
    assert host.locks.holders("gpu")
    # The closing goes on, although a thread of a waits at the gate and no other client waits.
    assert host.run_until(lambda: bool(host.turns["gpu"])) == pytest.approx(0.05)
    assert host.running() == "a"
    assert host.scheduler.residency.target("a", "gpu") is None


def test_evicting_ends_a_hold(between_cells: SimulatedHost) -> None:
    host = between_cells
    host.handle_event(ev.HoldRequested("a", 60.0))
    host.handle_event(ev.EvictRequested("a"))
    assert host.run_until(lambda: host.running() == "b") == 0
    assert host.scheduler.clients["a"].hold_seconds_left(host.now) is None


def test_evicted_waiter_keeps_its_place_without_prefetch(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.report_memory("a", GIB // 4)
    host.report_memory("b", GIB // 4)
    began = len(host.commands)
    assert cmd.SetResident("b", "gpu", 0) in host.handle_event(ev.EvictRequested("b"))
    host.report_memory("b", GIB // 4, 0)
    assert host.queue("gpu") == ["b"]
    host.run_until(lambda: host.running() == "b")
    assert cmd.Prefetch("b", "gpu", True) not in host.commands[began:]
    assert host.scheduler.residency.target("b", "gpu") is None


def test_evicted_client_with_a_refused_lock_stays_evicted(host: SimulatedHost) -> None:
    a = host.add_process("a")
    host.report_memory("a", GIB // 4)
    host.handle_event(ev.EvictRequested("a"))
    host.lock_by_other("gpu")
    host.wait_at_gate(a)
    assert host.running() is None
    assert host.scheduler.residency.target("a", "gpu") == 0
    host.unlock_by_other("gpu")
    host.run_until(lambda: host.running() == "a")
    assert host.scheduler.residency.target("a", "gpu") is None


def test_an_eviction_of_a_suspended_client_is_over_with_the_suspension(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.handle_event(ev.SuspendRequested("a"))
    host.handle_event(ev.EvictRequested("a"))
    host.run(QUANTUM_SECONDS)
    host.handle_event(ev.ResumeRequested("a"))
    assert host.run_until(lambda: host.running() == "a") == 0
    assert host.scheduler.residency.target("a", "gpu") is None
