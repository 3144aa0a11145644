"""Tests of moves of clients to other devices, in virtual time and with the real agent rule."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.errors import Conflict, Refused
from jupyter_gpushare.core.base.memory_use import MemoryUse
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.placement import PlacementRequest

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .simulated_process import CLOSED, OPEN, SimulatedProcess

GIB = 1 << 30
CONTEXT = 1 << 20


@pytest.fixture
def two(make_host: MakeHost) -> SimulatedHost:
    host = make_host("d0", "d1")
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    return host


def host_device(uuid: str, name: str = "H200") -> DeviceInfo:
    return DeviceInfo(uuid, name, GIB)


def move(host: SimulatedHost, client: str, device: str = "d1") -> None:
    host.handle_event(ev.MoveRequested(client, device))


def end_of(host: SimulatedHost, client: str) -> cmd.FinishMove:
    """Run until the client's move has ended, and return how."""
    host.run_until(lambda: any(isinstance(one, cmd.FinishMove) for one in host.commands))
    host.run(0.5)
    (end,) = (one for one in host.commands if isinstance(one, cmd.FinishMove))
    assert end.client == client
    assert host.scheduler.clients[client].moving_to == ""
    return end


def devices(host: SimulatedHost, client: str) -> tuple[str, ...]:
    return host.scheduler.clients[client].devices


def report(host: SimulatedHost, client: str, resident: int, unmovable: int = 0, allocated: int = 0) -> None:
    """Report memory on the client's first device, with 1 MiB of contexts besides."""
    use = MemoryUse(
        (allocated or resident) + CONTEXT, resident + CONTEXT, unmovable=unmovable + CONTEXT, context=CONTEXT
    )
    uuid = host.scheduler.clients[client].devices[0]
    host.handle_event(
        ev.MemoryReported(client, use.allocated, use.resident, use.unmovable, context=CONTEXT, by_device={uuid: use})
    )


def test_an_idle_client_moves_at_once(two: SimulatedHost) -> None:
    process = two.add_process("a", "d0")
    move(two, "a")
    assert end_of(two, "a") == cmd.FinishMove("a", "d1")
    assert (devices(two, "a"), process.gate) == (("d1",), "closed")
    placement = two.scheduler.placement_adapter.placement
    assert (placement.clients_on("d0"), placement.clients_on("d1")) == ((), ("a",))
    two.wait_at_gate(process)
    assert two.running("d1") == "a"


def permit_at_the_gate(host: SimulatedHost, process: SimulatedProcess) -> cmd.Permit:
    """Report that a thread waits at the gate, and return the permit that follows."""
    commands = host.scheduler.handle(ev.GateWaitStarted(process.number), host.now)
    (permit,) = (one for one in commands if isinstance(one, cmd.Permit))
    return permit


