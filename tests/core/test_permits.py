"""Tests of the table in docs/explanation/turns.md, from an event of a client to its permit, and of former permits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.turns.permits import Permits

from .conftest import QUANTUM_SECONDS, MakeHost
from .device_locks import OTHER_USER
from .simulated_host import SimulatedHost
from .simulated_process import CLOSED, CLOSING, OPEN

LATE_SECONDS = 10.0  # of closing, after which a turn is an overrun


def test_1_head_of_the_queue_is_permitted_before_the_running_client_is_relieved(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    permits = [command for command in host.commands if isinstance(command, cmd.Permit)]
    assert [(permit.client, permit.may, permit.relieved) for permit in permits] == [
        ("a", True, False),
        ("b", True, False),
        ("a", True, True),
    ]
    assert permits[0].turn != permits[1].turn


def test_2_relieved_is_cleared_before_the_next_permit_is_withdrawn(host: SimulatedHost) -> None:
    _, b = host.start_busy("a", "b")
    host.commands.clear()
    host.stop_waiting(b)
    permits = [command for command in host.commands if isinstance(command, cmd.Permit)]
    assert [(permit.client, permit.may, permit.relieved) for permit in permits] == [
        ("a", True, False),
        ("b", False, False),
    ]


def test_3_a_beginning_sets_the_deadline(host: SimulatedHost) -> None:
    _, b = host.start_busy("a", "b")
    assert host.permits["b"].deadline is None
    host.run_until(lambda: b.gate == OPEN)
    assert host.permits["b"].deadline == pytest.approx(host.now + QUANTUM_SECONDS)


def test_4_a_stopped_process_is_passed_over(host: SimulatedHost) -> None:
    _, b, c = host.start_busy("a", "b", "c")
    host.stop_process(b)
    assert host.run_until(lambda: c.gate == OPEN) == pytest.approx(QUANTUM_SECONDS + 0.05)
    assert not host.permits["b"].may
    host.continue_process(b)
    host.run_until(lambda: b.gate == OPEN, within=3 * QUANTUM_SECONDS)


def test_5_a_device_of_another_coordinator_is_waited_for(host: SimulatedHost) -> None:
    host.lock_by_other("gpu")
    a = host.add_process("a", busy=True)
    host.run(0.5)
    assert host.scheduler.devices["gpu"].taken_by_other_since is not None, "byte 0 of the lock shows it"
    assert (host.permits["a"].may, host.phase("a")) == (True, "waiting")
    host.unlock_by_other("gpu")
    assert (a.gate, host.scheduler.devices["gpu"].taken_by_other_since) == (OPEN, None)


def test_6_the_next_permit_is_withdrawn_for_the_gap(host: SimulatedHost) -> None:
    _, b = host.start_busy("a", "b")
    host.handle_event(ev.LockContended("gpu", True))
    host.run_until(lambda: host.running() is None)
    assert (host.permits["b"].may, b.gate) == (False, CLOSED)
    assert host.run_until(lambda: b.gate == OPEN) == pytest.approx(0.1)


def test_7_a_turn_entered_without_a_permit_is_withdrawn(host: SimulatedHost) -> None:
    a = host.add_process("a")
    host.add_client("b")
    host.handle_event(ev.ProcessJoined("b", 77, ("gpu",)))
    host.handle_event(ev.TurnEntered(77, 1 << 50, host.now))
    assert host.phase("b") in ("running", "draining")
    assert not host.permits.get("b") or not host.permits["b"].may or host.permits["b"].turn == 1 << 50
    host.handle_event(ev.TurnLeft(77, 1 << 50))
    host.wait_at_gate(a)
    assert host.running() == "a"


def test_8_a_client_that_suits_a_running_turn_gets_its_number(make_host: MakeHost) -> None:
    host = make_host(sharing="packed")
    a, b = host.add_process("a", busy=True), host.add_process("b", busy=True)
    assert (a.gate, b.gate, a.turn) == (OPEN, OPEN, b.turn)
    assert not host.permits["a"].relieved


def test_9_demand_changes_the_deadline_under_the_same_epoch(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    first = host.permits["a"]
    host.add_process("b", busy=True)
    after = host.permits["a"]
    assert (first.epoch, first.deadline, first.contended) == (after.epoch, None, False)
    assert (after.deadline, after.contended) == (QUANTUM_SECONDS, True)


def test_10_a_turn_that_must_end_loses_its_permit(host: SimulatedHost) -> None:
    a = host.add_process("a", busy=True, drains_in=0.5)
    host.add_process("b", busy=True)
    host.handle_event(ev.ReleaseRequested("a"))
    assert (host.permits["a"].may, a.gate, host.phase("a")) == (False, CLOSING, "draining")


def test_11_the_last_process_that_leaves_or_dies_ends_the_turn(host: SimulatedHost) -> None:
    first, second = host.add_process("a", busy=True), host.add_process("a", busy=True)
    host.add_process("b", busy=True)
    host.kill_process(first)
    assert host.phase("a") == "running"
    host.kill_process(second)
    assert (host.phase("a"), host.running()) == ("idle", "b")


def test_12_an_ending_turn_may_go_on_once_no_client_waits(host: SimulatedHost) -> None:
    a = host.add_process("a", busy=True, drains_in=0.5)
    b = host.add_process("b", busy=True)
    host.run(QUANTUM_SECONDS + 0.05)
    assert a.gate == CLOSING
    turn, epoch = host.permits["a"].turn, host.permits["a"].epoch
    host.stop_waiting(b)
    assert (a.gate, a.turn, host.phase("a")) == (OPEN, turn, "running")
    assert host.permits["a"].may and host.permits["a"].epoch != epoch


def test_13_with_join_the_next_client_gets_the_number_of_an_overrun(make_host: MakeHost) -> None:
    host = make_host(overrun="join", overrun_patience=1.0)
    a = host.add_process("a", drains_in=1000.0, waiting=True)
    b = host.add_process("b", busy=True)
    assert host.permits["b"].turn != a.turn
    host.run_until(lambda: b.gate == OPEN)
    assert (b.turn, host.phase("a"), host.phase("b"), a.gate) == (a.turn, "overrun", "running", CLOSING)
    assert set(host.locks.holders("gpu")) == {"a", "b"}
    assert host.now == pytest.approx(QUANTUM_SECONDS + LATE_SECONDS + 1.0, abs=0.1)


def test_14_a_permitted_beginning_ends_the_grant_of_another_number(host: SimulatedHost) -> None:
    """The device's lock has admitted the client, so the other client has left, though no report has come."""
    host.report_delay = 0.3
    _, b = host.start_busy("a", "b")
    host.run_until(lambda: b.gate == OPEN)
    assert (host.phase("a"), host.phase("b")) != ("running", "running")
    assert [grant.client.id for grant in host.scheduler.devices["gpu"].grants] == ["b"]


