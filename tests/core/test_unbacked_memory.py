"""Tests of memory that cannot leave its device because the host has no memory for it, and of waits for room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.residency.residency_plan import blocking_clients, can_make_resident

from .conftest import QUANTUM_SECONDS, MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import CLOSED, OPEN, SimulatedProcess

MIB = 1 << 20  # the device has 1024 MiB


def holds(
    host: SimulatedHost, client: str, mib: int, unbacked: int = 0, resident: int | None = None, unmovable: int = 0
) -> None:
    """Report the memory of a client; `unmovable` comes on top of `unbacked`."""
    there = None if resident is None else resident * MIB
    host.report_memory(client, mib * MIB, there, (unmovable + unbacked) * MIB, unbacked=unbacked * MIB)


@pytest.fixture
def holder(host: SimulatedHost) -> SimulatedProcess:
    """Return the process of an idle client that has 700 MiB on the device."""
    process = host.add_process("holder", waiting=True)
    holds(host, "holder", 700)
    host.handle_event(ev.ReleaseRequested("holder"))
    host.run(0.1)
    assert process.gate == CLOSED
    return process


def waiter(host: SimulatedHost, name: str, mib: int) -> SimulatedProcess:
    """Return a process of a client that has `mib` evicted MiB and waits at the gate."""
    process = host.add_process(name)
    holds(host, name, mib, resident=0)
    process.busy = True
    host.wait_at_gate(process)
    return process


def test_no_unbacked_memory_is_asked_to_leave(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=200)
    assert waiter(host, "b", 800).gate == OPEN
    assert host.scheduler.residency.target("holder", "gpu") == 224 * MIB
    host.handle_event(ev.SuspendRequested("holder"))
    assert host.scheduler.residency.target("holder", "gpu") == 200 * MIB


def test_client_waits_until_the_host_has_memory(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=300)
    process = waiter(host, "b", 800)
    assert (process.gate, host.phase("b")) == (CLOSED, "waiting")
    host.run(100.0)
    assert process.gate == CLOSED
    assert host.scheduler.residency.target("holder", "gpu") is None, "no memory leaves in vain"
    holds(host, "holder", 700, unbacked=224)
    assert process.gate == OPEN


def end_owner(host: SimulatedHost) -> None:
    (process,) = (process for process in host.processes.values() if process.client == "holder")
    host.kill_process(process)
    host.handle_event(ev.ClientRemoved("holder"))


@pytest.mark.parametrize(
    "make_room",
    [
        lambda host: holds(host, "holder", 200, unbacked=200),
        lambda host: holds(host, "b", 700, resident=0),
        end_owner,
    ],
    ids=["the-owner-frees-memory", "the-client-frees-memory", "the-owner-ends"],
)
def test_wait_ends_with_its_cause(
    host: SimulatedHost, holder: SimulatedProcess, make_room: Callable[[SimulatedHost], None]
) -> None:
    holds(host, "holder", 700, unbacked=300)
    process = waiter(host, "b", 800)
    assert process.gate == CLOSED
    make_room(host)
    assert process.gate == OPEN


def test_later_clients_and_the_owner_run_meanwhile(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=300)
    first = waiter(host, "b", 800)
    holder.busy = True
    host.wait_at_gate(holder)
    waiter(host, "small", 600)
    since = host.now
    host.run(10 * QUANTUM_SECONDS)
    turns = [client for client, began, _ in host.turns["gpu"] if began >= since]
    assert first.gate == CLOSED
    assert min(turns.count("holder"), turns.count("small")) >= 4
    holds(host, "holder", 700)
    host.run_until(lambda: first.gate == OPEN, within=3 * QUANTUM_SECONDS)


def test_running_client_goes_on(host: SimulatedHost, holder: SimulatedProcess) -> None:
    process = waiter(host, "b", 800)
    holds(host, "holder", 700, resident=224)
    assert process.gate == OPEN
    holds(host, "holder", 700, unbacked=300, resident=300)
    host.run(10 * QUANTUM_SECONDS)
    assert process.gate == OPEN


def test_client_larger_than_the_device_waits_for_any_unbacked_memory(
    host: SimulatedHost, holder: SimulatedProcess
) -> None:
    """The client's page faults would evict that memory."""
    holds(host, "holder", 700, unbacked=1)
    process = waiter(host, "b", 3000)
    assert process.gate == CLOSED
    holds(host, "holder", 700)
    assert process.gate == OPEN


def test_memory_that_is_unmovable_by_nature_keeps_no_client_of_unified_memory_waiting(
    host: SimulatedHost, holder: SimulatedProcess
) -> None:
    """No page fault of the client evicts it."""
    holds(host, "holder", 700, unmovable=700)
    process = host.add_process("b")
    host.report_memory("b", 800 * MIB, 0, can_spill=True)
    host.wait_at_gate(process)
    assert process.gate == OPEN


