"""Tests of coordinators of two users that share a device by its lock only: their clients alternate turns."""

from __future__ import annotations

from itertools import combinations

import pytest

from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS, MakeHost
from .device_locks import OTHER_USER
from .simulated_host import SimulatedHost

POLL_SECONDS = 0.1  # between two checks of a coordinator for waiting clients of other coordinators
GAP_SECONDS = 0.1  # for which a coordinator leaves the device to such clients


def set_lock_contended(host: SimulatedHost, contended: bool = True, uuid: str = "gpu") -> None:
    host.handle_event(ev.LockContended(uuid, contended))


class Pair:
    """Two simulated hosts on one device, whose schedulers have no connection with each other."""

    def __init__(self, *hosts: SimulatedHost) -> None:
        self.hosts = hosts
        for host in hosts:
            self._poll(host)

    def _poll(self, host: SimulatedHost) -> None:
        device = host.scheduler.devices["gpu"]
        is_contended = bool(device.grants or device.yielded_until) and any(map(self._waits, self._other_hosts(host)))
        if is_contended != (device.lock_contended_since is not None):
            set_lock_contended(host, is_contended)
        host.call_after(0.01 if device.yielded_until else POLL_SECONDS, lambda: self._poll(host))

    def _other_hosts(self, host: SimulatedHost) -> list[SimulatedHost]:
        return [other for other in self.hosts if other is not host]

    @staticmethod
    def _waits(host: SimulatedHost) -> bool:
        device = host.scheduler.devices["gpu"]
        return device.taken_by_other_since is not None and bool(device.queue)

    def process(self, number: int, name: str) -> None:
        self.hosts[number].add_process(name, busy=True)
        self._write_lock_contention(self.hosts[number])

    def run(self, seconds: float) -> None:
        end = self.hosts[0].now + seconds
        while True:
            moments = ((host.next_moment()[0], host) for host in self.hosts)
            moment, first = min(((at, host) for at, host in moments if at is not None), key=lambda pair: pair[0])
            if moment > end:
                break
            first.run_to(max(moment, first.now))
            for host in self.hosts:
                host.now = first.now
            for host in sorted(self.hosts, key=lambda host: host is not first):
                self._write_lock_contention(host)
        for host in self.hosts:
            host.now = end

    def _write_lock_contention(self, host: SimulatedHost) -> None:
        has = bool(set(host.locks.holders("gpu")) - {OTHER_USER})
        for other in self._other_hosts(host):
            if has and OTHER_USER not in other.locks.holders("gpu"):
                other.lock_by_other("gpu")
            elif not has and OTHER_USER in other.locks.holders("gpu"):
                other.unlock_by_other("gpu")

    def turns(self) -> list[tuple[float, float, int]]:
        """Return the turns that are over, each as (from, until, number of the host)."""
        return sorted((a, b, number) for number, host in enumerate(self.hosts) for _, a, b in host.turns["gpu"])


def together(turns: list[tuple[float, float, int]]) -> float:
    """Return the seconds that at least one of the turns covers."""
    seconds = until = 0.0
    for begin, end, _ in turns:
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds


