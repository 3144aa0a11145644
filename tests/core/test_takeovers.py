"""Tests of turns of offline clients whose memory does not fit beside that of an online client.

The online client loses time at each return from a pause, and its budget bounds this loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.measure.takeover_budget import MAX_LOSS, TakeoverBudget

from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess

GIB = 1 << 30
LARGE, SMALL = 5 * GIB // 8, GIB // 4  # memory of clients; the device has one GiB
RESTORE = 2.0  # seconds


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0.01, 5)), min_size=1, max_size=60),
    st.booleans(),
)
def test_the_loss_stays_below_a_part_of_all_time(cycles: list[tuple[float, float, float]], waits: bool) -> None:
    """In each cycle of work, pause and cost, an offline turn begins as early, or as late, as the budget allows."""
    budget, now, lost, largest = TakeoverBudget(), 1000.0, 0.0, 0.0
    for work, pause, cost in cycles:
        paused_since, now = now + work, now + work + pause
        budget.add_pause(pause)
        if budget.ready_at(paused_since, now) <= (paused_since if waits else now):
            budget.spend(cost, now + cost, True)
            now, lost, largest = now + cost, lost + cost, max(largest, cost)
        assert lost <= MAX_LOSS * (now - 1000.0) + 4 * largest


def offline_turns(burst: float, pause: float, costs: Iterable[float], seconds: float = 10_000) -> list[float]:
    """Return what each return costs an online client with regular bursts and pauses, until the time or `costs` end."""
    budget, now, spent = TakeoverBudget(), 0.0, list[float]()
    costs = iter(costs)
    while now < seconds:
        paused_since, now = now + burst, now + burst + pause
        ready_at = budget.ready_at(paused_since, now)
        if ready_at < now and (cost := next(costs, None)) is not None:
            assert ready_at <= paused_since + pause / 2
            budget.spend(cost, now + cost, True)
            now += cost
            spent.append(cost)
        budget.add_pause(pause)
    return spent


@pytest.mark.parametrize(("burst", "pause", "cost"), itertools.product((1.0, 5.0, 30.0), (1.0, 5.0, 30.0), (0.1, 1, 2)))
def test_regular_pauses_use_the_budget(burst: float, pause: float, cost: float) -> None:
    """Turns begin at the beginning of pauses only, where they last longest."""
    loss = sum(offline_turns(burst, pause, itertools.repeat(cost))) / 10_000
    unlimited = cost / (burst + pause + cost) if pause > 1.25 * cost else 0.0
    assert min(unlimited, MAX_LOSS) * 0.8 <= loss <= MAX_LOSS


@pytest.mark.parametrize(("before", "slow"), [(0, 1), (1, 1), (50, 1), (50, 2)])
@pytest.mark.parametrize("pause", [5.0, 50.0])
def test_slow_returns_keep_offline_clients_waiting_only_until_their_loss_is_earned(
    before: int, slow: int, pause: float
) -> None:
    costs = [*[1.0] * before, *[30.0] * slow]
    turns = len(offline_turns(5.0, pause, itertools.chain(costs, itertools.repeat(1.0))))
    usual = len(offline_turns(5.0, pause, itertools.repeat(1.0)))
    assert turns >= min(usual, 10_000 * MAX_LOSS - 30.0 * slow) - 60.0 * slow, "the budget must hold the next return"


def test_two_slow_returns_of_three_delay_no_probe() -> None:
    costs = [1.0, 30.0, 30.0]
    before = len(offline_turns(5.0, 5.0, itertools.chain(costs, itertools.repeat(1.0)), 4_000))
    assert before > len(costs) + 10


def test_pauses_that_are_shorter_than_returns_are_left_to_the_online_client_but_for_probes() -> None:
    turns = offline_turns(5.0, 1.0, itertools.repeat(2.0), 100_000)
    assert 100 < sum(turns) < 0.006 * 100_000


def test_probes_find_out_that_returns_cost_less_than_before() -> None:
    turns = offline_turns(5.0, 1.0, itertools.chain([2.0] * 10, itertools.repeat(0.1)))
    assert len(turns) > 500


def test_a_pause_that_is_longer_than_usual_lets_an_offline_turn_begin() -> None:
    budget = TakeoverBudget()
    for _ in range(10):
        budget.add_pause(10.0)
    budget.spend(1.0, 100.0, True)
    earned_at = 100.0 + 2.0 / MAX_LOSS
    assert budget.ready_at(None, 100.0) == pytest.approx(earned_at), "during its work"
    assert budget.ready_at(earned_at - 4.0, 200.0) == pytest.approx(earned_at), "early in a pause"
    assert budget.ready_at(earned_at - 6.0, 200.0) == pytest.approx(earned_at + 14.0), "late in a pause"


def test_a_client_that_comes_back_while_its_own_memory_leaves_loses_time_as_well() -> None:
    budget = TakeoverBudget()
    budget.spend(1.0, 100.0, True)
    budget.spend(0.5, 110.0, False)
    assert budget.ready_at(None, 100.0) == pytest.approx(100.0 + 2.5 / MAX_LOSS)


def test_a_return_without_a_loss_keeps_no_offline_client_waiting() -> None:
    budget = TakeoverBudget()
    budget.spend(0.0, 100.0, True)
    assert budget.ready_at(None, 100.0) == float("-inf")


# --- in the scheduler


def host_after_a_return(**settings: object) -> tuple[SimulatedHost, SimulatedProcess, SimulatedProcess]:
    """Return a host whose online client works again after a turn of an offline client and a restore of its memory."""
    host = host_of("gpu", **{"sharing": "auto", **settings})
    online = host.start_client("online")
    host.report_memory("online", LARGE)
    host.run(1)
    offline = host.start_client("offline", service="offline")
    host.report_memory("offline", LARGE, 0)
    pause(host, online)
    assert host.running() == "offline"
    host.report_memory("offline", LARGE)
    host.report_memory("online", LARGE, LARGE // 2)
    host.run(20)
    host.wait_at_gate(online)
    host.report_memory("offline", LARGE, LARGE // 2)
    host.run(RESTORE)
    host.report_memory("online", LARGE)
    host.handle_event(ev.RestoreFinished(online.number))
    return host, online, offline


def pause(host: SimulatedHost, online: SimulatedProcess) -> None:
    """Let the online client pause, with the release of its turn."""
    online.busy = False
    host.report_idle(online)
    host.run(0.1)


def test_an_offline_client_that_does_not_fit_waits_until_the_online_client_can_bear_the_loss() -> None:
    host, online, _ = host_after_a_return()
    host.run(1)
    pause(host, online)
    assert host.phase("online") == "idle", "its pauses must be known"
    assert host.running() is None
    client = host.scheduler.clients["offline"]
    assert host.now < client.takeover_at == client.ready_at
    assert host.run_until(lambda: host.running() == "offline") == pytest.approx(2 * RESTORE / MAX_LOSS, rel=0.2)


def test_an_offline_client_does_not_wait_for_an_online_client_whose_program_has_ended() -> None:
    host, online, offline = host_after_a_return()
    pause(host, online)
    assert host.phase(offline.client) == "waiting"
    host.kill_process(online)
    host.run(1.0)
    assert host.phase(offline.client) == "running"


def test_the_online_client_comes_back_at_once_while_the_offline_client_waits() -> None:
    host, online, _ = host_after_a_return()
    host.run(1)
    pause(host, online)
    host.run(3)
    before = len(host.commands)
    host.wait_at_gate(online)
    assert host.running() == "online"
    assert not any(isinstance(command, cmd.SetResident) for command in host.commands[before:])


def test_an_offline_client_that_fits_runs_before_one_that_does_not() -> None:
    host, online, _ = host_after_a_return()
    host.start_client("small", service="offline")
    host.report_memory("small", SMALL)
    pause(host, online)
    assert host.running() == "small"


def test_an_offline_client_has_a_device_without_online_clients_at_once() -> None:
    host, online, _ = host_after_a_return()
    pause(host, online)
    host.kill_process(online)
    host.handle_event(ev.ClientRemoved("online"))
    assert host.running() == "offline"


def test_an_offline_client_that_becomes_online_waits_for_no_budget() -> None:
    host, online, _ = host_after_a_return()
    pause(host, online)
    quota = host.scheduler.clients["offline"].quota.with_changes({"service": "online"})
    host.handle_event(ev.QuotaChanged("offline", quota))
    assert host.running() == "offline"


def test_memory_of_waiting_offline_clients_leaves_before_that_of_an_online_client_in_a_pause() -> None:
    host = host_of("gpu", sharing="auto", time_quantum=1.0)
    online = host.start_client("online")
    host.report_memory("online", SMALL)
    host.run(1)
    for name in ("first", "second"):
        host.start_client(name, service="offline")
    host.report_memory("first", LARGE)
    host.report_memory("second", LARGE, 0)
    pause(host, online)
    host.report_memory("second", LARGE)
    assert host.running() in ("first", "second")
    sizes = {command.client: command.bytes for command in host.commands if isinstance(command, cmd.SetResident)}
    assert "online" not in sizes


def changes_in_pause(seconds: float, *, usual: float = 8.0, memory: int = LARGE, **settings: object) -> int:
    """Return how often two offline clients change turns in a pause, after four pauses of the `usual` length.

    The quantum is 5 s, and clients run one at a time.
    """
    host = host_of("gpu", **{"time_quantum": 5.0, **settings})
    online = host.start_client("online")
    host.report_memory("online", LARGE)
    host.run(1)
    for name in ("first", "second"):
        host.start_client(name, service="offline")
        host.report_memory(name, memory, 0)
    for length in (*[usual] * 4, seconds):
        pause(host, online)
        turns = {name: host.scheduler.clients[name].turn_count for name in ("first", "second")}
        host.run(length)
        host.wait_at_gate(online)
        host.run(1)
    return sum(host.scheduler.clients[name].turn_count - count for name, count in turns.items())


def test_offline_clients_change_turns_at_the_next_burst() -> None:
    assert changes_in_pause(8.0) == 0


def test_an_offline_turn_waits_for_a_burst_for_one_quantum_at_most() -> None:
    assert changes_in_pause(19.0, usual=18.0) == 1


def test_an_offline_turn_waits_for_no_burst_when_a_client_has_waited_for_the_longest_wait() -> None:
    assert changes_in_pause(19.0, usual=18.0, max_wait=3.0) == 3


def test_offline_clients_change_turns_as_usual_in_a_pause_that_is_twice_as_long_as_the_mean() -> None:
    assert changes_in_pause(29.0) == 4


def test_offline_clients_that_fit_together_change_turns_as_usual() -> None:
    assert changes_in_pause(8.0, memory=SMALL) == 1
