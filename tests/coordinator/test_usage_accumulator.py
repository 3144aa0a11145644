"""Sums of usage, which equal the granted time of the devices.

The sums are independent of removed clients, of the times of samples and of the wall clock.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from jupyter_gpushare.coordinator.clients.process_counters import WorkCounters
from jupyter_gpushare.coordinator.monitoring import usage_accumulator
from jupyter_gpushare.coordinator.monitoring.usage_accumulator import UsageAccumulator
from jupyter_gpushare.coordinator.storage.usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.interface import events as ev

from ..core.simulated_host import SimulatedHost, baseline, host_of

NOON = 490_000 * HOUR_SECONDS


class Books:
    """Recorder of the usage of a host. Its wall clock starts at `wall` and advances with virtual time."""

    def __init__(self, host: SimulatedHost, wall: float = NOON) -> None:
        self.world = host
        self.wall = wall
        self.told: dict[UsageKey, UsageTotals] = defaultdict(UsageTotals)
        self.accumulator = UsageAccumulator(lambda key, tally: self.told[key].add(tally), lambda: self.wall + host.now)
        self.work: dict[str, dict[str, WorkCounters]] = defaultdict(dict)

    def look(self) -> None:
        for client in self.world.scheduler.clients.values():
            self.accumulator.sample(client, "", self.work[client.id], self.world.now)

    def forget(self, client: str) -> None:
        self.look()
        self.world.handle_event(ev.ClientRemoved(client))
        self.accumulator.remove(client)

    def total(self, device: str, hour: int | None = None) -> UsageTotals:
        total = UsageTotals()
        for key, tally in self.told.items():
            if key.owner.device == device and hour in (None, key.hour):
                total.add(tally)
        return total


@pytest.fixture
def books() -> Books:
    """Provide the usage of a host with the device "d"."""
    return Books(host_of("d"))


def test_totals_are_bounded_with_many_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes each pod may be a user. A user that uses a device at present must be in the totals."""
    monkeypatch.setattr(usage_accumulator, "MAX_OWNERS", 3)
    host = host_of("d1")
    books = Books(host)
    host.add_client("stays", user="stays")
    host.add_process("stays", "d1", busy=True)
    for number in range(10):
        name = f"pod-{number}"
        host.add_client(name, user=name)
        process = host.add_process(name, "d1", busy=True)
        host.run(1.0)
        books.look()
        host.kill_process(process)
        books.forget(name)
    host.run(1.0)
    books.look()
    assert "stays" in {owner.user for owner in books.accumulator.totals} and len(books.accumulator.totals) == 3
    assert len({key.owner.user for key in books.told}) > 3, "the state store lacks users"


@pytest.mark.parametrize("sharing", ["exclusive", "packed"])
@pytest.mark.parametrize("seed", range(15))
def test_granted_seconds_of_users_sum_to_those_of_devices(seed: int, sharing: str) -> None:
    chance = random.Random(seed)
    host = SimulatedHost(baseline(sharing=sharing, time_quantum=0.7))
    devices = [host.add_device("d1"), host.add_device("d2")]
    books = Books(host, wall=NOON - 20)  # an hour of the wall clock ends during the test
    waited: dict[str, float] = defaultdict(float)

    def forgotten(name: str) -> None:
        client = host.scheduler.clients[name]
        for uuid in client.devices:
            waited[uuid] += client.wait_seconds_at(host.now)
        books.forget(name)

    for _ in range(60):
        name = f"c{chance.randrange(6)}"
        mine = sorted(chance.sample(devices, chance.choice([1, 1, 2])))
        known = host.scheduler.clients.get(name)
        if known is None:
            try:
                host.add_client(name, user=chance.choice(["1000", "1001"]))
            except Refused:
                continue
            known = host.scheduler.clients[name]
        if not known.processes:
            if known.devices and chance.random() < 0.5:
                forgotten(name)
                continue
            host.add_process(name, *(known.devices or mine), busy=True, drains_in=chance.choice([0.0, 0.01]))
        elif chance.random() < 0.3:
            host.kill_process(chance.choice([p for p in host.processes.values() if p.client == name]))
        if chance.random() < 0.4:
            books.look()
        if chance.random() < 0.1:
            uuid = chance.choice(devices)
            if not host.holders(uuid):
                host.lock_by_other(uuid)
            elif "another user" in host.holders(uuid):
                host.unlock_by_other(uuid)
        host.run(chance.choice([0.0, 0.1, 1.0, 3.0]))
    for name in list(host.scheduler.clients)[::2]:
        for process in [p for p in host.processes.values() if p.client == name]:
            host.kill_process(process)
        forgotten(name)
    books.look()
    for client in host.scheduler.clients.values():
        for uuid in client.devices:
            waited[uuid] += client.wait_seconds_at(host.now)
    for uuid in devices:
        held = {client: seconds for client, seconds in host.granted_seconds(uuid).items() if client != "another user"}
        assert books.total(uuid).gpu_seconds == pytest.approx(sum(held.values()), abs=1e-6)
        assert books.total(uuid).wait_seconds == pytest.approx(waited[uuid], abs=1e-6)
    assert len({key.hour for key in books.told}) == 2


