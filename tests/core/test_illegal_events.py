"""Tests of illegal events, which raise and change nothing, and of quotas and settings that are refused."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from jupyter_gpushare.core.base.errors import Conflict, IllegalEvent, Refused, UnknownClient
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev

from .conftest import MakeHost
from .simulated_host import SimulatedHost, baseline


def frozen(thing: Any, numbers: dict[int, int] | None = None) -> Any:
    """Return the whole state below `thing` as plain values, with cycles by number, to compare before and after."""
    numbers = {} if numbers is None else numbers
    if isinstance(thing, (str, int, float, bool, type(None))):
        return thing
    if isinstance(thing, type) or callable(thing):
        return getattr(thing, "__qualname__", "callable")
    if id(thing) in numbers:
        return f"#{numbers[id(thing)]}"
    numbers[id(thing)] = len(numbers)
    if isinstance(thing, dict):
        return [(frozen(key, numbers), frozen(value, numbers)) for key, value in thing.items()]
    if isinstance(thing, (set, frozenset)):
        return sorted(map(repr, thing))
    if isinstance(thing, (list, tuple)) or type(thing).__name__ == "deque":
        return [frozen(item, numbers) for item in thing]
    if is_dataclass(thing):
        return [type(thing).__name__, *(frozen(getattr(thing, field.name), numbers) for field in fields(thing))]
    names = vars(thing) if hasattr(thing, "__dict__") else type(thing).__slots__
    return [type(thing).__name__, *(frozen(getattr(thing, name), numbers) for name in names)]


@pytest.fixture
def busy(make_host: MakeHost) -> SimulatedHost:
    """Return a host with a client in each state: running, waiting, draining, idle, and with its device locked."""
    host = make_host("d1", "d2", "d3")
    host.lock_by_other("d3")
    host.add_process("runs", "d1", busy=True)
    host.add_process("waits", "d1", busy=True)
    host.add_process("drains", "d2", drains_in=50, waiting=True)
    host.add_process("waits too", "d2", busy=True)
    host.add_process("kept out", "d3", busy=True)
    host.add_process("idle", "d1")
    host.add_client("no process")
    host.handle_event(ev.CellStarted("runs", "1"))
    host.run(0.5)
    host.handle_event(ev.ReleaseRequested("drains"))
    return host


OF_NO_PROCESS: list[ev.Event] = [
    *(
        kind(999)
        for kind in (ev.ProcessGone, ev.GateWaitStarted, ev.GateWaitEnded, ev.EvictionStarted, ev.RestoreFinished)
    ),
    *(kind(999) for kind in (ev.ProcessIdle, ev.ProcessBusy)),
    ev.MoveEnded(999, "d1"),
    ev.TurnEntered(999, 1 << 40, 0.0),
    ev.GateClosed(999, 1 << 40, 0.0),
    ev.TurnLeft(999, 1 << 40),
]
OF_NO_CLIENT: list[ev.Event] = [
    *(
        kind("unknown")
        for kind in (ev.ClientRemoved, ev.ReleaseRequested, ev.EvictRequested, ev.SuspendRequested, ev.ResumeRequested)
    ),
    ev.SuspendRequested("unknown", by_policy=True),
    ev.ProcessJoined("unknown", 999, ("d1",)),
    ev.MemoryReported("unknown", 1, 1),
    ev.Progress("unknown", 1, 1, 1.0),
    ev.CellStarted("unknown", "1"),
    ev.CellEnded("unknown", "1"),
    ev.HoldRequested("unknown", 1.0),
    ev.QuotaChanged("unknown", Quota()),
    ev.PermitUnused("unknown", stopped=True),
    ev.DevicesRequested("unknown"),
    ev.MoveRequested("unknown", "d1"),
    ev.MoveDelayed("unknown"),
]
OF_NO_DEVICE: list[ev.Event] = [ev.DeviceFailed("d9", "lost"), ev.DeviceRecovered("d9")]
ILLEGAL: list[tuple[ev.Event, type[Exception], str]] = [
    *((event, IllegalEvent, "no process 999") for event in OF_NO_PROCESS),
    *((event, UnknownClient, "no client 'unknown'") for event in OF_NO_CLIENT),
    *((event, IllegalEvent, "no device d9") for event in OF_NO_DEVICE),
    (ev.LockContended("nothing", True), IllegalEvent, "device nothing is unknown"),
    (ev.ClientRegistered("runs", "1001"), IllegalEvent, "belongs to user '1000'"),
    (ev.ClientRemoved("runs"), IllegalEvent, "still has processes"),
    (ev.ClientRemoved("idle"), IllegalEvent, "still has processes"),
    (ev.ProcessJoined("runs", 1, ("d1",)), IllegalEvent, "joined already"),
    (ev.ProcessJoined("waits", 1, ("d1",)), IllegalEvent, "joined already"),
    (ev.ProcessJoined("runs", 999, ("d1", "d9")), IllegalEvent, "unknown devices ['d9']"),
    (ev.ProcessJoined("runs", 999, ()), IllegalEvent, "no device"),
    (
        ev.QuotaChanged("runs", Quota(memory=100), allocated=101),
        Conflict,
        "memory=100B is below what is allocated now, 101 B: free some first, or ask for at least 101 B",
    ),
]


@pytest.mark.parametrize(("event", "error", "message"), ILLEGAL, ids=[f"{e}"[:60] for e, _, _ in ILLEGAL])
def test_invalid_event_raises_and_changes_nothing(
    busy: SimulatedHost, event: ev.Event, error: type[Exception], message: str
) -> None:
    before = frozen(busy.scheduler)
    with pytest.raises(error, match=re.escape(message)):
        busy.handle_event(event)
    assert frozen(busy.scheduler) == before
    busy.run(30)


def test_frozen_covers_the_whole_state(busy: SimulatedHost) -> None:
    """`frozen` covers the whole state: it detects the change of one field of one process."""
    before = frozen(busy.scheduler)
    busy.scheduler.processes[1].left_epoch = 12345
    assert frozen(busy.scheduler) != before


def test_time_does_not_go_back(busy: SimulatedHost) -> None:
    before = frozen(busy.scheduler)
    with pytest.raises(IllegalEvent, match="time went back"):
        busy.scheduler.handle(ev.Tick(), busy.now - 0.1)
    assert frozen(busy.scheduler) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 2.0}, "share=2 is out of range: allowed is a fraction from 0 to 1"),
        ({"share": -0.1}, "share=-0.1 is out of range"),
        ({"share": float("nan")}, "share=nan is out of range"),
        ({"limit": float("inf")}, "limit=inf is out of range"),
        ({"limit": 0.0}, "limit=0 is out of range"),
        ({"share": 0.6, "limit": 0.5}, "share=0.6 is above limit=0.5"),
        ({"memory": -1}, "memory=-1 is out of range: allowed is a size from 1 MiB"),
        ({"memory": 0}, "memory=0 is out of range"),
        ({"memory": 1 << 62}, "is out of range"),
        ({"resident": -5}, "resident=-5 is out of range"),
        ({"service": "platinum"}, "service='platinum' is unknown: allowed are online, offline"),
        ({"colour": 1}, "unknown quota key 'colour': allowed are share, limit, memory, resident, service"),
    ],
)
def test_quotas_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        Quota().with_changes(changes)


def test_a_quota_changes_only_where_asked() -> None:
    quota = Quota(share=0.2, memory=1 << 30).with_changes({"limit": 0.5})
    assert quota == Quota(share=0.2, limit=0.5, memory=1 << 30)


def test_memory_may_be_lowered_to_what_is_allocated(host: SimulatedHost) -> None:
    host.add_client("a", Quota(memory=1000))
    host.handle_event(ev.QuotaChanged("a", Quota(memory=500), allocated=500))
    assert host.scheduler.clients["a"].quota.memory == 500


def test_other_fields_change_though_more_is_allocated_than_the_limit(host: SimulatedHost) -> None:
    """The limit may have been exceeded before, under an earlier coordinator."""
    host.add_client("a", Quota(memory=500))
    host.handle_event(ev.QuotaChanged("a", Quota(memory=500, share=0.5), allocated=900))
    host.handle_event(ev.QuotaChanged("a", Quota(), allocated=900))
    assert host.scheduler.clients["a"].quota == Quota()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"time_quantum": float("nan")}, "time_quantum=nan is out of range: allowed are"),
        ({"overrun_after": 0.0}, "overrun_after=0 is out of range: allowed are"),
        ({"idle_suspend": "auto"}, "idle_suspend='auto' is not a number: allowed are"),
        ({"policy": "no such policy"}, "policy='no such policy' is unknown: allowed are interactive, fair"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], message: str) -> None:
    """The complete list of invalid values is `BAD` in `tests/coordinator/test_live_settings.py`."""
    with pytest.raises(Refused, match=message):
        baseline(**values)
