"""Tests of offline clients that run spilled: beside online clients, with only a part of their memory on the device."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess

GIB = 1 << 30  # memory of the device
LARGE = 5 * GIB // 8  # memory of a client
STEP = GIB // 128  # of limits
RESERVE = GIB // 32
RESTORE = 2.0  # seconds


def host_with(online_bytes: int = LARGE, can_spill: bool = True, **settings: object) -> SimulatedHost:
    """Return a host with a busy online client, and an offline client that wants to run."""
    host = host_of("gpu", **{"sharing": "auto", **settings})
    host.start_client("online")
    host.report_memory("online", online_bytes, can_spill=True)
    host.run(1)
    host.start_client("offline", service="offline", busy=False)
    host.report_memory("offline", LARGE, 0, can_spill=can_spill)
    host.wait_at_gate(*host.processes_of("offline"))
    host.run(1)
    return host


def limits(host: SimulatedHost) -> list[int | None]:
    return [command.bytes for command in host.commands if isinstance(command, cmd.SetTurnLimit)]


def runs(host: SimulatedHost, client: str) -> bool:
    return host.phase(client) == "running"


def evicted_clients(commands: list[cmd.Command]) -> set[str]:
    return {
        command.client for command in commands if isinstance(command, cmd.SetResident) and command.bytes is not None
    }


def pause(host: SimulatedHost) -> SimulatedProcess:
    (online,) = host.processes_of("online")
    online.busy = False
    host.report_idle(online)
    host.run(0.1)
    assert host.phase("online") == "idle"
    return online


def test_an_offline_client_gives_way_with_its_own_memory() -> None:
    host = host_with()
    assert runs(host, "online") and runs(host, "offline")
    (limit,) = limits(host)
    assert limit is not None and GIB - LARGE - RESERVE - STEP < limit <= GIB - LARGE - RESERVE
    host.report_memory("offline", LARGE, limit, can_spill=True)
    assert not evicted_clients(host.commands)


def test_the_limit_is_set_before_the_turn_begins() -> None:
    host = host_with()
    kinds = [
        type(command)
        for command in host.commands
        if getattr(command, "client", "") == "offline" and not (isinstance(command, cmd.Permit) and not command.may)
    ]
    assert kinds.index(cmd.SetTurnLimit) < kinds.index(cmd.Permit)


def test_memory_that_work_cannot_reach_off_the_device_waits() -> None:
    host = host_with(can_spill=False)
    assert runs(host, "online") and not runs(host, "offline")
    assert not limits(host)


def test_no_client_spills_where_sharing_is_exclusive() -> None:
    host = host_with(sharing="exclusive")
    assert not runs(host, "offline") and not limits(host)


def test_an_offline_client_keeps_a_quarter_of_its_memory_or_waits() -> None:
    least = LARGE // 4 + RESERVE + STEP
    assert runs(host_with(GIB - least), "offline")
    assert not runs(host_with(GIB - LARGE // 4), "offline")


def test_memory_that_fits_has_no_limit() -> None:
    host = host_with(GIB - LARGE)
    assert runs(host, "offline") and not limits(host)


def test_a_limit_follows_the_memory_of_the_online_client_within_the_turn() -> None:
    host = host_with()
    turn = host.scheduler.clients["offline"].grant
    first = limits(host)[-1]
    host.report_memory("online", LARGE + 8 * STEP)
    second = limits(host)[-1]
    assert first is not None and second == first - 8 * STEP
    host.report_memory("offline", LARGE, second, can_spill=True)
    host.report_memory("online", GIB - LARGE)
    host.run(0.01)
    assert turn is host.scheduler.clients["offline"].grant and turn is not None and not turn.is_draining
    assert limits(host)[-1] is not None, "the online client had more memory a moment ago"


def test_clients_are_separated_when_too_little_of_the_device_is_left() -> None:
    host = host_with()
    host.report_memory("online", GIB - LARGE // 8)
    host.run(0.1)
    assert runs(host, "online") and not runs(host, "offline")


def test_a_client_that_does_not_keep_its_limit_waits_for_a_whole_turn() -> None:
    host = host_with()
    spend_budget(host)
    host.report_memory("offline", LARGE, can_spill=True)
    host.run(5)
    assert runs(host, "offline") and not evicted_clients(host.commands) & {"online"}
    host.run(6)
    assert runs(host, "online") and not runs(host, "offline")
    assert limits(host)[-1] is None
    host.report_memory("offline", LARGE, GIB - LARGE, can_spill=True)
    host.run(100)
    assert runs(host, "online") and not runs(host, "offline")


def test_one_client_spills_at_a_time_beside_the_online_client() -> None:
    host = host_with(time_quantum=1.0)
    host.start_client("other", service="offline", busy=False)
    host.report_memory("other", LARGE, 0, can_spill=True)
    for process in (*host.processes_of("offline"), *host.processes_of("other")):
        process.busy = True
        host.wait_at_gate(process)
    fractions = host.fractions(20)
    assert fractions["online"] == pytest.approx(1.0, abs=0.02)
    assert fractions["offline"] + fractions["other"] == pytest.approx(1.0, abs=0.05)
    assert min(fractions["offline"], fractions["other"]) > 0.4
    assert not evicted_clients(host.commands) & {"online"}


def test_memory_of_a_paused_online_client_stays_beside_spilled_clients() -> None:
    host = host_with(time_quantum=1.0)
    spend_budget(host)
    host.start_client("other", service="offline", busy=False)
    host.report_memory("other", LARGE, 0, can_spill=True)
    for process in (*host.processes_of("offline"), *host.processes_of("other")):
        process.busy = True
        host.wait_at_gate(process)
    pause(host)
    before = len(host.commands)
    host.run(3)
    assert not evicted_clients(host.commands[before:]) & {"online"}
    assert sum(runs(host, name) for name in ("offline", "other")) == 1


def spend_budget(host: SimulatedHost) -> None:
    """Let the online client have lost time by a return of an earlier offline turn."""
    host.scheduler.clients["online"].takeover_budget.spend(RESTORE, host.now, is_return=True)


def test_the_limit_ends_in_a_pause_that_can_bear_a_return() -> None:
    host = host_with()
    spend_budget(host)
    host.report_memory("offline", LARGE, limits(host)[-1], can_spill=True)
    grant = host.scheduler.clients["offline"].grant
    pause(host)
    before = len(host.commands)
    assert runs(host, "offline") and limits(host)[-1] is not None
    host.run_until(lambda: limits(host)[-1] is None)
    assert host.scheduler.clients["offline"].grant is grant, "the turn went on"
    assert evicted_clients(host.commands[before:]) == {"online"}


def test_a_return_to_a_device_with_a_spilled_client_costs_nothing() -> None:
    host = host_with()
    spend_budget(host)
    online = pause(host)
    before = len(host.commands)
    host.run(0.5)
    host.wait_at_gate(online)
    assert runs(host, "online")
    assert not evicted_clients(host.commands[before:])


def test_a_client_that_becomes_online_has_no_limit() -> None:
    host = host_with()
    quota = host.scheduler.clients["offline"].quota.with_changes({"service": "online"})
    host.handle_event(ev.QuotaChanged("offline", quota))
    assert limits(host)[-1] is None
    host.run(1)
    assert sum(runs(host, name) for name in ("online", "offline")) == 1


def test_a_client_without_work_has_no_limit() -> None:
    host = host_with()
    (offline,) = host.processes_of("offline")
    offline.busy = False
    host.stop_waiting(offline)
    host.handle_event(ev.ReleaseRequested("offline"))
    host.run(1)
    assert host.phase("offline") == "idle"
    assert limits(host)[-1] is None
