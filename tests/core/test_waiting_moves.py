"""Tests of moves of clients that work beside others to devices without work, in virtual time."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.placement import PlacementRequest

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import CLOSED, OPEN, SimulatedProcess
from .test_client_moves import GIB, devices, host_device, move, report
from .test_idle_moves import ends, notices

PATIENCE = 3.0  # the setting `wait_move`


@pytest.fixture
def two(make_host: MakeHost) -> SimulatedHost:
    """Return a host with two equal devices."""
    return equal_devices(make_host("d0", "d1", time_quantum=30.0))


def equal_devices(host: SimulatedHost) -> SimulatedHost:
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    return host


def start(host: SimulatedHost, *clients: str, request: PlacementRequest | None = None) -> list[SimulatedProcess]:
    """Start busy programs on the first device, which placement has chosen for them at their first CUDA call."""
    processes = []
    for client in clients:
        host.handle_event(ev.ClientRegistered(client, "1000", client, Quota(), request=request))
        host.handle_event(ev.DevicesRequested(client))
        processes.append(host.add_process(client, "d0", busy=True))
    return processes


def test_a_waiting_client_moves_while_the_other_client_goes_on(two: SimulatedHost) -> None:
    start(two, "a", "b")
    two.run(PATIENCE + 2.0)
    assert ends(two) == [cmd.FinishMove("b", "d1")]
    assert (devices(two, "a"), devices(two, "b")) == (("d0",), ("d1",))
    assert two.granted_seconds("d0")["a"] == pytest.approx(two.now, abs=0.01)
    since = two.now
    two.run(20.0)
    assert two.granted_seconds("d1", since)["b"] == pytest.approx(20.0, abs=0.1)
    assert notices(two, "b") == []


def test_waits_of_short_turns_count_together(make_host: MakeHost) -> None:
    host = equal_devices(make_host("d0", "d1", time_quantum=0.5))
    start(host, "a", "b")
    host.run(4 * PATIENCE)
    assert len(ends(host)) == 1
    assert {devices(host, "a"), devices(host, "b")} == {("d0",), ("d1",)}


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_no_client_moves_before_its_time(make_host: MakeHost, seconds: float) -> None:
    host = equal_devices(make_host("d0", "d1", wait_move=seconds))
    start(host, "a", "b")
    host.run(100.0)
    assert ends(host) == []


def test_a_client_with_a_chosen_device_stays(two: SimulatedHost) -> None:
    """A user has chosen the device by a request, or in the environment of the program."""
    start(two, "a", "b", request=PlacementRequest(devices=("d0",)))
    two.add_process("c", "d0", busy=True)
    two.run(100.0)
    assert ends(two) == []


def test_a_kernel_that_restarts_with_a_chosen_device_stays(two: SimulatedHost) -> None:
    """The process after the restart requests no devices, because its user has chosen the device."""
    two.add_client("a")
    two.handle_event(ev.DevicesRequested("a"))
    assert two.scheduler.clients["a"].is_placed
    two.handle_event(ev.ClientRegistered("a", "1000", "a"))
    for client in ("a", "b"):
        two.add_process(client, "d0", busy=True)
    two.run(100.0)
    assert ends(two) == []


def test_a_client_with_unified_memory_stays(two: SimulatedHost) -> None:
    start(two, "a", "b")
    for client in ("a", "b"):
        two.handle_event(ev.MemoryReported(client, 1 << 20, 0, can_spill=True))
    two.run(100.0)
    assert ends(two) == []


def test_no_client_moves_to_a_failed_device_or_one_of_another_type(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", "d2")
    for uuid, name in (("d0", "H200"), ("d1", "H200"), ("d2", "A100")):
        host.handle_event(ev.DeviceFound(host_device(uuid, name)))
    host.handle_event(ev.DeviceFailed("d1", "gone"))
    start(host, "a", "b")
    host.run(100.0)
    assert ends(host) == []
    host.handle_event(ev.DeviceRecovered("d1"))
    host.run(10.0)
    assert len(ends(host)) == 1


def test_a_client_that_comes_to_the_free_device_first_ends_the_move(two: SimulatedHost) -> None:
    """A program outside of this coordinator has the other device until a client of this coordinator comes there."""
    start(two, "a", "b")
    two.lock_by_other("d1")
    two.run_until(lambda: two.scheduler.clients["b"].moving_to == "d1")
    two.add_process("c", "d1", busy=True)
    two.run(0.5)
    (end,) = ends(two)
    assert end.error == "another client has come to the other device first"
    assert devices(two, "b") == ("d0",)


def test_a_client_moves_when_the_lock_of_the_free_device_is_free_again(two: SimulatedHost) -> None:
    """A process that has been killed has its lock for some time yet, so the client has no turn there at first."""
    start(two, "a", "b")
    two.lock_by_other("d1")
    two.run_until(lambda: bool(ends(two)))
    two.unlock_by_other("d1")
    two.run(2 * PATIENCE + 10.0)
    assert [end.error for end in ends(two)] == ["another client has come to the other device first", ""]
    assert {devices(two, "a"), devices(two, "b")} == {("d0",), ("d1",)}


def test_a_process_that_the_driver_does_not_restore_returns_to_its_device(two: SimulatedHost) -> None:
    first, second = start(two, "a", "b")
    two.moves.starts = False
    two.run_until(lambda: any(isinstance(command, cmd.StartMove) for command in two.commands))
    (command,) = [one for one in two.commands if isinstance(one, cmd.StartMove)]
    assert command.leaves_others
    two.moves.starts = True
    second.hibernated = 1 << 20
    two.moves.refuse(second, "could not move, returns")
    assert two.scheduler.clients["b"].hibernated
    two.run_until(lambda: not two.scheduler.clients["b"].hibernated)
    assert first.alive and devices(two, "b") == ("d0",)
    two.run_until(lambda: second.is_open)
    two.run(60.0)
    errors = [end.error for end in ends(two) if end.client == "b"]
    assert errors == ["could not move, returns", ""], "the second one is of the return"


def test_an_ended_process_ends_its_move_and_frees_the_device(two: SimulatedHost) -> None:
    _, second = start(two, "a", "b")
    two.moves.starts = False
    two.run_until(lambda: second.is_in_turn)
    assert two.running("d0") == "a"
    two.kill_process(second)
    other = two.add_process("c", "d1", busy=True)
    two.run_until(lambda: other.is_open, within=1.0)


def test_a_requested_move_replaces_the_move(make_host: MakeHost) -> None:
    host = equal_devices(make_host("d0", "d1", "d2", time_quantum=30.0))
    start(host, "a", "b")
    host.moves.starts = False
    host.run_until(lambda: host.scheduler.clients["b"].moving_to == "d1")
    host.moves.starts = True
    move(host, "b", "d2")
    host.run(60.0)
    assert devices(host, "b") == ("d2",)
    assert [end.device for end in ends(host)] == ["d1", "d2"]


def test_one_of_two_colocated_clients_with_long_work_moves(make_host: MakeHost) -> None:
    host = equal_devices(make_host("d0", "d1", sharing="auto"))
    start(host, "a", "b")
    host.run(8.0)
    assert host.phase("a") == host.phase("b") == "running"
    assert ends(host) == []
    host.run(8.0)
    assert len(ends(host)) == 1
    assert {devices(host, "a"), devices(host, "b")} == {("d0",), ("d1",)}


@pytest.mark.parametrize("resident", [0, GIB // 5])
def test_a_client_moves_away_from_memory_that_leaves_it_no_room(two: SimulatedHost, resident: int) -> None:
    two.add_process("holder", "d0")
    report(two, "holder", 6 * GIB // 10, unmovable=6 * GIB // 10)
    two.handle_event(ev.ClientRegistered("a", "1000", "a", Quota()))
    two.handle_event(ev.DevicesRequested("a"))
    process = two.add_process("a", "d0")
    report(two, "a", resident, allocated=6 * GIB // 10)
    process.busy = True
    two.wait_at_gate(process)
    two.run(PATIENCE - 0.5)
    assert process.gate == CLOSED
    two.run(2.0)
    assert ends(two) == [cmd.FinishMove("a", "d1")]
    assert devices(two, "a") == ("d1",)
    assert process.gate == OPEN
