"""Tests of a new coordinator that adopts turns of an earlier coordinator, and clients that wait."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS, MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import CLOSED, CLOSING, OPEN

TURN = (1 << 40) + 5  # a turn number of an earlier coordinator


def test_a_running_turn_goes_on_with_its_number(host: SimulatedHost) -> None:
    a = host.adopt("a", "gpu", turn=TURN)
    assert (host.phase("a"), a.gate, a.turn, a.openings) == ("running", OPEN, TURN, 0)
    assert (host.permits["a"].turn, host.permits["a"].contended, host.permits["a"].deadline) == (TURN, False, None)


def test_adopted_turn_ends_after_a_quantum_if_a_client_waits(host: SimulatedHost) -> None:
    host.adopt("a", "gpu", turn=TURN)
    host.add_process("b", busy=True)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(QUANTUM_SECONDS)
    assert host.phase("a") == "idle"


def test_adopted_turn_ends_with_a_cell_that_ended_meanwhile(host: SimulatedHost) -> None:
    host.adopt("a", "gpu", turn=TURN)
    host.end_cell("a", "of before")
    host.run(1.0)
    assert host.phase("a") == "idle"


def test_both_processes_of_a_running_client_come_back(host: SimulatedHost) -> None:
    first = host.adopt("a", "gpu", turn=TURN)
    second = host.adopt("a", "gpu", turn=TURN)
    assert (first.gate, second.gate) == (OPEN, OPEN)
    host.add_process("b", busy=True)
    host.run_until(lambda: host.running() == "b")


def test_a_running_gang_comes_back_process_by_process(make_host: MakeHost) -> None:
    host = make_host("d1", "d2")
    first = host.adopt("gang", "d1", turn=TURN)
    second = host.adopt("gang", "d2", turn=TURN)
    assert (first.gate, second.gate) == (OPEN, OPEN)
    host.add_process("b", "d2", busy=True)
    host.run_until(lambda: host.running("d2") == "b")
    assert not host.locks.holders("d1")


def test_process_at_the_gate_joins_its_running_siblings(host: SimulatedHost) -> None:
    """The process sends its hello first, and waits; then the coordinator reads that its client has the turn."""
    host.lock_by_other("gpu")
    waits = host.add_process("a", busy=True)
    host.unlock_by_other("gpu", ring=False)  # the lock was the client's own
    host.adopt("a", "gpu", turn=TURN)
    host.run_until(lambda: waits.gate == OPEN, within=0.05)


def test_clients_that_ran_together_go_on_together(make_host: MakeHost) -> None:
    host = make_host(sharing="packed")
    a, b = host.adopt("a", "gpu", turn=TURN), host.adopt("b", "gpu", turn=TURN)
    assert (a.gate, b.gate) == (OPEN, OPEN)


def test_a_turn_covers_only_the_devices_of_the_processes_that_are_in_it(make_host: MakeHost) -> None:
    """One process runs on d2, and the other process waits for d1, which another client has."""
    host = make_host("d1", "d2")
    host.add_process("b", "d1", busy=True)
    waits = host.add_process("a", "d1", busy=True)
    runs = host.adopt("a", "d2", turn=TURN)
    assert (runs.gate, waits.gate, host.running("d1")) == (OPEN, CLOSED, "b")
    host.run_until(lambda: waits.gate == OPEN)
    assert runs.gate == OPEN
    host.run(3 * QUANTUM_SECONDS)


def test_a_process_comes_back_while_its_client_drains(host: SimulatedHost) -> None:
    """No other client runs before this process has drained too."""
    first = host.adopt("a", "gpu", turn=TURN)
    first.drains_in = 0.05
    host.add_process("b", busy=True)
    host.run_until(lambda: host.phase("a") == "draining")
    second = host.adopt("a", "gpu", turn=TURN, drains_in=0.08)
    assert second.gate == CLOSING
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.08, abs=0.002)
    assert second.gate == CLOSED


@pytest.mark.parametrize("phase", [CLOSING, "leaving"])
def test_a_turn_that_was_ending_ends(host: SimulatedHost, phase: str) -> None:
    host.add_process("b")
    a = host.adopt("a", "gpu", turn=TURN, phase=phase)
    host.wait_at_gate(next(process for process in host.processes.values() if process.client == "b"))
    host.run_until(lambda: host.running() == "b", within=0.1)
    assert a.gate == CLOSED


def test_registered_client_keeps_quota_and_devices(host: SimulatedHost) -> None:
    host.add_client("a", Quota(share=0.5))
    host.handle_event(ev.ClientRegistered("a", "1000", "new label", Quota(share=0.9)))
    client = host.scheduler.clients["a"]
    assert (client.quota.share, client.label) == (0.5, "new label")
