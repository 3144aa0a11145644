"""Tests of sums of usage: granted time, busy time, waits and bytes, their owners and their bound."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from jupyter_gpushare.coordinator.clients.process_counters import WorkCounters
from jupyter_gpushare.coordinator.monitoring import usage
from jupyter_gpushare.coordinator.monitoring.usage import UsageAccumulator
from jupyter_gpushare.coordinator.storage.usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.interface import events as ev

from ..core.simulated_host import SimulatedHost, baseline, host_of

NOON = 490_000 * HOUR_SECONDS


class UsageRecorder:
    """Recorder of the usage of a host, with a wall clock that starts at `wall` and advances with virtual time."""

    def __init__(self, host: SimulatedHost, wall: float = NOON) -> None:
        self.host = host
        self.wall = wall
        self.recorded: dict[UsageKey, UsageTotals] = defaultdict(UsageTotals)
        self.accumulator = UsageAccumulator(
            lambda key, totals: self.recorded[key].add(totals), lambda: self.wall + host.now
        )
        self.work: dict[str, dict[str, WorkCounters]] = defaultdict(dict)

    def sample(self) -> None:
        for client in self.host.scheduler.clients.values():
            self.accumulator.sample(client, "", self.work[client.id], self.host.now)

    def remove_client(self, client: str) -> None:
        self.sample()
        self.host.handle_event(ev.ClientRemoved(client))
        self.accumulator.remove(client)

    def total(self, device: str, hour: int | None = None) -> UsageTotals:
        total = UsageTotals()
        for key, totals in self.recorded.items():
            if key.owner.device == device and hour in (None, key.hour):
                total.add(totals)
        return total


@pytest.fixture
def recorder() -> UsageRecorder:
    """Provide the usage of a host with the device "d"."""
    return UsageRecorder(host_of("d"))


def test_totals_are_bounded_with_many_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes each pod may be a user. A user that uses a device at present must be in the totals."""
    monkeypatch.setattr(usage, "MAX_OWNERS", 3)
    host = host_of("d1")
    recorder = UsageRecorder(host)
    host.add_client("stays", user="stays")
    host.add_process("stays", "d1", busy=True)
    for number in range(10):
        name = f"pod-{number}"
        host.add_client(name, user=name)
        process = host.add_process(name, "d1", busy=True)
        host.run(1.0)
        recorder.sample()
        host.kill_process(process)
        recorder.remove_client(name)
    host.run(1.0)
    recorder.sample()
    assert "stays" in {owner.user for owner in recorder.accumulator.totals} and len(recorder.accumulator.totals) == 3
    assert len({key.owner.user for key in recorder.recorded}) > 3, "the state store lacks users"


@pytest.mark.parametrize("sharing", ["exclusive", "packed"])
@pytest.mark.parametrize("seed", range(15))
def test_granted_seconds_of_users_sum_to_those_of_devices(seed: int, sharing: str) -> None:
    rng = random.Random(seed)
    host = SimulatedHost(baseline(sharing=sharing, time_quantum=0.7))
    devices = [host.add_device("d1"), host.add_device("d2")]
    recorder = UsageRecorder(host, wall=NOON - 20)  # an hour of the wall clock ends during the test
    waited: dict[str, float] = defaultdict(float)

    def remove(name: str) -> None:
        client = host.scheduler.clients[name]
        for uuid in client.devices:
            waited[uuid] += client.wait_seconds_at(host.now)
        recorder.remove_client(name)

    for _ in range(60):
        name = f"c{rng.randrange(6)}"
        mine = sorted(rng.sample(devices, rng.choice([1, 1, 2])))
        known = host.scheduler.clients.get(name)
        if known is None:
            try:
                host.add_client(name, user=rng.choice(["1000", "1001"]))
            except Refused:
                continue
            known = host.scheduler.clients[name]
        if not known.processes:
            if known.devices and rng.random() < 0.5:
                remove(name)
                continue
            host.add_process(name, *(known.devices or mine), busy=True, drains_in=rng.choice([0.0, 0.01]))
        elif rng.random() < 0.3:
            host.kill_process(rng.choice([p for p in host.processes.values() if p.client == name]))
        if rng.random() < 0.4:
            recorder.sample()
        if rng.random() < 0.1:
            uuid = rng.choice(devices)
            if not host.locks.holders(uuid):
                host.lock_by_other(uuid)
            elif "another user" in host.locks.holders(uuid):
                host.unlock_by_other(uuid)
        host.run(rng.choice([0.0, 0.1, 1.0, 3.0]))
    for name in list(host.scheduler.clients)[::2]:
        for process in [p for p in host.processes.values() if p.client == name]:
            host.kill_process(process)
        remove(name)
    recorder.sample()
    for client in host.scheduler.clients.values():
        for uuid in client.devices:
            waited[uuid] += client.wait_seconds_at(host.now)
    for uuid in devices:
        granted = {
            client: seconds for client, seconds in host.granted_seconds(uuid).items() if client != "another user"
        }
        assert recorder.total(uuid).gpu_seconds == pytest.approx(sum(granted.values()), abs=1e-6)
        assert recorder.total(uuid).wait_seconds == pytest.approx(waited[uuid], abs=1e-6)
    assert len({key.hour for key in recorder.recorded}) == 2


