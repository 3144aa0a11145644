"""Tests of moves of clients off devices that have failed, and of the notices to their users."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import events as ev

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import SimulatedProcess
from .test_client_moves import GIB, devices, end_of, host_device, move
from .test_idle_moves import notices
from .test_waiting_moves import equal_devices


@pytest.fixture
def two(make_host: MakeHost) -> SimulatedHost:
    """Return a host with two equal devices."""
    return equal_devices(make_host("d0", "d1"))


def test_a_move_leaves_a_failed_device(two: SimulatedHost) -> None:
    process: SimulatedProcess = two.add_process("a", "d0")
    two.handle_event(ev.DeviceFailed("d0", "maintenance"))
    move(two, "a")
    assert end_of(two, "a").error == ""
    assert process.devices == devices(two, "a") == ("d1",)


@pytest.mark.parametrize(("alike", "can_spill"), [(True, False), (True, True), (False, False)])
def test_the_notice_of_a_failed_device_names_a_move_that_may_succeed(
    make_host: MakeHost, alike: bool, can_spill: bool
) -> None:
    """A client whose memory is all unified cannot move, nor can a client to a device of another type."""
    host = make_host("d0", "d1")
    for uuid, name in (("d0", "H200"), ("d1", "H200" if alike else "A100")):
        host.handle_event(ev.DeviceFound(host_device(uuid, name)))
    host.add_process("a", "d0")
    host.handle_event(ev.MemoryReported("a", GIB // 2, GIB // 2, can_spill=can_spill))
    host.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    (notice,) = notices(host, "a")
    assert "restart the kernel to get another device" in notice
    if alike and not can_spill:
        assert "%gpushare move 1 (in a terminal: jupyter gpushare move a 1)" in notice
        move(host, "a", "1")
        assert end_of(host, "a").error == ""
    else:
        assert "gpushare move" not in notice


def test_clients_in_use_leave_a_device_that_an_admin_takes_out_of_use(two: SimulatedHost) -> None:
    """A client with unified memory stays, and its user gets the reason."""
    first, second, third = (two.add_process(client, "d0", busy=True) for client in "abc")
    two.handle_event(ev.MemoryReported("c", 1 << 20, 0, can_spill=True))
    two.handle_event(ev.DeviceFailed("d0", "maintenance", works=True))
    two.run(30.0)
    assert [devices(two, client) for client in "abc"] == [("d1",), ("d1",), ("d0",)]
    for client in "ab":
        assert notices(two, client) == [
            "device H200 has failed: maintenance; the client moves to device 1 (H200)",
            "moved to device 1 (H200), because its device has failed",
        ]
    (notice,) = notices(two, "c")
    assert notice.endswith("no move is possible, because the driver moves no unified memory")
    since = two.now
    two.run(10.0)
    assert two.granted_seconds("d1", since)["a"] == pytest.approx(5.0, abs=1.1)
    assert all(process.alive for process in (first, second, third))


def test_a_client_that_is_about_to_move_leaves_a_failed_device(two: SimulatedHost) -> None:
    """Such a client would stay if the other device got work before its move. The move off a failed device goes on."""
    for name in "ab":
        two.add_process(name, "d0", busy=True)
    client = two.scheduler.clients["b"]
    two.scheduler._moves.move_to_free(client, "d1", two.now)  # as WaitingMoves does
    assert client.moves_alone and not client.has_started_move
    two.handle_event(ev.DeviceFailed("d0", "maintenance", works=True))
    assert client.moving_to == "d1" and not client.moves_alone
    two.add_process("c", "d1", busy=True)
    two.run(60.0)
    assert (devices(two, "a"), devices(two, "b")) == (("d1",), ("d1",))


def test_a_client_that_cannot_leave_a_failed_device_is_told_why(two: SimulatedHost) -> None:
    process = two.add_process("a", "d0", busy=True)
    two.moves.starts = False
    two.handle_event(ev.DeviceFailed("d0", "maintenance", works=True))
    two.moves.refuse(process, "the process uses MPS")
    assert notices(two, "a")[1:] == [
        "still on its failed device, because the process uses MPS; restart the kernel to get another device"
    ]
    assert devices(two, "a") == ("d0",)


def test_no_client_moves_by_itself_off_a_device_that_does_not_work(two: SimulatedHost) -> None:
    """One of two busy clients would move to the other device if their own had not failed."""
    for name in "ab":
        two.add_process(name, "d0", busy=True)
        two.scheduler.clients[name].is_placed = True
    two.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    two.run(30.0)
    assert (devices(two, "a"), devices(two, "b")) == (("d0",), ("d0",))
    (notice,) = notices(two, "a")
    assert "or try %gpushare move 1" in notice
