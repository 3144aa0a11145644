"""Tests of colocated clients that need more memory than the device has, and of the client that leaves."""

from __future__ import annotations

import itertools

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.residency.residency_plan import can_make_resident

from .simulated_host import SimulatedHost
from .simulated_process import CLOSING, OPEN, SimulatedProcess

MIB = 1 << 20  # the device has 1024 MiB, and each test gives how many of them the clients find there


@pytest.fixture
def host() -> SimulatedHost:
    """Return a host with the default settings."""
    host = SimulatedHost(Settings())
    host.add_device("d")
    return host


def together(host: SimulatedHost, *sizes: int, quotas: tuple[Quota, ...] = ()) -> list[SimulatedProcess]:
    """Return processes of the clients a, b … that run, have `sizes` MiB, and have joined in this order."""
    processes = []
    for number, (name, size) in enumerate(zip("abcd", sizes, strict=False)):
        host.add_client(name, quotas[number] if quotas else None)
        processes.append(host.add_process(name, busy=True, drains_in=0.001))
        holds(host, name, size)
    assert [process.gate for process in processes] == [OPEN] * len(sizes)
    return processes


def holds(
    host: SimulatedHost, client: str, mib: int, short: int = 0, pinned: int = 0, resident: int | None = None
) -> None:
    """Report memory as a process does: what it is short of counts as allocated and resident already."""
    host.report_memory(client, mib * MIB, None if resident is None else resident * MIB, pinned * MIB, short * MIB)


def leaves(host: SimulatedHost, client: str) -> None:
    """Evict what the scheduler has asked the client to evict."""
    client_state = host.scheduler.clients[client]
    target = host.scheduler.residency.target(client, "d")
    if target is not None:
        host.report_memory(client, client_state.memory_use.allocated, target)


def open_gates(host: SimulatedHost) -> list[str]:
    return [process.client for process in host.processes.values() if process.gate == OPEN]


def overlaps(host: SimulatedHost, since: float) -> bool:
    """Return whether several clients had the device at the same time after `since`."""
    turns = [(began, until) for _, began, until in host.turns["d"]]
    turns = sorted((began, until) for began, until in turns if until > since)
    return any(later < until - 1e-9 for (_, until), (later, _) in itertools.pairwise(turns))


def test_last_joined_client_leaves_and_its_memory_makes_room(host: SimulatedHost) -> None:
    """The driver has 80 MiB of the device, which no coordinator can find out."""
    first, last = together(host, 480, 464)
    holds(host, "a", 496, short=16)
    assert (first.gate, last.gate) == (OPEN, CLOSING)
    host.run(0.01)
    assert open_gates(host) == ["a"]
    assert host.phase("b") == "waiting"
    assert host.scheduler.residency.target("b", "d") == 448 * MIB


@pytest.fixture
def separated(host: SimulatedHost) -> SimulatedHost:
    """Return a host where a runs and has found no room for more, and b, whose memory will leave, waits."""
    together(host, 480, 464)
    holds(host, "a", 496, short=16)
    host.run(0.01)
    return host


def test_one_of_two_simultaneous_requests_ends_a_turn(host: SimulatedHost) -> None:
    together(host, 480, 464)
    holds(host, "b", 480, short=16)
    holds(host, "a", 496, short=16)
    host.run(0.01)
    assert open_gates(host) == ["a"]
    assert host.phase("b") == "waiting"


def test_separated_clients_take_turns(separated: SimulatedHost) -> None:
    leaves(separated, "b")
    holds(separated, "a", 496)
    since = separated.now
    separated.run(60.0)
    turns = [client for client, began, _ in separated.turns["d"] if began > since]
    assert turns.count("a") > 2 and turns.count("b") > 2
    assert not overlaps(separated, since)


@pytest.mark.parametrize(
    ("size", "min_seconds", "max_seconds"), [(496, 500.0, 700.0), (100, 0.0, 60.0)], ids=["the same", "less"]
)
def test_colocation_is_tried_again_later_or_after_the_clients_have_shrunk(
    separated: SimulatedHost, size: int, min_seconds: float, max_seconds: float
) -> None:
    """The device may have more room by then."""
    holds(separated, "a", size)
    separated.run_until(lambda: len(open_gates(separated)) == 2, within=max_seconds)
    assert separated.now > min_seconds


