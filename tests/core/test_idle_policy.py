"""Tests of the idle policy in the core: warning, eviction, suspension, and the return of a client that is in use."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.handlers.idle_policy import AUTO_EVICT_SECONDS, IdleForecast
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .conftest import MakeHost
from .simulated_host import SimulatedHost, baseline
from .simulated_process import SimulatedProcess

HOUR = 3600.0
LARGE_BYTES = (1 << 30) * 3 // 4  # more than half of the device, so that two such clients do not fit


def used(host: SimulatedHost, client: str, size: int = LARGE_BYTES) -> SimulatedProcess:
    """Return a process that has had a turn, has `size` bytes on the device, and has no open cell."""
    process = host.add_process(client)
    host.start_cell(client, "cell")
    host.wait_at_gate(process)
    host.run_until(lambda: process.gate == "open")
    host.report_memory(client, size)
    host.end_cell(client, "cell")
    host.run(1.0)
    assert host.phase(client) == "idle"
    return process


def forecast_of(host: SimulatedHost, client: str) -> IdleForecast | None:
    return host.scheduler.idle_policy.forecast(host.scheduler.clients[client], host.now)


def sent(host: SimulatedHost, client: str) -> list[tuple[float, int | None]]:
    """Return when the scheduler sent how many bytes the client may keep, and how many."""
    return [
        (at, command.bytes)
        for at, command in host.timeline
        if isinstance(command, cmd.SetResident) and command.client == client
    ]


def test_memory_of_an_idle_client_leaves_until_its_next_turn(make_host: MakeHost) -> None:
    host = make_host(idle_evict=HOUR)
    process = used(host, "a")
    since = host.now - forecast_of(host, "a").idle_seconds  # type: ignore[union-attr]
    host.run_to(since + HOUR - 0.001)
    assert sent(host, "a") == []
    host.run(0.001)
    assert sent(host, "a") == [(pytest.approx(since + HOUR), 0)]
    host.report_memory("a", LARGE_BYTES, 0)
    host.run(HOUR)
    host.wait_at_gate(process)
    assert host.running() == "a"
    assert sent(host, "a")[-1][1] is None


def test_idleness_begins_anew_with_a_cell_that_never_touches_the_device(make_host: MakeHost) -> None:
    host = make_host(idle_evict=HOUR)
    used(host, "a")
    host.run(0.9 * HOUR)
    host.start_cell("a", "thinking")
    host.run(2 * HOUR)
    assert forecast_of(host, "a") is None
    host.end_cell("a", "thinking")
    host.run(0.9 * HOUR)
    assert sent(host, "a") == []
    host.run(0.2 * HOUR)
    assert sent(host, "a")


def test_holding_client_is_idle_only_after_the_hold(make_host: MakeHost) -> None:
    host = make_host(idle_evict=100.0)
    used(host, "a")
    host.handle_event(ev.HoldRequested("a", 500.0))
    host.run(499.0)
    assert forecast_of(host, "a") is None
    host.run(100.0)
    assert sent(host, "a") == []
    host.run(2.0)
    assert sent(host, "a")


def test_released_hold_is_over(make_host: MakeHost) -> None:
    host = make_host(idle_evict=100.0)
    used(host, "a")
    host.handle_event(ev.HoldRequested("a", 500.0))
    host.handle_event(ev.ReleaseRequested("a"))
    host.run(101.0)
    assert sent(host, "a")


def test_active_clients_are_never_idle(make_host: MakeHost) -> None:
    host = make_host(idle_evict=10.0, idle_suspend=20.0)
    host.add_process("runs", busy=True)
    host.start_cell("runs", "endless")
    used(host, "thinks")
    host.start_cell("thinks", "input()")
    host.run(HOUR)
    assert not any(client.suspended or client.evicted for client in host.scheduler.clients.values())


def test_client_without_a_process_is_neither_evicted_nor_suspended(make_host: MakeHost) -> None:
    host = make_host(idle_warn=10.0, idle_evict=10.0, idle_suspend=20.0)
    host.add_client("a")
    host.run(HOUR)
    assert host.phase("a") == "idle"
    assert forecast_of(host, "a") == IdleForecast(HOUR, None, None, False)


def test_memory_that_cannot_leave_stays(make_host: MakeHost) -> None:
    host = make_host(idle_evict=10.0)
    used(host, "a")
    host.report_memory("a", LARGE_BYTES, unmovable=LARGE_BYTES)
    host.run(HOUR)
    assert not host.scheduler.clients["a"].evicted
    assert forecast_of(host, "a").evict_in_seconds is None  # type: ignore[union-attr]


class TestAuto:
    """Memory leaves only if the device has not enough for all of its clients."""

    def test_memory_that_fits_stays(self, make_host: MakeHost) -> None:
        host = make_host(idle_evict="auto", idle_warn="auto")
        used(host, "a", LARGE_BYTES)
        used(host, "b", (1 << 30) - LARGE_BYTES)
        host.run(24 * HOUR)
        assert sent(host, "a") == sent(host, "b") == []
        assert not forecast_of(host, "a").is_warning_due  # type: ignore[union-attr]

    def test_memory_that_does_not_fit_is_evicted(self, make_host: MakeHost) -> None:
        host = make_host(idle_evict="auto")
        used(host, "a")
        used(host, "b")
        host.run(AUTO_EVICT_SECONDS - 10)
        assert not host.scheduler.clients["a"].evicted
        host.run(20)
        assert host.scheduler.clients["a"].evicted

    def test_eviction_follows_a_later_memory_shortage(self, make_host: MakeHost) -> None:
        host = make_host(idle_evict="auto")
        used(host, "a")
        host.run(24 * HOUR)
        used(host, "b")
        host.run(100.0)
        assert host.scheduler.clients["a"].evicted, "a is evicted within a minute or so"
        assert not host.scheduler.clients["b"].evicted

    def test_a_warning_comes_ten_minutes_before(self, make_host: MakeHost) -> None:
        host = make_host(idle_warn="auto", idle_evict="auto")
        used(host, "b")
        used(host, "a")
        host.run_to(host.now - forecast_of(host, "a").idle_seconds + AUTO_EVICT_SECONDS - 601)  # type: ignore[union-attr]
        assert not forecast_of(host, "a").is_warning_due  # type: ignore[union-attr]
        host.run(2.0)
        assert forecast_of(host, "a") == IdleForecast(
            pytest.approx(AUTO_EVICT_SECONDS - 599), pytest.approx(599), None, True
        )


def test_warning_comes_at_the_set_time(make_host: MakeHost) -> None:
    host = make_host(idle_warn=100.0)
    used(host, "a")
    host.run(98.0)
    assert not forecast_of(host, "a").is_warning_due  # type: ignore[union-attr]
    host.run(2.0)
    assert forecast_of(host, "a").is_warning_due  # type: ignore[union-attr]


class TestSuspended:
    @pytest.fixture
    def host(self, make_host: MakeHost) -> SimulatedHost:
        """Return a host where a is suspended for being idle, and b runs."""
        host = make_host(idle_evict=HOUR, idle_suspend=2 * HOUR)
        used(host, "a")
        host.run(2 * HOUR)
        assert host.phase("a") == "suspended"
        assert host.scheduler.clients["a"].suspended_by_policy
        return host

    def process(self, host: SimulatedHost) -> SimulatedProcess:
        return next(process for process in host.processes.values() if process.client == "a")

    def test_next_gate_call_resumes_the_client(self, host: SimulatedHost) -> None:
        host.wait_at_gate(self.process(host))
        assert host.running() == "a"

    def test_resumed_client_waits_for_its_turn(self, host: SimulatedHost) -> None:
        host.add_process("b", busy=True)
        assert host.running() == "b"
        host.wait_at_gate(self.process(host))
        assert host.queue("gpu") == ["a"]
        assert host.run_until(lambda: host.running() == "a") <= 1.1

    def test_next_cell_resumes_the_client(self, host: SimulatedHost) -> None:
        host.start_cell("a", "cell")
        assert host.phase("a") == "idle"
        host.end_cell("a", "cell")
        host.run(1.9 * HOUR)
        assert host.phase("a") == "idle"

    def test_any_process_resumes_the_client(self, make_host: MakeHost) -> None:
        host = make_host("d1", "d2", idle_suspend=HOUR)
        ranks = [host.add_process("gang", "d1", "d2") for _ in range(4)]
        host.run(HOUR)
        assert host.phase("gang") == "suspended"
        host.wait_at_gate(ranks[2])
        assert (host.phase("gang"), ranks[2].gate) == ("running", "open")
        host.wait_at_gate(*ranks)
        assert [rank.gate for rank in ranks] == ["open"] * 4

    def test_client_resumed_by_its_user_is_not_suspended_at_once(self, host: SimulatedHost) -> None:
        host.handle_event(ev.ResumeRequested("a"))
        host.run(1.9 * HOUR)
        assert host.phase("a") == "idle"
        host.run(0.2 * HOUR)
        assert host.phase("a") == "suspended"

    def test_hold_resumes_the_client(self, host: SimulatedHost) -> None:
        host.handle_event(ev.HoldRequested("a", 60.0))
        assert host.phase("a") == "idle"

    def test_program_restart_resumes_the_client(self, host: SimulatedHost) -> None:
        host.kill_process(self.process(host))
        host.add_client("a")
        assert host.phase("a") == "idle"

    def test_user_request_replaces_the_policys_action(self, host: SimulatedHost) -> None:
        host.handle_event(ev.SuspendRequested("a"))
        host.start_cell("a", "cell")
        host.wait_at_gate(self.process(host))
        assert host.phase("a") == "suspended"
        host.handle_event(ev.ResumeRequested("a"))
        assert host.running() == "a"

    def test_client_suspended_by_its_user_is_left_to_the_user(self, make_host: MakeHost) -> None:
        host = make_host(idle_evict=10.0, idle_suspend=20.0)
        process = used(host, "a")
        host.handle_event(ev.SuspendRequested("a"))
        host.run(HOUR)
        assert not host.scheduler.clients["a"].suspended_by_policy
        assert forecast_of(host, "a") is None
        host.wait_at_gate(process)
        assert host.phase("a") == "suspended"

    def test_earlier_suspension_is_kept_unless_the_client_works(self, host: SimulatedHost) -> None:
        for client in ("idle", "busy"):
            process = host.add_process(client)
        host.wait_at_gate(process)
        for client in ("idle", "busy"):
            host.handle_event(ev.SuspendRequested(client, by_policy=True))
        assert (host.phase("idle"), host.phase("busy")) == ("suspended", "running")
        host.start_cell("idle", "cell")
        assert host.phase("idle") == "idle"


def test_client_evicted_by_its_user_stays_evicted_until_its_turn(make_host: MakeHost) -> None:
    host = make_host(idle_evict=10.0)
    used(host, "a")
    host.run(20.0)
    host.handle_event(ev.EvictRequested("a"))
    host.start_cell("a", "cell")
    assert host.scheduler.clients["a"].evicted


def test_settings_change_live(make_host: MakeHost) -> None:
    host = make_host()
    used(host, "a")
    host.run(HOUR)
    assert sent(host, "a") == []
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=1.0, idle_evict=2 * HOUR)))
    host.run(0.9 * HOUR)
    assert sent(host, "a") == []
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=1.0, idle_evict=1.5 * HOUR)))
    assert sent(host, "a"), "a has been idle for longer than the new setting"
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=1.0, idle_suspend=1.5 * HOUR)))
    assert host.phase("a") == "suspended"