def test_a_turn_over_hours_counts_in_each(books: Books) -> None:
    """The last sample is hours ago, as after a stop of the coordinator."""
    host = books.world
    books.wall -= 600
    books.look()
    host.add_process("a", busy=True)
    books.look()
    host.run(600 + 2 * HOUR_SECONDS + 30)
    books.look()
    hour = int(NOON // HOUR_SECONDS)
    seconds = [books.total("d", hour + ahead).gpu_seconds for ahead in (-1, 0, 1, 2)]
    assert seconds == pytest.approx([600, HOUR_SECONDS, HOUR_SECONDS, 30])
    assert books.total("d").turns == books.total("d", hour - 1).turns == 1


@pytest.mark.parametrize("jump", [-30 * 86400.0, -1.0, 365 * 86400.0])
def test_a_clock_that_jumps_changes_no_sum(books: Books, jump: float) -> None:
    host = books.world
    host.add_process("a", busy=True)
    for _ in range(4):
        host.run(2.0)
        books.look()
        books.wall += jump
    assert books.total("d").gpu_seconds == pytest.approx(8.0)
    assert all(0 <= tally.gpu_seconds <= HOUR_SECONDS for tally in books.told.values())


def test_a_gang_counts_on_each_of_its_devices_and_its_bytes_once() -> None:
    host = SimulatedHost()
    devices = (host.add_device("d1"), host.add_device("d2"))
    books = Books(host)
    host.add_process("a", *devices, busy=True)
    host.run(3.0)
    books.work["a"] = WorkCounters(2_000_000_000, 1001, 7).per_device(devices)
    books.look()
    for uuid in devices:
        tally = books.total(uuid)
        assert (tally.gpu_seconds, tally.busy_seconds, tally.turns, tally.waits) == (3.0, 2.0, 1, 1)
    assert sum(books.total(uuid).evicted_bytes for uuid in devices) == 1001
    assert sum(books.total(uuid).restored_bytes for uuid in devices) == 7


def test_busy_time_is_at_most_the_granted_time(books: Books) -> None:
    host = books.world
    host.add_process("a", busy=True)
    for claimed in (10**18, 0, 10**18, 5):
        host.run(1.0)
        books.work["a"] = {"d": WorkCounters(claimed, claimed, claimed)}
        books.look()
    tally = books.total("d")
    assert tally.busy_seconds <= tally.gpu_seconds == 4.0
    assert tally.evicted_bytes == 10**18, "a counter that decreased and increased again was counted twice"


def test_waits_and_switches_are_counted_once() -> None:
    host = host_of("d", time_quantum=1.0)
    books = Books(host)
    feed = host.handle_event

    def watched(event: ev.Event) -> object:
        decided = feed(event)
        for client in host.scheduler.clients.values():
            books.accumulator.on_client_event(client)
        return decided

    host.handle_event = watched  # type: ignore[method-assign, assignment]
    for name in "ab":
        host.add_process(name, busy=True, drains_in=0.003)
    host.run(10.0)
    waits, switches = books.accumulator.waits.as_json(), books.accumulator.switches.as_json()
    turns = len(host.turns["d"])
    assert sum(waits["buckets"]) == turns + 1  # one wait per ended turn, and that of the running turn
    assert (sum(switches["buckets"]), switches["buckets"][2]) == (turns, turns)  # bucket 2 is below 4 ms
    assert switches["seconds"] == pytest.approx(turns * 0.003)


def test_usage_is_separate_for_each_owner(books: Books) -> None:
    host = books.world
    for name, tenant in (("a", "1000"), ("b", "1001")):
        host.add_client(name, user=tenant)
        host.add_process(name, busy=True)
    host.run(45.0)
    books.look()
    seconds = {owner.user: tally.gpu_seconds for owner, tally in books.accumulator.totals.items()}
    assert seconds == {"1000": 30.0, "1001": 15.0}
    assert UsageOwner("1000", "", "d") in books.accumulator.totals