@pytest.mark.parametrize(
    ("quotas", "gates"),
    [((), (OPEN, CLOSING)), ((Quota(service="offline"), Quota()), (CLOSING, OPEN))],
    ids=["the-last-even-if-it-asks-itself", "an-offline-client-first"],
)
def test_offline_or_last_joined_client_leaves(
    host: SimulatedHost, quotas: tuple[Quota, ...], gates: tuple[str, str]
) -> None:
    first, last = together(host, 480, 464, quotas=quotas)
    holds(host, "b", 480, short=16)
    assert (first.gate, last.gate) == gates


def test_only_clients_that_make_room_leave() -> None:
    host = SimulatedHost(Settings(sharing="packed"))
    host.add_device("d")
    first, second, last = together(host, 300, 300, 300)
    holds(host, "a", 316, short=16)
    assert (first.gate, second.gate, last.gate) == (OPEN, OPEN, CLOSING)
    host.run(0.01)
    leaves(host, "c")
    holds(host, "a", 316)
    host.run_until(lambda: "a" in open_gates(host))
    assert len(open_gates(host)) == 2


def test_no_client_leaves_while_idle_clients_can_make_room(host: SimulatedHost) -> None:
    host.add_process("idle", waiting=True)
    holds(host, "idle", 100)
    host.handle_event(ev.ReleaseRequested("idle"))
    host.run(0.1)
    first, last = together(host, 400, 400)
    holds(host, "a", 416, short=16)
    assert (first.gate, last.gate) == (OPEN, OPEN)
    assert host.scheduler.residency.target("idle", "d") == 84 * MIB
    leaves(host, "idle")
    holds(host, "a", 416)
    holds(host, "a", 516, short=100)  # more than the idle client has left
    assert (first.gate, last.gate) == (OPEN, CLOSING)


def test_no_client_leaves_if_no_memory_can_be_evicted(host: SimulatedHost) -> None:
    first, last = together(host, 480, 464)
    holds(host, "b", 464, pinned=464)
    holds(host, "a", 496, short=16)
    assert (first.gate, last.gate) == (OPEN, OPEN)


def test_unmovable_memory_of_idle_clients_counts(host: SimulatedHost) -> None:
    """The two clients fit on the device, but not with the unmovable memory there."""
    host.add_process("idle", waiting=True)
    holds(host, "idle", 600, pinned=600)
    host.handle_event(ev.ReleaseRequested("idle"))
    host.run(0.1)
    host.add_process("a", busy=True)
    second = host.add_process("b")
    holds(host, "a", 300)
    holds(host, "b", 300, resident=0)
    host.wait_at_gate(second)
    assert open_gates(host) == ["a"]


class TestCanMakeResident:
    def client(self, host: SimulatedHost, name: str) -> bool:
        return can_make_resident(host.scheduler.devices["d"], host.scheduler.clients[name])

    def test_movable_memory_of_others_can_make_room(self, host: SimulatedHost) -> None:
        together(host, 480, 464)
        assert self.client(host, "a")
        holds(host, "b", 464, pinned=463)
        assert self.client(host, "a")
        holds(host, "b", 464, pinned=464)
        assert not self.client(host, "a")

    def test_memory_of_others_that_is_restored_can_make_room(self, host: SimulatedHost) -> None:
        together(host, 480, 464)
        holds(host, "b", 464, resident=0)
        assert self.client(host, "a")

    def test_nothing_makes_room_beyond_the_device_and_its_unmovable_memory(self, host: SimulatedHost) -> None:
        together(host, 480, 464)
        holds(host, "b", 464, pinned=200)
        holds(host, "a", 824, short=344)
        assert self.client(host, "a")
        holds(host, "a", 825, short=345)
        assert not self.client(host, "a")

    def test_own_memory_makes_no_room(self, host: SimulatedHost) -> None:
        together(host, 480)
        assert not self.client(host, "a")


def test_last_joined_client_leaves_to_get_room_for_its_context(host: SimulatedHost) -> None:
    """A context is no allocation. The memory of the other client leaves only if that client does not run."""
    first, last = together(host, 900, 0)
    holds(host, "b", 0, short=128, resident=0)
    assert (first.gate, last.gate) == (OPEN, CLOSING)
    host.run(0.01)
    assert open_gates(host) == ["a"]
    assert host.run_until(lambda: open_gates(host) == ["b"], within=40.0) > 0
    assert host.scheduler.residency.target("a", "d") == 772 * MIB
