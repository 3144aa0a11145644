"""Tests of the scheduler of turns: the running client, and the start and end of turns."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import events as ev

from .conftest import QUANTUM_SECONDS
from .simulated_host import SimulatedHost, baseline


def test_client_runs_at_once_on_a_free_device(host: SimulatedHost) -> None:
    a = host.add_process("a")
    assert host.phase("a") == "idle"
    host.wait_at_gate(a)
    assert (host.phase("a"), host.running(), host.queue("gpu")) == ("running", "a", [])


def test_first_come_first_served_each_for_a_quantum(host: SimulatedHost) -> None:
    host.start_busy(*"abc")
    host.run(6.5 * QUANTUM_SECONDS)
    assert host.locks.turn_order("gpu") == ["a", "b", "c", "a", "b", "c", "a"]
    lengths = [until - since for _, since, until in host.turns["gpu"]]
    assert lengths == pytest.approx([QUANTUM_SECONDS] * 6)


def test_the_queue_is_in_the_order_of_coming_not_of_names_or_registration(host: SimulatedHost) -> None:
    z, b, a = (host.add_process(name) for name in "zba")
    host.wait_at_gate(z, a, b)
    assert host.queue("gpu") == ["a", "b"]


def test_uncontended_turn_has_no_deadline(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    assert host.scheduler.next_deadline() is None
    host.run(1000 * QUANTUM_SECONDS)
    assert host.phase("a") == "running"


@pytest.mark.parametrize(("quanta", "left"), [(0.4, 0.6), (5.0, 0.0)])
def test_contended_quantum_counts_from_the_start_of_the_turn(host: SimulatedHost, quanta: float, left: float) -> None:
    host.add_process("a", busy=True)
    host.run(quanta * QUANTUM_SECONDS)
    host.add_process("b", busy=True)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(left * QUANTUM_SECONDS)
    assert host.queue("gpu") == ["a"]


def test_waiting_client_precedes_the_client_that_ran(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run_until(lambda: host.running() == "b")
    host.add_process("c", busy=True)
    assert host.queue("gpu") == ["a", "c"]


def test_interrupted_waiters_leave_the_queue(host: SimulatedHost) -> None:
    _, b, c = host.start_busy("a", "b", "c")
    host.run(0.3)
    host.stop_waiting(b)
    assert (host.phase("b"), host.queue("gpu")) == ("idle", ["c"])
    host.stop_waiting(c)
    assert host.scheduler.next_deadline() is None
    host.run(10)
    assert host.running() == "a"
    assert host.scheduler.clients["b"].wait_seconds_at(host.now) == pytest.approx(0.3)


def test_a_client_waits_as_long_as_one_of_its_processes_does(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    first, second = host.add_process("b", busy=True), host.add_process("b", busy=True)
    host.stop_waiting(first)
    assert host.queue("gpu") == ["b"]
    host.kill_process(second)
    assert host.queue("gpu") == []


def test_release_gives_up_the_rest_of_the_turn(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run(0.1)
    host.handle_event(ev.ReleaseRequested("a"))
    assert host.run_until(lambda: host.running() == "b") == 0
    assert host.phase("a") == "waiting"


def test_release_of_a_client_that_does_not_run_changes_nothing(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.add_client("c")
    assert host.handle_event(ev.ReleaseRequested("b")) == host.handle_event(ev.ReleaseRequested("c")) == []
    assert (host.running(), host.queue("gpu")) == ("a", ["b"])


def test_idle_release_ends_a_contended_turn_of_idle_processes(host: SimulatedHost) -> None:
    first, second = host.add_process("a"), host.add_process("a")
    host.wait_at_gate(first, second)
    host.report_idle(first)
    host.report_idle(second)
    assert host.running() == "a", "a keeps its turn while no client waits"
    host.add_process("b", busy=True)
    assert host.running() == "a", "a report from before the wait is outdated"
    host.report_idle(first)
    assert host.running() == "a"
    host.report_idle(second)
    assert host.run_until(lambda: host.running() == "b") == 0
    assert host.phase("a") == "idle"


def test_a_process_that_works_again_is_not_idle_when_another_process_becomes_idle(host: SimulatedHost) -> None:
    first, second = host.add_process("a"), host.add_process("a")
    host.wait_at_gate(first, second)
    host.add_process("b", busy=True)
    host.report_idle(first)
    host.report_busy(first)
    host.report_idle(second)
    assert host.running() == "a"
    host.report_idle(first)
    assert host.run_until(lambda: host.running() == "b") == 0


def test_a_process_that_joins_a_running_client_may_run_at_once(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    second = host.add_process("a", waiting=True)
    assert second.gate == "open"
    assert (host.permits["a"].contended, host.permits["a"].deadline) == (True, QUANTUM_SECONDS)


def test_a_shorter_quantum_holds_at_once(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run(0.5)
    host.handle_event(ev.SettingsChanged(baseline(time_quantum=0.25)))
    assert host.run_until(lambda: host.running() == "b") == 0


def test_gpu_and_wait_seconds_are_summed_by_client(host: SimulatedHost) -> None:
    host.start_busy("a", "b")
    host.run(3.5 * QUANTUM_SECONDS)
    a, b = (host.scheduler.clients[name] for name in "ab")
    assert (a.gpu_seconds_at(host.now), b.gpu_seconds_at(host.now)) == pytest.approx((2.0, 1.5))
    assert (a.wait_seconds_at(host.now), b.wait_seconds_at(host.now)) == pytest.approx((1.5, 2.0))
    assert (a.turn_count, b.turn_count) == (2, 2)


class TestProcessesThatEnd:
    def test_exited_process_leaves_the_queue(self, host: SimulatedHost) -> None:
        _, b, _ = host.start_busy("a", "b", "c")
        host.kill_process(b)
        assert host.queue("gpu") == ["c"]

    def test_exit_of_a_draining_process_ends_its_turn(self, host: SimulatedHost) -> None:
        a = host.add_process("a", drains_in=50, waiting=True)
        host.add_process("b", busy=True)
        host.run(2 * QUANTUM_SECONDS)
        assert host.phase("a") == "draining"
        host.kill_process(a)
        assert host.running() == "b"

    def test_last_undrained_process_exits_while_another_has_drained(self, host: SimulatedHost) -> None:
        first, second = host.add_process("a", drains_in=50), host.add_process("a")
        host.wait_at_gate(first, second)
        host.add_process("b", busy=True)
        host.run(1.5 * QUANTUM_SECONDS)
        host.kill_process(first)
        host.run(0.01)  # until the other process has polled its work
        assert host.running() == "b"

    def test_ended_client_can_be_unregistered(self, host: SimulatedHost) -> None:
        a, _ = host.start_busy("a", "b")
        host.kill_process(a)
        host.handle_event(ev.ClientRemoved("a"))
        assert list(host.scheduler.clients) == ["b"]