def test_a_turn_over_hours_counts_in_each(recorder: UsageRecorder) -> None:
    """The last sample is hours ago, as after a stop of the coordinator."""
    host = recorder.host
    recorder.wall -= 600
    recorder.sample()
    host.add_process("a", busy=True)
    recorder.sample()
    host.run(600 + 2 * HOUR_SECONDS + 30)
    recorder.sample()
    hour = int(NOON // HOUR_SECONDS)
    seconds = [recorder.total("d", hour + ahead).gpu_seconds for ahead in (-1, 0, 1, 2)]
    assert seconds == pytest.approx([600, HOUR_SECONDS, HOUR_SECONDS, 30])
    assert recorder.total("d").turns == recorder.total("d", hour - 1).turns == 1


@pytest.mark.parametrize("jump", [-30 * 86400.0, -1.0, 365 * 86400.0])
def test_a_clock_that_jumps_changes_no_sum(recorder: UsageRecorder, jump: float) -> None:
    host = recorder.host
    host.add_process("a", busy=True)
    for _ in range(4):
        host.run(2.0)
        recorder.sample()
        recorder.wall += jump
    assert recorder.total("d").gpu_seconds == pytest.approx(8.0)
    assert all(0 <= totals.gpu_seconds <= HOUR_SECONDS for totals in recorder.recorded.values())


def test_a_gang_counts_on_each_of_its_devices_and_its_bytes_once() -> None:
    host = SimulatedHost()
    devices = (host.add_device("d1"), host.add_device("d2"))
    recorder = UsageRecorder(host)
    host.add_process("a", *devices, busy=True)
    host.run(3.0)
    recorder.work["a"] = WorkCounters(2_000_000_000, 1001, 7).per_device(devices)
    recorder.sample()
    for uuid in devices:
        totals = recorder.total(uuid)
        assert (totals.gpu_seconds, totals.busy_seconds, totals.turns, totals.waits) == (3.0, 2.0, 1, 1)
    assert sum(recorder.total(uuid).evicted_bytes for uuid in devices) == 1001
    assert sum(recorder.total(uuid).restored_bytes for uuid in devices) == 7


def test_busy_time_is_at_most_the_granted_time(recorder: UsageRecorder) -> None:
    host = recorder.host
    host.add_process("a", busy=True)
    for claimed in (10**18, 0, 10**18, 5):
        host.run(1.0)
        recorder.work["a"] = {"d": WorkCounters(claimed, claimed, claimed)}
        recorder.sample()
    totals = recorder.total("d")
    assert totals.busy_seconds <= totals.gpu_seconds == 4.0
    assert totals.evicted_bytes == 10**18, "a counter that decreased and increased again was counted twice"


def test_waits_and_switches_are_counted_once() -> None:
    host = host_of("d", time_quantum=1.0)
    recorder = UsageRecorder(host)
    handle_event = host.handle_event

    def watched(event: ev.Event) -> object:
        commands = handle_event(event)
        for client in host.scheduler.clients.values():
            recorder.accumulator.on_client_event(client)
        return commands

    host.handle_event = watched  # type: ignore[method-assign, assignment]
    for name in "ab":
        host.add_process(name, busy=True, drains_in=0.003)
    host.run(10.0)
    waits, switches = recorder.accumulator.waits.as_json(), recorder.accumulator.switches.as_json()
    turns = len(host.turns["d"])
    assert sum(waits["buckets"]) == turns + 1  # one wait per ended turn, and that of the running turn
    assert (sum(switches["buckets"]), switches["buckets"][2]) == (turns, turns)  # bucket 2 is below 4 ms
    assert switches["seconds"] == pytest.approx(turns * 0.003)


def test_usage_is_separate_for_each_owner(recorder: UsageRecorder) -> None:
    host = recorder.host
    for name, tenant in (("a", "1000"), ("b", "1001")):
        host.add_client(name, user=tenant)
        host.add_process(name, busy=True)
    host.run(45.0)
    recorder.sample()
    seconds = {owner.user: totals.gpu_seconds for owner, totals in recorder.accumulator.totals.items()}
    assert seconds == {"1000": 30.0, "1001": 15.0}
    assert UsageOwner("1000", "", "d") in recorder.accumulator.totals