def test_a_process_that_no_longer_waits_enters_its_turn_on_both_devices(two: SimulatedHost) -> None:
    """The report that the process waits no longer can arrive before the report that the process has entered."""
    process = two.add_process("a", "d0")
    report(two, "a", GIB // 2)
    handle = two.scheduler.handle
    handle(ev.MoveRequested("a", "d1"), two.now)
    permit = permit_at_the_gate(two, process)
    handle(ev.GateWaitEnded(process.number), two.now)
    handle(ev.TurnEntered(process.number, permit.turn, two.now), two.now)
    client = two.scheduler.clients["a"]
    assert client.grant and client.grant.devices == ("d0", "d1")
    assert client.evicted


def test_a_process_enters_by_an_earlier_permit_for_both_devices(two: SimulatedHost) -> None:
    """The process enters while a later permit, with another turn, is on its way."""
    process = two.add_process("a", "d0")
    report(two, "a", GIB // 2)
    handle = two.scheduler.handle
    handle(ev.MoveRequested("a", "d1"), two.now)
    first = permit_at_the_gate(two, process)
    handle(ev.GateWaitEnded(process.number), two.now)
    later = permit_at_the_gate(two, process)
    assert later.turn != first.turn and later.may
    handle(ev.TurnEntered(process.number, first.turn, two.now), two.now)
    handle(ev.GateWaitEnded(process.number), two.now)
    handle(ev.EvictionStarted(process.number), two.now)
    client = two.scheduler.clients["a"]
    assert client.grant and client.grant.devices == ("d0", "d1")
    assert client.has_started_move


def test_a_move_takes_a_turn_that_no_other_client_shares(make_host: MakeHost, two: SimulatedHost) -> None:
    mover, here, there = (
        two.add_process(name, uuid, busy=True) for name, uuid in (("a", "d0"), ("b", "d0"), ("c", "d1"))
    )
    two.run(0.3)
    move(two, "a")
    two.run_until(lambda: any(isinstance(one, cmd.StartMove) for one in two.commands))
    assert set(mover.entered) == {"d0", "d1"}
    assert not here.is_in_turn and not there.is_in_turn
    assert end_of(two, "a").error == ""
    since = two.now
    two.run(20.0)
    assert two.granted_seconds("d0", since)["b"] == pytest.approx(20.0, abs=1.0)
    assert two.granted_seconds("d1", since)["a"] == pytest.approx(10.0, abs=1.5)


def test_clients_that_share_a_device_separate_for_a_move(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", sharing="packed")
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    mover = host.add_process("a", "d0", busy=True)
    others = [host.add_process(name, uuid, busy=True) for name, uuid in (("b", "d0"), ("c", "d1"), ("d", "d1"))]
    move(host, "a")
    host.run_until(lambda: any(isinstance(one, cmd.StartMove) for one in host.commands))
    assert mover.is_in_turn and not any(one.is_in_turn for one in others)
    assert end_of(host, "a").error == ""
    host.run(1.0)
    assert mover.is_open


def test_memory_of_others_makes_room_for_what_cannot_leave(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    two.add_process("b", "d1")
    report(two, "a", resident=GIB // 2, unmovable=GIB // 2)
    report(two, "b", resident=GIB * 3 // 4)
    move(two, "a")
    two.run(1.0)
    targets = [one for one in two.commands if isinstance(one, cmd.SetResident) and one.client == "b"]
    assert targets[-1].bytes is not None and targets[-1].bytes <= GIB // 2 - GIB // 16
    assert not any(isinstance(one, cmd.StartMove) for one in two.commands), "the room is not there yet"
    report(two, "b", resident=targets[-1].bytes - CONTEXT)
    assert end_of(two, "a").error == ""


def test_movable_memory_leaves_or_has_room(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    report(two, "a", resident=GIB // 2)
    move(two, "a")
    two.run(1.0)
    assert cmd.SetResident("a", "d0", CONTEXT) in two.commands
    (start,) = (one for one in two.commands if isinstance(one, cmd.StartMove))
    assert start == cmd.StartMove("a", "d1", GIB // 16 + GIB // 2 + CONTEXT, GIB // 2 + CONTEXT)
    assert end_of(two, "a").error == ""


def test_unknown_contexts_need_a_larger_reserve(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    move(two, "a")
    two.run(0.1)
    (start,) = (one for one in two.commands if isinstance(one, cmd.StartMove))
    assert start.needed == GIB // 4


def test_a_move_without_room_ends(two: SimulatedHost) -> None:
    process = two.add_process("a", "d0")
    two.add_process("full", "d1")
    report(two, "a", resident=GIB // 2, unmovable=GIB // 2)
    report(two, "full", resident=GIB * 3 // 4, unmovable=GIB * 3 // 4)
    move(two, "a")
    assert "at most 255 MiB can be free" in end_of(two, "a").error
    assert (devices(two, "a"), process.gate) == (("d0",), "closed")
    two.add_process("later", "d1", busy=True)
    assert two.running("d1") == "later"


def test_an_error_of_the_process_ends_the_move(two: SimulatedHost) -> None:
    process = two.add_process("a", "d0")
    two.add_process("b", "d1", busy=True)
    two.run(0.1)
    move(two, "a")
    two.handle_event(ev.MoveEnded(process.number, "d1", "it cannot"))
    assert end_of(two, "a") == cmd.FinishMove("a", "d1", "it cannot")
    assert devices(two, "a") == ("d0",)
    assert two.running("d1") == "b"
    two.handle_event(ev.MoveEnded(process.number, "d1"))
    assert devices(two, "a") == ("d0",), "no move is under way"


@pytest.mark.parametrize("in_turn", [False, True])
def test_the_end_of_the_process_ends_the_move(two: SimulatedHost, in_turn: bool) -> None:
    process = two.add_process("a", "d0")
    two.add_process("b", "d1", busy=True)
    report(two, "a", resident=GIB // 2)
    two.run(0.1)
    move(two, "a")
    if in_turn:
        two.run_until(lambda: process.gate == "leaving")
    two.kill_process(process)
    assert end_of(two, "a").error.startswith("the process of client a has ended")
    assert devices(two, "a") == ("d0",)
    two.run(5.0)
    assert two.running("d1") == "b"


def test_a_client_keeps_its_share_and_its_limits_during_a_move(two: SimulatedHost) -> None:
    two.add_client("a", Quota(share=0.5, limit=0.75))
    two.add_process("a", "d0")
    move(two, "a")
    assert end_of(two, "a").error == ""
    assert two.scheduler.clients["a"].quota == Quota(share=0.5, limit=0.75)


def refusal(host: SimulatedHost, client: str, device: str, kind: type[Refused] = Conflict) -> str:
    before = devices(host, client)
    with pytest.raises(kind) as refused:
        move(host, client, device)
    assert devices(host, client) == before
    assert host.scheduler.clients[client].moving_to == ""
    return str(refused.value)


def test_a_move_without_sense_is_refused(two: SimulatedHost) -> None:
    two.add_client("no process")
    assert "gets its device at its first CUDA call" in refusal(two, "no process", "d1")
    assert "device='d7' does not exist" in refusal(two, "no process", "d7", Refused)
    two.add_process("wide", "d0", "d1")
    assert "1 processes on 2 devices: allowed is one process on one device" in refusal(two, "wide", "d1")
    two.add_process("twins", "d0")
    two.add_process("twins", "d0")
    assert "2 processes on 1 devices" in refusal(two, "twins", "d1")
    two.add_process("a", "d0")
    assert "is on device d0 already" in refusal(two, "a", "d0", Refused)
    assert "device='d7' does not exist" in refusal(two, "a", "d7", Refused)
    two.handle_event(ev.SuspendRequested("a"))
    assert "is suspended: resume it first" in refusal(two, "a", "d1")
    two.handle_event(ev.ResumeRequested("a"))
    two.handle_event(ev.DeviceFailed("d1", "fell off the bus"))
    assert "has failed (fell off the bus)" in refusal(two, "a", "d1", Refused)


def test_devices_of_other_types_are_refused(two: SimulatedHost) -> None:
    two.handle_event(ev.DeviceFound(host_device("other", "A100")))
    two.handle_event(ev.DeviceFound(DeviceInfo("slice", "H200", GIB, parent="d7")))
    two.add_process("a", "d0")
    assert "'H200', and other is 'A100'" in refusal(two, "a", "other", Refused)
    assert "MIG slice" in refusal(two, "a", "slice", Refused)


def test_a_second_move_waits_for_the_end_of_the_first(two: SimulatedHost) -> None:
    two.add_process("b", "d1", busy=True)
    two.add_process("a", "d0")
    move(two, "a")
    with pytest.raises(Conflict, match="moves to device d1 already"):
        move(two, "a", "d1")
    assert end_of(two, "a").error == ""


def test_a_share_that_the_device_has_not_left_is_refused(two: SimulatedHost) -> None:
    two.add_client("b", Quota(share=0.75))
    two.add_process("b", "d1")
    two.add_client("a", Quota(share=0.5))
    two.add_process("a", "d0")
    assert "has 0.25 of its share left" in refusal(two, "a", "d1", Refused)


def test_a_moved_client_obeys_the_settings_of_its_new_device(make_host: MakeHost) -> None:
    host = make_host("d0", "d1", devices={"d1": {"policy": "fixed_share", "time_quantum": 2.0}})
    for uuid in host.devices:
        host.handle_event(ev.DeviceFound(host_device(uuid)))
    host.add_client("a", Quota(share=0.5))
    host.add_process("a", "d0", busy=True)
    host.run(1.0)
    client = host.scheduler.clients["a"]
    assert (host.scheduler.settings_of(client).policy, client.time_limit) == ("fcfs", None)
    host.commands.clear()
    move(host, "a")
    assert end_of(host, "a") == cmd.FinishMove("a", "d1")
    assert (host.scheduler.settings_of(client).policy, host.scheduler.quantum(client)) == ("fixed_share", 2.0)
    assert client.time_limit is not None and client.time_limit.limit == 0.5
    assert cmd.UpdateQuota("a") in host.commands


def test_no_memory_comes_ahead_of_its_turn_during_a_move(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    two.add_process("next", "d1", busy=True)
    two.add_process("later", "d1", busy=True)
    for client in ("next", "later"):
        report(two, client, resident=0, allocated=GIB // 4)
    two.run(0.1)
    assert cmd.Prefetch("later", "d1", True) in two.commands
    move(two, "a")
    two.run_until(lambda: any(isinstance(one, cmd.StartMove) for one in two.commands))
    prefetches = [one for one in two.commands if isinstance(one, cmd.Prefetch)]
    assert not any({one.client: one.enabled for one in prefetches}.values())


def test_a_delayed_move_starts_again_with_room(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    two.moves.starts = False
    move(two, "a")
    two.run(0.5)
    two.handle_event(ev.MoveDelayed("a"))
    assert sum(isinstance(one, cmd.StartMove) for one in two.commands) == 1, "the coordinator would never end"
    two.run(0.2)
    assert sum(isinstance(one, cmd.StartMove) for one in two.commands) == 2
    two.moves.starts = True
    two.handle_event(ev.MoveDelayed("a"))
    assert end_of(two, "a").error == ""


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ev.DeviceFailed("d1", "fell off the bus"), "device d1 has failed (fell off the bus)"),
        (ev.SuspendRequested("a"), "the client was suspended"),
        (ev.ProcessJoined("a", 99, ("d0",)), "another process of the client uses the GPU"),
    ],
)
def test_a_move_that_has_not_started_ends(two: SimulatedHost, event: ev.Event, reason: str) -> None:
    two.add_process("a", "d0", busy=True)
    two.add_process("b", "d1", busy=True, drains_in=5.0)
    two.run(0.1)
    move(two, "a")
    two.handle_event(event)
    assert end_of(two, "a").error == reason
    assert devices(two, "a") == ("d0",)


def test_a_move_waits_two_minutes_for_its_turn(two: SimulatedHost) -> None:
    """A client that never drains has the other device; the clients of the mover's device go on afterwards."""
    two.add_process("a", "d0", busy=True)
    two.add_process("same", "d0", busy=True)
    two.add_process("stuck", "d1", busy=True, drains_in=1e9)
    two.run(0.1)
    move(two, "a")
    two.run(125.0)
    assert "within 120 s" in end_of(two, "a").error
    since = two.now
    two.run(20.0)
    assert min(two.granted_seconds("d0", since)[client] for client in ("a", "same")) > 8.0


def test_a_place_that_another_client_got_ends_the_move(two: SimulatedHost) -> None:
    two.add_client("a", Quota(share=0.5))
    two.add_process("a", "d0")
    two.add_process("b", "d1", busy=True, drains_in=1.0)
    two.run(0.1)
    move(two, "a")
    two.add_client("late", Quota(share=0.75), user="late")
    two.add_process("late", "d1")
    assert "has 0.25 of its share left" in end_of(two, "a").error


@pytest.mark.parametrize("returns", [True, False])
def test_a_process_that_has_moved_may_connect_before_its_answer(two: SimulatedHost, returns: bool) -> None:
    process = two.add_process("a", "d0")
    two.moves.starts = False
    move(two, "a")
    two.run(0.5)
    two.kill_process(process)
    if returns:
        two.add_process("a", "d1")
    two.run(11.0)
    end = end_of(two, "a")
    assert (end.error == "") == returns
    assert devices(two, "a") == (("d1",) if returns else ("d0",))


def test_labels_and_names_leave_the_present_device_out(two: SimulatedHost) -> None:
    two.handle_event(ev.ClientRegistered("a", "1000", request=PlacementRequest(affinity="pair", devices=("d0",))))
    two.add_process("a", "d0")
    move(two, "a", "H200")
    assert end_of(two, "a") == cmd.FinishMove("a", "d1")


def test_unbacked_memory_keeps_a_client(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    use = MemoryUse(GIB // 2, GIB // 2, unmovable=GIB // 2, unbacked=GIB // 4, context=CONTEXT)
    two.handle_event(ev.MemoryReported("a", GIB // 2, GIB // 2, GIB // 2, 0, GIB // 4, CONTEXT, by_device={"d0": use}))
    move(two, "a")
    assert "the host has no memory" in end_of(two, "a").error


def test_a_withdrawn_move_ends_before_its_start_only(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    other = two.add_process("other", "d1", waiting=True)
    other.busy = True
    report(two, "a", 0, unmovable=0, allocated=GIB // 10)
    move(two, "a")
    two.run(1.0)
    assert devices(two, "a") == ("d0", "d1")
    two.handle_event(ev.MoveWithdrawn("a"))
    assert end_of(two, "a").error == "its request was withdrawn"
    assert devices(two, "a") == ("d0",)
    two.handle_event(ev.MoveWithdrawn("a"))
    two.handle_event(ev.MoveWithdrawn("unknown"))
    assert len([one for one in two.commands if isinstance(one, cmd.FinishMove)]) == 1


def test_a_move_that_the_driver_has_begun_is_not_withdrawn(two: SimulatedHost) -> None:
    two.add_process("a", "d0")
    report(two, "a", 0, allocated=GIB // 10)
    move(two, "a")
    two.run_until(lambda: two.scheduler.clients["a"].has_started_move)
    two.handle_event(ev.MoveWithdrawn("a"))
    assert end_of(two, "a").error == ""
    assert devices(two, "a") == ("d1",)


def test_a_client_moves_away_from_memory_that_leaves_it_no_room(two: SimulatedHost) -> None:
    two.add_process("holder", "d0")
    report(two, "holder", 7 * GIB // 10, unmovable=7 * GIB // 10)
    process = two.add_process("a", "d0")
    report(two, "a", 0, allocated=8 * GIB // 10)
    process.busy = True
    two.wait_at_gate(process)
    two.run(1.0)
    assert process.gate == CLOSED
    move(two, "a")
    assert end_of(two, "a").error == ""
    assert devices(two, "a") == ("d1",)
    assert process.gate == OPEN
