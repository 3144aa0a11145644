"""Tests of the hibernation of idle clients, in virtual time and with the real agent rule."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.errors import Conflict
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.state.model import Client

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .simulated_moves import HIBERNATED_BYTES
from .simulated_process import SimulatedProcess
from .test_client_moves import GIB, host_device, report
from .test_idle_moves import ends, notices, work_in_cell

IDLE = 100.0
HIBERNATED = cmd.FinishMove("a", "d0", hibernates=True)
RETURNED = cmd.FinishMove("a", "d0", returns=True)


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedHost:
    """Return a host with a notebook "a" on a device of 1 GiB."""
    made = make_host("d0", hibernate_after=IDLE)
    made.handle_event(ev.DeviceFound(host_device("d0")))
    work_in_cell(made, "a", made.add_process("a", "d0"))
    return made


def client_of(host: SimulatedHost, name: str = "a") -> Client:
    return host.scheduler.clients[name]


def hibernate(host: SimulatedHost) -> SimulatedProcess:
    host.run_until(lambda: HIBERNATED in host.commands, within=2 * IDLE)
    host.run(1.0)
    assert client_of(host).hibernated == HIBERNATED_BYTES
    return host.processes_of("a")[0]


def starts(host: SimulatedHost) -> list[cmd.StartMove]:
    return [command for command in host.commands if isinstance(command, cmd.StartMove)]


def test_an_idle_client_hibernates_once(host: SimulatedHost) -> None:
    host.run(IDLE - 5.0)
    assert ends(host) == []
    host.run(10.0)
    assert ends(host) == [HIBERNATED]
    assert (client_of(host).hibernated, client_of(host).phase) == (HIBERNATED_BYTES, "idle")
    host.run(50 * IDLE)
    assert ends(host) == [HIBERNATED]
    assert notices(host, "a") == ["hibernated: all of its memory has left the GPU until its next cell or GPU call"]


def test_no_client_hibernates_without_the_setting(make_host: MakeHost) -> None:
    host = make_host("d0")
    work_in_cell(host, "a", host.add_process("a", "d0"))
    host.run(50 * IDLE)
    assert ends(host) == []


@pytest.mark.parametrize("others", [1, 2])
def test_other_clients_run_while_a_client_is_hibernated(host: SimulatedHost, others: int) -> None:
    hibernate(host)
    names = [f"job {number}" for number in range(others)]
    host.start_busy(*names)
    since = host.now
    host.run(40.0)
    seconds = host.granted_seconds("d0", since)
    assert sum(seconds[name] for name in names) == pytest.approx(40.0, abs=0.5)


def test_a_call_brings_the_client_back_and_gets_a_turn(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.wait_at_gate(process)
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=10.0)
    assert ends(host) == [HIBERNATED, RETURNED]
    assert client_of(host).hibernated == 0


def test_a_cell_brings_the_client_back_before_its_first_call(host: SimulatedHost) -> None:
    hibernate(host)
    host.start_cell("a", "next")
    host.run(5.0)
    assert ends(host) == [HIBERNATED, RETURNED]


def test_the_client_hibernates_again(host: SimulatedHost) -> None:
    hibernate(host)
    host.start_cell("a", "next")
    host.run(5.0)
    host.end_cell("a", "next")
    host.run(2 * IDLE)
    assert ends(host) == [HIBERNATED, RETURNED, HIBERNATED]


def test_the_return_waits_for_its_turn(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.start_busy("job")
    host.run(5.0)
    host.wait_at_gate(process)
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=60.0)
    assert RETURNED in ends(host)


def test_a_cell_ends_a_hibernation_that_has_not_started(host: SimulatedHost) -> None:
    host.moves.starts = False
    host.run_until(lambda: client_of(host).is_hibernating, within=2 * IDLE)
    host.start_cell("a", "next")
    (process,) = host.processes_of("a")
    host.wait_at_gate(process)
    host.run_until(lambda: process.is_open)
    assert [(end.error, end.hibernates) for end in ends(host)] == [("a cell has begun", True)]


def test_a_refused_hibernation_is_tried_again_after_half_an_hour(host: SimulatedHost) -> None:
    host.moves.starts = False
    host.run_until(lambda: client_of(host).has_started_move, within=2 * IDLE)
    (process,) = host.processes_of("a")
    host.moves.refuse(process, "its memory is unified")
    host.moves.starts = True
    first = host.now
    host.run_until(lambda: HIBERNATED in host.commands, within=3600.0)
    assert host.now - first == pytest.approx(1800.0, abs=IDLE + 10.0)


def test_refused_hibernations_do_not_delay_a_suspension(make_host: MakeHost) -> None:
    host = make_host("d0", hibernate_after=IDLE, idle_suspend=2000.0)
    host.handle_event(ev.DeviceFound(host_device("d0")))
    process = host.add_process("a", "d0")
    work_in_cell(host, "a", process)
    host.moves.starts = False
    since = host.now
    for _ in range(2):
        host.run_until(lambda: client_of(host).has_started_move or client_of(host).suspended, within=1900.0)
        if client_of(host).has_started_move:
            host.moves.refuse(process, "its memory is unified")
            host.run(1.0)
    host.run_until(lambda: client_of(host).suspended, within=300.0)
    assert host.now - since == pytest.approx(2000.0, abs=10.0)


def test_a_return_waits_for_room(host: SimulatedHost) -> None:
    """Memory of another client that cannot leave the device fills it. Other clients run between the attempts."""
    process = hibernate(host)
    host.add_process("full", "d0")
    host.start_cell("full", "cell")
    report(host, "full", resident=GIB - (100 << 20), unmovable=GIB - (100 << 20))
    host.start_busy("job")
    host.wait_at_gate(process)
    since = host.now
    host.run(300.0)
    assert RETURNED not in ends(host)
    assert all(end.returns and "needs" in end.error for end in ends(host)[1:])
    assert len(notices(host, "a")) == 2
    assert host.granted_seconds("d0", since)["job"] > 200.0
    report(host, "full", resident=1 << 20)
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=120.0)
    assert ends(host)[-1] == RETURNED


def test_a_return_without_room_by_the_driver_ends_after_ten_seconds(host: SimulatedHost) -> None:
    """The reports show room, and the driver's figure does not."""
    process = hibernate(host)
    host.moves.starts = False
    host.wait_at_gate(process)
    host.run_until(lambda: len(starts(host)) == 2, within=10.0)
    first = host.now
    while not (found := ends(host)[1:]):
        host.handle_event(ev.MoveDelayed("a"))
        host.run(0.2)
    assert host.now - first == pytest.approx(10.0, abs=0.5)
    assert [(end.error, end.returns) for end in found] == [("no room has come on its device", True)]
    host.moves.starts = True
    host.run(50.0)
    assert len(ends(host)) == 2, "other clients run for a minute"
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=30.0)