@pytest.mark.parametrize("sharing", ["exclusive", "auto", "packed"])
@pytest.mark.parametrize("clients", [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("policy", ["fcfs", "fair", "interactive"])
def test_coordinators_alternate_turns(make_host: MakeHost, sharing: str, clients: tuple[int, int], policy: str) -> None:
    settings = {"sharing": sharing, "policy": policy}
    pair = Pair(*(make_host("gpu", **settings) for _ in clients))  # type: ignore[arg-type]
    for number, count in enumerate(clients):
        for name in range(count):
            pair.process(number, f"{number}-{name}")
    pair.run(30)
    turns = pair.turns()
    for (_, end, one), (begin, _, other) in combinations(turns, 2):
        assert end <= begin + 1e-6 or one == other, "clients of two users run at once"
    for begin, end, _ in turns:
        assert end - begin <= QUANTUM_SECONDS + 2 * POLL_SECONDS
    seconds_by_host = [together([turn for turn in turns if turn[2] == number]) for number in (0, 1)]
    # The hosts alternate by turns. `fair` gives many clients short turns, as does `interactive` for new work.
    assert min(seconds_by_host) > {"fcfs": 10, "interactive": 6, "fair": 2}[policy], seconds_by_host
    assert sum(seconds_by_host) > 0.8 * 30
    for host in pair.hosts:
        assert all(seconds > 0.5 for name, seconds in host.granted_seconds("gpu").items() if name != OTHER_USER)


def test_waiter_of_another_coordinator_ends_an_uncontended_turn(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.run(0.3)
    set_lock_contended(host)
    permit = host.permits["a"]
    assert (permit.contended, permit.relieved, permit.deadline) == (True, True, QUANTUM_SECONDS)
    assert host.run_until(lambda: host.running() is None) == pytest.approx(QUANTUM_SECONDS - 0.3)


def test_other_coordinator_that_never_enters_costs_little_time(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    set_lock_contended(host)
    host.run(22)
    assert host.granted_seconds("gpu")["a"] == pytest.approx(
        22 * QUANTUM_SECONDS / (QUANTUM_SECONDS + GAP_SECONDS), rel=0.05
    )


def test_turn_has_no_end_without_waiters_elsewhere(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    set_lock_contended(host)
    host.run(0.5)
    set_lock_contended(host, False)
    host.run(20)
    assert host.locks.turn_order("gpu") == ["a"]


def test_device_is_taken_at_once_without_other_waiters(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    set_lock_contended(host)
    host.run_until(lambda: host.running() is None)
    set_lock_contended(host, False)
    assert host.running() == "a"


def test_clients_here_keep_their_order_and_none_follows_by_itself(host: SimulatedHost) -> None:
    host.start_busy(*"abc")
    set_lock_contended(host)
    for _ in range(3):
        host.taken_when_free.add("gpu")
        host.run_until(lambda: OTHER_USER in host.locks.holders("gpu"))
        set_lock_contended(host, False)
        host.run(0.5)
        host.unlock_by_other("gpu")
        host.run_until(lambda: host.running() is not None)
        set_lock_contended(host)
        assert [client for client, permit in host.permits.items() if permit.may] == [host.running()]
    assert [name for name in host.locks.turn_order("gpu") if name != OTHER_USER] == ["a", "b", "c", "a"]


def test_offline_clients_here_make_no_turn_longer(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.start_client("b", service="offline")
    set_lock_contended(host)
    assert host.run_until(lambda: host.running() is None) == pytest.approx(QUANTUM_SECONDS)


def test_contention_does_not_shorten_a_hold(make_host: MakeHost) -> None:
    host = make_host(max_hold=5.0)
    host.add_process("a", busy=True)
    host.run(0.5)
    host.handle_event(ev.HoldRequested("a", 5.0))
    set_lock_contended(host)
    assert host.run_until(lambda: host.running() is None) == pytest.approx(5.0)


def test_a_gang_leaves_the_contended_device(make_host: MakeHost) -> None:
    host = make_host("d1", "d2")
    host.add_process("gang", "d1", "d2", busy=True)
    set_lock_contended(host, uuid="d2")
    host.taken_when_free.add("d2")
    host.run(QUANTUM_SECONDS + 0.5)
    assert OTHER_USER in host.locks.holders("d2") and not host.locks.holders("d1")
    set_lock_contended(host, False, "d2")
    host.unlock_by_other("d2")
    host.run_until(lambda: host.running("d1") == "gang")


def test_a_wait_for_the_lock_counts_neither_as_turn_nor_as_gpu_time_but_as_waiting(host: SimulatedHost) -> None:
    host.lock_by_other("gpu")
    host.add_process("a", busy=True)
    host.run(2.0)
    host.unlock_by_other("gpu")
    waited = 2.0 + host.run_until(lambda: host.running() == "a")
    client = host.scheduler.clients["a"]
    assert (client.turn_count, client.gpu_seconds_at(host.now)) == (1, 0)
    assert client.wait_seconds_at(host.now) == pytest.approx(waited)


def test_device_without_waiters_is_not_probed(host: SimulatedHost) -> None:
    host.lock_by_other("gpu")
    a = host.add_process("a", busy=True)
    host.run(0.1)
    host.stop_waiting(a)
    assert host.scheduler.next_deadline() is None


def test_no_edge_spins_if_another_coordinator_has_one_device_and_another_is_busy(make_host: MakeHost) -> None:
    """The host fails if a deadline has passed and is not acted upon."""
    host = make_host("d1", "d2")
    host.lock_by_other("d2")
    host.add_process("a", "d1", busy=True)
    host.add_process("b", "d2", busy=True)
    host.add_process("gang", "d1", "d2", busy=True)
    host.run(0.5 * QUANTUM_SECONDS)
    host.add_process("c", "d1", "d2", busy=True)
    host.run(3 * QUANTUM_SECONDS)
    host.unlock_by_other("d2")
    host.run_until(lambda: host.running("d2") == "b")