def test_client_that_needs_all_of_its_memory_waits_for_unmovable_memory(
    host: SimulatedHost, holder: SimulatedProcess
) -> None:
    """The client has no turn, in which it could do nothing, so other clients run and the client is charged nothing."""
    holds(host, "holder", 700, unmovable=700)
    process = waiter(host, "b", 800)
    assert (process.gate, host.phase("b")) == (CLOSED, "waiting")
    holder.busy = True
    host.wait_at_gate(holder)
    host.run(20.0)
    client = host.scheduler.clients["b"]
    assert (holder.gate, client.gpu_seconds_at(host.now)) == (OPEN, 0.0)
    assert client.wait_seconds_at(host.now) >= 20.0
    holds(host, "holder", 200, unmovable=200)
    host.run_until(lambda: process.gate == OPEN, within=2 * QUANTUM_SECONDS)


def test_turn_ends_in_which_unmovable_memory_leaves_no_room(host: SimulatedHost, holder: SimulatedProcess) -> None:
    process = waiter(host, "b", 800)
    assert process.gate == OPEN
    holds(host, "holder", 700, unmovable=700)
    assert process.gate == OPEN, "the client may still find room"
    host.report_memory("b", 800 * MIB, 300 * MIB, unmet_bytes=500 * MIB)
    host.run_until(lambda: process.gate == CLOSED, within=1.0)
    host.report_memory("b", 800 * MIB, 300 * MIB)
    host.wait_at_gate(process)
    host.run(20.0)
    assert (process.gate, host.phase("b")) == (CLOSED, "waiting")


def test_own_unbacked_memory_keeps_no_client_waiting(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=700)
    holder.busy = True
    host.wait_at_gate(holder)
    assert holder.gate == OPEN


def test_gang_waits_for_room_on_each_of_its_devices(make_host: MakeHost) -> None:
    host = make_host("d1", "d2")
    for device in host.devices:
        host.add_process(f"on-{device}", device)
        holds(host, f"on-{device}", 700, unbacked=300)
    gang = host.add_process("gang", "d1", "d2")
    holds(host, "gang", 1600, resident=0)
    host.wait_at_gate(gang)
    single = host.add_process("single", "d1", waiting=True)
    assert (gang.gate, single.gate) == (CLOSED, OPEN), "a gang that waits for room reserves no device"
    host.handle_event(ev.ReleaseRequested("single"))
    holds(host, "on-d1", 700)
    host.run(1.0)
    assert gang.gate == CLOSED
    holds(host, "on-d2", 700)
    assert gang.gate == OPEN


def test_interrupted_wait_leaves_no_trace(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=300)
    process = waiter(host, "b", 800)
    process.busy = False
    host.stop_waiting(process)
    assert host.phase("b") == "idle"
    holds(host, "holder", 700)
    host.wait_at_gate(process)
    assert process.gate == OPEN


def test_colocated_clients_are_separated_when_memory_loses_its_backing(make_host: MakeHost) -> None:
    host = make_host(sharing="packed")
    idle = host.add_process("holder")
    holds(host, "holder", 300)
    first, second = waiter(host, "a", 400), waiter(host, "b", 500)
    assert (idle.gate, first.gate, second.gate) == (CLOSED, OPEN, OPEN)
    holds(host, "holder", 300, unbacked=300)
    assert [first.gate, second.gate].count(OPEN) == 1


@pytest.mark.parametrize(
    ("can_spill", "expected"),
    [(True, [("b", 150), ("a", 100)]), (False, [("c", 290), ("b", 150), ("a", 100)])],
)
def test_blocking_clients_are_named_by_size(
    host: SimulatedHost, can_spill: bool, expected: list[tuple[str, int]]
) -> None:
    for name, unbacked, unmovable in (("a", 100, 0), ("b", 150, 0), ("c", 0, 290), ("d", 200, 0)):
        host.add_client(name, Quota())
        host.add_process(name)
        holds(host, name, 300, unbacked=unbacked, unmovable=unmovable)
    host.scheduler.clients["d"].can_spill = can_spill
    found = blocking_clients(host.scheduler.clients["d"])
    assert [(client.id, size // MIB) for client, size in found] == expected


def test_unbacked_memory_may_make_room_later(host: SimulatedHost, holder: SimulatedProcess) -> None:
    holds(host, "holder", 700, unbacked=700)
    waiter(host, "b", 300)
    holds(host, "b", 800)
    device, client = host.scheduler.devices["gpu"], host.scheduler.clients["b"]
    assert not can_make_resident(device, client)
    assert can_make_resident(device, client, counts_unbacked=False)
