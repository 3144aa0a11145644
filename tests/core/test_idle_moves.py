"""Tests of moves of idle clients from busy devices to devices without work, in virtual time."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.placement import PlacementRequest

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import SimulatedProcess
from .test_client_moves import devices, host_device, move

IDLE = 100.0


@pytest.fixture
def two(make_host: MakeHost) -> SimulatedHost:
    """Return a host with two equal devices, where the notebook "a" and an endless job share the first device."""
    return shared_device(make_host("d0", "d1", idle_move=IDLE))


def shared_device(host: SimulatedHost) -> SimulatedHost:
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    host.add_process("job", "d0", busy=True)
    host.add_client("a")
    host.scheduler.clients["a"].is_placed = True
    work_in_cell(host, "a", host.add_process("a", "d0"))
    return host


def work_in_cell(host: SimulatedHost, client: str, process: SimulatedProcess) -> None:
    host.start_cell(client, "cell")
    host.wait_at_gate(process)
    host.run_until(lambda: process.is_open)
    host.end_cell(client, "cell")
    host.run(1.0)
    assert not process.is_in_turn


def ends(host: SimulatedHost) -> list[cmd.FinishMove]:
    return [command for command in host.commands if isinstance(command, cmd.FinishMove)]


def notices(host: SimulatedHost, client: str) -> list[str]:
    return [one.message for one in host.commands if isinstance(one, cmd.NotifyUser) and one.client == client]


def test_an_idle_client_leaves_a_busy_device_for_a_free_one(two: SimulatedHost) -> None:
    two.run(IDLE - 5.0)
    assert (ends(two), devices(two, "a")) == ([], ("d0",))
    two.run(10.0)
    assert ends(two) == [cmd.FinishMove("a", "d1")]
    assert devices(two, "a") == ("d1",)
    assert notices(two, "a") == ["moved to device 1 (H200), which has no other work"]
    since = two.now
    two.run(20.0)
    assert two.granted_seconds("d0", since)["job"] == pytest.approx(20.0, abs=0.1)


def test_the_client_stays_on_its_new_device(two: SimulatedHost) -> None:
    two.run(50 * IDLE)
    assert ends(two) == [cmd.FinishMove("a", "d1")]


def test_no_client_moves_without_the_setting(make_host: MakeHost) -> None:
    host = shared_device(make_host("d0", "d1"))
    host.run(50 * IDLE)
    assert ends(host) == []


def test_no_client_moves_to_a_device_that_is_as_busy(two: SimulatedHost) -> None:
    job = two.add_process("other job", "d1", busy=True)
    two.run(5 * IDLE)
    assert ends(two) == []
    two.kill_process(job)
    two.run(2 * IDLE)
    assert ends(two) == [cmd.FinishMove("a", "d1")]


def test_no_client_moves_from_an_idle_device(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", idle_move=IDLE)
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    for client in ("a", "b"):
        work_in_cell(host, client, host.add_process(client, "d0"))
    host.run(50 * IDLE)
    assert ends(host) == []


def test_a_cell_ends_a_move_that_has_not_started(two: SimulatedHost) -> None:
    (process,) = two.processes_of("a")
    two.moves.starts = False
    two.run_until(lambda: two.scheduler.clients["a"].moving_to == "d1")
    two.start_cell("a", "cell")
    (end,) = ends(two)
    assert end == cmd.FinishMove("a", "d1", "a cell has begun")
    two.wait_at_gate(process)
    two.run_until(lambda: process.is_open)
    assert devices(two, "a") == ("d0",)
    assert notices(two, "a") == []


def test_a_client_that_cannot_move_is_asked_again_after_half_an_hour(two: SimulatedHost) -> None:
    (process,) = two.processes_of("a")
    two.run_until(lambda: two.scheduler.clients["a"].moving_to == "d1")
    two.handle_event(ev.MoveEnded(process.number, "d1", "its memory is unified"))
    process.moving_to = ""
    two.wake(process)
    first = two.now
    two.run_until(lambda: len(ends(two)) == 2, within=2 * 3600.0)
    assert two.now - first == pytest.approx(1800.0, abs=IDLE + 30.0)
    assert [end.error for end in ends(two)] == ["its memory is unified", ""]


def test_a_client_whose_new_device_is_of_another_type_stays(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", idle_move=IDLE)
    host.handle_event(ev.DeviceFound(host_device("d0")))
    host.handle_event(ev.DeviceFound(host_device("d1", "A100")))
    host.add_process("job", "d0", busy=True)
    work_in_cell(host, "a", host.add_process("a", "d0"))
    host.run(10 * IDLE)
    assert ends(host) == []


def test_a_user_may_move_a_client_that_has_moved_by_itself(two: SimulatedHost) -> None:
    two.run(2 * IDLE)
    assert devices(two, "a") == ("d1",)
    move(two, "a", "d0")
    two.run_until(lambda: len(ends(two)) == 2)
    two.run(0.5)
    assert devices(two, "a") == ("d0",)
    assert len(notices(two, "a")) == 1


def test_a_client_that_has_named_its_device_stays(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", idle_move=IDLE)
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    host.add_process("job", "d0", busy=True)
    host.handle_event(ev.ClientRegistered("a", "1000", "a", Quota(), request=PlacementRequest(devices=("d0",))))
    host.scheduler.clients["a"].is_placed = True
    work_in_cell(host, "a", host.add_process("a", "d0"))
    host.run(10 * IDLE)
    assert ends(host) == []


def test_a_client_whose_environment_has_a_device_stays(two: SimulatedHost) -> None:
    """Such a process requests no devices at its first CUDA call."""
    two.scheduler.clients["a"].is_placed = False
    two.run(10 * IDLE)
    assert ends(two) == []


def test_a_hold_ends_a_move_that_has_not_started(two: SimulatedHost) -> None:
    two.moves.starts = False
    two.run_until(lambda: two.scheduler.clients["a"].moving_to == "d1")
    two.handle_event(ev.HoldRequested("a", 50.0))
    assert ends(two) == [cmd.FinishMove("a", "d1", "a hold has begun")]
    assert devices(two, "a") == ("d0",)


def test_a_requested_move_replaces_a_move_of_the_policy(make_host: MakeHost) -> None:
    host = shared_device(make_host("d0", "d1", "d2", idle_move=IDLE))
    host.run_until(lambda: host.scheduler.clients["a"].moving_to != "")
    with pytest.raises(Refused, match="does not exist"):
        move(host, "a", "d9")
    assert ends(host) == []
    move(host, "a", "d2")
    host.run_until(lambda: len(ends(host)) == 2)
    assert [(end.device, end.error) for end in ends(host)] == [
        ("d1", "its user has asked for another move"),
        ("d2", ""),
    ]


def test_a_client_that_moves_makes_no_device_busy(make_host: MakeHost) -> None:
    """While "a" moves to d1, an idle client there has no reason to move to d2."""
    host = shared_device(make_host("d0", "d1", "d2", idle_move=IDLE))
    host.moves.starts = False
    host.run_until(lambda: host.scheduler.clients["a"].moving_to == "d1")
    work = host.add_process("b", "d1")
    host.scheduler.clients["b"].may_move_at = host.now
    host.run(1.0)
    assert not work.is_in_turn
    assert host.scheduler.placement_adapter.device_without_work(host.scheduler.clients["b"], host.now) is None