@pytest.mark.parametrize("phase", [OPEN, CLOSING])
def test_15_a_turn_that_a_process_brings_is_adopted(host: SimulatedHost, phase: str) -> None:
    a = host.adopt("a", "gpu", turn=1 << 50, phase=phase, drains_in=0.1)
    assert (a.turn, host.scheduler.clients["a"].turn_count) == (1 << 50, 1)
    b = host.add_process("b", busy=True)
    host.run_until(lambda: b.gate == OPEN)
    assert OTHER_USER not in host.locks.turn_order("gpu")


def test_the_devices_of_the_latest_turns_are_remembered(host: SimulatedHost) -> None:
    """A turn that the client has again counts as late as its last permit."""
    process = host.add_process("a")
    client = host.scheduler.clients["a"]
    for _ in range(20):
        host.scheduler.handle(ev.GateWaitStarted(process.number), host.now)
        host.scheduler.handle(ev.GateWaitEnded(process.number), host.now)
    latest = list(client.permitted_devices)
    assert len(latest) == 8 and client.permit and latest[-1] == client.permit.turn
    permits, before = Permits(), client.permit
    permits.mark_dirty(client)
    permits.publish(lambda _: replace(before, turn=latest[0], may=True))
    client.permit = before
    assert list(client.permitted_devices) == [*latest[1:], latest[0]]
