"""Tests of gangs, which are clients on several devices: turns, their extension, and waits."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota

from .conftest import QUANTUM_SECONDS, MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import SimulatedProcess


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedHost:
    return make_host("d1", "d2")


def test_a_gang_runs_on_all_its_devices_at_once(host: SimulatedHost) -> None:
    host.add_process("a", "d1", busy=True)
    host.add_process("b", "d2", busy=True)
    host.add_process("gang", "d1", "d2", busy=True)
    assert [host.running("d1"), host.running("d2")] == ["a", "b"]
    host.run_until(lambda: host.running("d1") == "gang")
    assert host.running("d2") == "gang"


def test_one_process_per_device_is_a_gang_too(host: SimulatedHost) -> None:
    first, second = host.add_process("gang", "d1"), host.add_process("gang", "d2")
    host.wait_at_gate(first, second)
    assert (first.gate, second.gate) == ("open", "open")
    assert set(first.entered) == set(second.entered) == {"d1", "d2"}, "each process locks the devices of both"


def test_single_device_clients_do_not_starve_a_gang(host: SimulatedHost) -> None:
    for name in ("a1", "a2", "a3"):
        host.add_process(name, "d1", busy=True)
    for name in ("b1", "b2", "b3"):
        host.add_process(name, "d2", busy=True)
    host.add_process("gang", "d1", "d2", busy=True)
    assert host.run_until(lambda: host.running("d1") == "gang") <= 3 * QUANTUM_SECONDS + 1e-9
    host.run(30 * QUANTUM_SECONDS)
    for uuid in ("d1", "d2"):
        assert set(host.locks.turn_order(uuid)) >= {"gang"}
        assert len({c for c in host.locks.turn_order(uuid)[-8:]}) == 4


def test_device_is_free_for_later_clients_without_earlier_need(host: SimulatedHost) -> None:
    host.add_process("a", "d1", busy=True)
    host.add_process("b", "d1", busy=True)
    host.add_process("c", "d2", busy=True)
    assert host.running("d2") == "c"


def test_process_on_a_further_device_extends_the_turn(host: SimulatedHost) -> None:
    first = host.add_process("a", "d1", busy=True)
    second = host.add_process("a", "d2")
    assert (first.gate, second.gate) == ("open", "closed")
    host.wait_at_gate(second)
    host.run_until(lambda: second.gate == "open")
    assert first.gate == "open"
    assert host.scheduler.clients["a"].grant.devices == ("d1", "d2")  # type: ignore[union-attr]


def test_a_process_never_runs_on_a_device_that_its_turn_does_not_cover(host: SimulatedHost) -> None:
    """The host itself checks that no process runs without the locks of its devices."""
    host.add_process("b", "d2", busy=True)
    host.add_process("a", "d1", busy=True)
    late = host.add_process("a", "d2", busy=True)
    host.run(0.45)
    assert late.gate == "closed"
    assert host.run_until(lambda: late.gate == "open") == pytest.approx(QUANTUM_SECONDS - 0.45)


def half_a_collective(host: SimulatedHost) -> tuple[SimulatedProcess, SimulatedProcess]:
    """Return two processes. The work of the first on d1 waits for the second on d2, which joins during the turn."""
    first = host.add_process("a", "d1", waiting=True)
    late = host.add_process("a", "d2")
    first.peer, first.needs_opening = late, 1
    host.wait_at_gate(late)
    return first, late


def test_turn_that_cannot_end_is_extended_to_the_devices_of_its_other_process(host: SimulatedHost) -> None:
    host.add_process("b", "d2", busy=True)
    first, late = half_a_collective(host)
    assert host.run_until(lambda: late.gate == "open") == pytest.approx(QUANTUM_SECONDS)
    assert (first.gate, host.phase("a"), host.queue("d2")) == ("open", "running", ["b"])
    assert host.run_until(lambda: host.running("d2") == "b") == pytest.approx(QUANTUM_SECONDS)
    assert host.phase("a") == "idle"
    assert host.scheduler.clients["a"].gpu_seconds == pytest.approx(2 * QUANTUM_SECONDS)


def test_an_extended_turn_keeps_its_number(host: SimulatedHost) -> None:
    b = host.add_process("b", "d2", busy=True)
    half_a_collective(host)
    host.run(0.5)
    turn = host.permits["a"].turn
    host.kill_process(b)
    permit = host.permits["a"]
    assert (permit.turn, permit.devices, permit.contended, permit.deadline) == (turn, ("d1", "d2"), False, None)


def test_an_extension_waits_its_turn_in_the_queue(host: SimulatedHost) -> None:
    host.add_process("b", "d2", busy=True)
    host.add_process("c", "d2", busy=True)
    _, late = half_a_collective(host)
    host.add_process("e", "d2", busy=True)
    assert host.run_until(lambda: late.gate == "open") == pytest.approx(2 * QUANTUM_SECONDS)
    assert host.queue("d2") == ["e", "b", "c"]


def test_an_extension_to_a_device_that_another_coordinator_has_leaves_the_turn_unchanged(host: SimulatedHost) -> None:
    host.lock_by_other("d2")
    first, late = half_a_collective(host)
    host.run(3)
    assert (first.gate, late.gate, list(host.locks.holders("d1"))) == ("open", "closed", ["a"])
    host.unlock_by_other("d2")
    assert host.run_until(lambda: late.gate == "open") <= 0.16
    client = host.scheduler.clients["a"]
    assert client.gpu_seconds_at(host.now) == pytest.approx(host.now)
    assert client.turn_count == 1


def test_extension_is_withdrawn_when_the_thread_stops_waiting(host: SimulatedHost) -> None:
    host.add_process("b", "d2", busy=True)
    _, late = half_a_collective(host)
    host.run(0.5)
    assert host.queue("d2") == ["a"]
    host.stop_waiting(late)
    assert host.queue("d2") == []
    assert host.permits["a"].devices == ("d1",)
    host.kill_process(late)
    host.run(5 * QUANTUM_SECONDS)
    assert host.running("d2") == "b"


def test_a_device_that_no_process_uses_any_more_is_no_longer_needed(host: SimulatedHost) -> None:
    keep = host.add_process("a", "d1")
    child = host.add_process("a", "d2")
    host.add_process("b", "d2", busy=True)
    host.kill_process(child)
    host.wait_at_gate(keep)
    assert host.running("d1") == "a", "a needs d1 only"


def test_unused_device_is_dropped_while_the_client_waits(host: SimulatedHost) -> None:
    host.add_process("b", "d2", busy=True)
    child, keep = host.add_process("a", "d2"), host.add_process("a", "d1", busy=True)
    assert keep.gate == "closed"
    host.kill_process(child)
    host.run_until(lambda: keep.gate == "open", within=0.02)


def test_only_running_process_ends_while_another_waits_for_more_devices(host: SimulatedHost) -> None:
    first = host.add_process("a", "d1", busy=True)
    host.add_process("a", "d2")
    host.add_process("b", "d1", busy=True)
    host.kill_process(first)
    assert host.running("d1") == "b"


@pytest.mark.parametrize("why", ["a better class runs there", "another coordinator has its lock"])
def test_free_device_is_backfilled_while_the_gang_waits_for_the_other(host: SimulatedHost, why: str) -> None:
    if why == "a better class runs there":
        host.add_process("online", "d2", busy=True)
    else:
        host.lock_by_other("d2")
    service = Quota(service="offline")
    host.add_client("gang", service, gpus=2)
    gang = host.add_process("gang", "d1", "d2", busy=True)
    host.add_client("single", service)
    single = host.add_process("single", "d1", busy=True)
    host.run(5.0)
    assert single.openings and not gang.openings
    if why != "a better class runs there":
        host.unlock_by_other("d2")
        host.run_until(lambda: bool(gang.openings), within=2 * host.settings.time_quantum + 1)


def test_a_device_is_backfilled_while_the_gang_waits_for_an_overrun(host: SimulatedHost) -> None:
    """The overrun is reported 10 s after the end of its quantum, and ends after a minute."""
    stuck = host.add_process("stuck", "d2", drains_in=60.0, waiting=True)
    gang = host.add_process("gang", "d1", "d2", busy=True)
    single = host.add_process("single", "d1", busy=True)
    host.run_until(lambda: host.phase("stuck") == "overrun", within=30)
    since = host.now
    host.run(20.0)
    assert host.granted_seconds("d1", since)["single"] > 15.0 and not gang.openings
    host.run_until(lambda: not stuck.is_in_turn, within=60)
    host.run_until(lambda: bool(gang.openings), within=2 * host.settings.time_quantum + 1)
    assert single.openings
