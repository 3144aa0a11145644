"""Tests of forecasts of the waits in a queue, and of the event log of error reports."""

from __future__ import annotations

import math

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.views.wait_forecast import expected_waits, forecast_wait, seconds_left

from .conftest import QUANTUM_SECONDS
from .simulated_host import SimulatedHost, baseline, host_of
from .simulated_process import SimulatedProcess


def waits(host: SimulatedHost) -> dict[str, float]:
    return expected_waits(host.scheduler, "gpu", host.now)


def test_no_wait_without_a_queue(host: SimulatedHost) -> None:
    assert waits(host) == {}
    host.add_process("a", busy=True)
    assert waits(host) == {}


def test_clients_ahead_count_one_quantum_until_measured(host: SimulatedHost) -> None:
    host.start_busy(*"abc")
    host.run(0.25)
    assert waits(host) == pytest.approx({"b": 0.75, "c": 1.75})


def short_turns(host: SimulatedHost) -> SimulatedProcess:
    """Return a process of the client "a", which has had twenty turns of 0.05 s."""
    a = host.add_process("a")
    for _ in range(20):
        host.start_cell("a", "1")
        host.wait_at_gate(a)
        host.run(0.05)
        host.end_cell("a", "1")
        host.run(1)
    return a


def test_short_turns_shorten_the_wait(host: SimulatedHost) -> None:
    a = short_turns(host)
    host.add_process("b", busy=True)
    host.run(0.5)
    host.wait_at_gate(a)
    host.add_process("c", busy=True)
    expected = waits(host)
    assert expected["a"] == pytest.approx(0.5)
    assert expected["c"] == pytest.approx(0.5 + 0.1)


def test_a_turn_that_lasts_longer_than_usual_goes_on_for_half_as_long_again() -> None:
    host = host_of("gpu", time_quantum=1000.0)
    a = short_turns(host)
    host.add_client("b")
    host.start_cell("a", "long")
    host.wait_at_gate(a)
    host.add_process("b", busy=True)
    host.run(0.02)
    assert waits(host)["b"] == pytest.approx(0.1 - 0.02, abs=0.01), "as the turns of a usually are"
    host.run(19.98)
    assert waits(host)["b"] == pytest.approx(10.0)


def test_hold_is_expected_to_last_to_its_end(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.handle_event(ev.HoldRequested("a", 60.0))
    host.add_process("b", busy=True)
    host.run(10.0)
    assert waits(host) == {"b": pytest.approx(50.0)}


def test_no_turn_is_expected_to_be_longer_than_the_quantum_of_now(host: SimulatedHost) -> None:
    host.start_busy(*"abc")
    host.run(5 * QUANTUM_SECONDS)
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=0.25)))
    host.run(0.1)
    first, second = waits(host).values()
    assert second - first == pytest.approx(0.25)


def test_an_overdue_turn_is_expected_to_end_now(host: SimulatedHost) -> None:
    host.add_process("a", drains_in=5, waiting=True)
    host.add_process("b", busy=True)
    host.run(3 * QUANTUM_SECONDS)
    assert waits(host) == {"b": 0.0}


@pytest.mark.parametrize("policy", ["fcfs", "interactive", "fair"])
def test_forecast_of_one_client_equals_that_of_the_queue(policy: str) -> None:
    host = host_of("gpu", time_quantum=QUANTUM_SECONDS, policy=policy)
    for number in range(12):
        name, tenant = f"c{number}", str(1000 + number % 3)
        quota = Quota(limit=0.2 if number == 5 else 1.0, service="offline" if number % 4 == 3 else "online")
        host.add_client(name, quota, user=tenant)
        host.add_process(name, busy=True)
    for _ in range(40):
        host.run(0.3)
        queue, expected = host.queue("gpu"), waits(host)
        forecasts = {
            name: forecast_wait(host.scheduler, client, host.now) for name, client in host.scheduler.clients.items()
        }
        assert {name: (one.position, one.wait) for name, one in forecasts.items() if one} == {
            name: (position, pytest.approx(expected[name])) for position, name in enumerate(queue, 1)
        }


def test_an_offline_client_behind_a_running_online_client_has_no_expected_wait(host: SimulatedHost) -> None:
    online = host.start_client("online")
    host.start_client("offline", service="offline")
    host.run(20.0)
    assert waits(host) == {"offline": math.inf}
    assert forecast_wait(host.scheduler, host.scheduler.clients["offline"], host.now) == (1, math.inf)
    host.kill_process(online)
    host.start_client("second", service="offline")
    host.run(0.25)
    assert math.isfinite(waits(host)["second"])


def test_a_client_of_several_devices_waits_for_the_last_of_them(host: SimulatedHost) -> None:
    host.add_device("second")
    host.add_process("a", "gpu", busy=True)
    host.add_process("b", "second", busy=True)
    host.run(0.25)
    host.add_process("c", "second", busy=True)
    host.add_process("gang", "gpu", "second", busy=True)
    forecast = forecast_wait(host.scheduler, host.scheduler.clients["gang"], host.now)
    assert forecast and (forecast.position, forecast.wait) == (2, pytest.approx(1.75))


def test_wait_of_a_suspended_client_starts_at_its_gate(host: SimulatedHost) -> None:
    a = host.add_process("a")
    client = host.scheduler.clients["a"]
    host.handle_event(ev.SuspendRequested("a"))
    host.run(1.0)
    assert client.blocked_since is None
    host.wait_at_gate(a)
    host.run(1.0)
    assert client.blocked_since == 1.0
    assert forecast_wait(host.scheduler, client, host.now) is None
    host.handle_event(ev.ResumeRequested("a"))
    assert client.blocked_since is None


def test_contended_turn_has_a_remaining_time(host: SimulatedHost) -> None:
    host.add_process("a", busy=True, drains_in=0.05)
    host.run(0.25)
    grant = host.scheduler.clients["a"].grant
    assert grant and seconds_left(grant, host.now) is None
    host.add_process("b", busy=True)
    assert seconds_left(grant, host.now) == pytest.approx(0.75)
    host.run_until(lambda: host.phase("a") == "draining")
    assert seconds_left(grant, host.now) is None


def test_event_log_has_events_and_decisions(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run(QUANTUM_SECONDS)
    event_log = "\n".join(host.scheduler.event_log())
    assert "GateWaitStarted(process=1) -> Permit(client='a'" in event_log
    assert "1.000000 TurnLeft(process=1, turn=" in event_log


def test_event_log_is_bounded(host: SimulatedHost) -> None:
    a = host.add_process("a", busy=True)
    for _ in range(1000):
        host.stop_waiting(a)
        host.report_idle(a)
    assert len(host.scheduler.event_log()) <= 200