def test_a_return_that_the_driver_refuses_is_the_last_one(host: SimulatedHost) -> None:
    """The driver repeats no restore that has failed, so further turns would only take time from other clients."""
    process = hibernate(host)
    host.moves.starts = False
    host.wait_at_gate(process)
    host.run_until(lambda: client_of(host).has_started_move, within=30.0)
    error = "the driver could not restore the process, which can no longer use the GPU: restart it"
    host.handle_event(ev.MoveEnded(process.number, "d0", error, HIBERNATED_BYTES))
    process.moving_to = ""
    host.wake(process)
    count = len(ends(host))
    host.run(600.0)
    assert len(ends(host)) == count
    assert notices(host, "a")[-1] == error


def test_movable_memory_of_others_makes_room_for_a_return(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.add_process("full", "d0")
    report(host, "full", resident=GIB - (2 << 20))
    host.wait_at_gate(process)
    host.run_until(lambda: client_of(host).grant is not None, within=30.0)
    host.run(1.0)
    assert starts(host)[1:] == []
    report(host, "full", resident=100 << 20, allocated=GIB - (2 << 20))
    host.run_until(lambda: RETURNED in ends(host), within=10.0)
    (start,) = starts(host)[1:]
    assert start.needed == HIBERNATED_BYTES + GIB // 16


def test_a_new_coordinator_knows_that_a_client_is_hibernated(make_host: MakeHost) -> None:
    host = make_host("d0")
    host.handle_event(ev.DeviceFound(host_device("d0")))
    host.add_client("a")
    process = host._make_process("a", ("d0",), 0.0, False)
    process.hibernated = HIBERNATED_BYTES
    host.handle_event(ev.ProcessJoined("a", process.number, process.devices, None, HIBERNATED_BYTES))
    host.wait_at_gate(process)
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=10.0)
    assert ends(host) == [RETURNED]


def test_a_suspended_client_returns_when_it_is_resumed(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.handle_event(ev.SuspendRequested("a"))
    host.wait_at_gate(process)
    host.run(60.0)
    assert RETURNED not in ends(host)
    host.handle_event(ev.ResumeRequested("a"))
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=10.0)


def test_a_suspension_of_a_client_that_returns_ends_the_attempt(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.start_busy("job")
    host.wait_at_gate(process)
    assert client_of(host).is_returning
    host.handle_event(ev.SuspendRequested("a"))
    assert not client_of(host).is_returning
    host.handle_event(ev.ResumeRequested("a"))
    host.run_until(lambda: process.is_open and not process.moving_to and not process.hibernated, within=60.0)


def test_a_client_that_returns_does_not_move(host: SimulatedHost) -> None:
    hibernate(host)
    host.moves.starts = False
    host.start_cell("a", "next")
    assert client_of(host).is_returning
    with pytest.raises(Conflict, match="returns from its hibernation"):
        host.handle_event(ev.MoveRequested("a", "d0"))


def test_a_hibernated_client_does_not_move(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", hibernate_after=IDLE, idle_move=2 * IDLE)
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    host.add_process("job", "d0", busy=True)
    work_in_cell(host, "a", host.add_process("a", "d0"))
    host.run(5 * IDLE)
    assert ends(host) == [HIBERNATED]
    with pytest.raises(Conflict, match="hibernated: run a cell first"):
        host.handle_event(ev.MoveRequested("a", "d1"))


def test_a_hibernated_process_ends(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.kill_process(process)
    host.handle_event(ev.ClientRemoved("a"))
    host.start_busy("job")
    host.run(5.0)
    assert host.running("d0") == "job"


def test_a_process_that_ends_while_it_returns_frees_the_device(host: SimulatedHost) -> None:
    process = hibernate(host)
    host.moves.starts = False
    host.wait_at_gate(process)
    host.run_until(lambda: client_of(host).has_started_move, within=10.0)
    host.kill_process(process)
    host.start_busy("job")
    host.run(30.0)
    assert host.running("d0") == "job"


def test_another_process_of_the_client_brings_the_first_one_back(host: SimulatedHost) -> None:
    process = hibernate(host)
    other = host.add_process("a", "d0", waiting=True)
    host.run(120.0)
    assert not process.hibernated
    host.wait_at_gate(other)
    host.run_until(lambda: other.is_open, within=10.0)
