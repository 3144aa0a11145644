"""Who runs, when a turn begins and when it ends."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import events as ev

from .conftest import QUANTUM
from .world import World, baseline


def test_a_client_that_wants_a_free_device_runs_at_once(world: World) -> None:
    a = world.process("a")
    assert world.phase("a") == "idle"
    world.want(a)
    assert (world.phase("a"), world.running(), world.queue("gpu")) == ("running", "a", [])


def test_first_come_first_served_each_for_a_quantum(world: World) -> None:
    world.busy(*"abc")
    world.run(6.5 * QUANTUM)
    assert world.order("gpu") == ["a", "b", "c", "a", "b", "c", "a"]
    lengths = [until - since for _, since, until in world.turns["gpu"]]
    assert lengths == pytest.approx([QUANTUM] * 6)


def test_the_queue_is_in_the_order_of_coming_not_of_names_or_registration(world: World) -> None:
    z, b, a = (world.process(name) for name in "zba")
    world.want(z, a, b)
    assert world.queue("gpu") == ["a", "b"]


def test_uncontended_turn_has_no_deadline(world: World) -> None:
    world.process("a", busy=True)
    assert world.scheduler.next_deadline() is None
    world.run(1000 * QUANTUM)
    assert world.phase("a") == "running"


@pytest.mark.parametrize(("quanta", "left"), [(0.4, 0.6), (5.0, 0.0)])
def test_contended_quantum_counts_from_the_start_of_the_turn(world: World, quanta: float, left: float) -> None:
    world.process("a", busy=True)
    world.run(quanta * QUANTUM)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(left * QUANTUM)
    assert world.queue("gpu") == ["a"]


def test_waiting_client_precedes_the_client_that_ran(world: World) -> None:
    world.busy("a", "b")
    world.run_until(lambda: world.running() == "b")
    world.process("c", busy=True)
    assert world.queue("gpu") == ["a", "c"]


def test_interrupted_waiters_leave_the_queue(world: World) -> None:
    _, b, c = world.busy("a", "b", "c")
    world.run(0.3)
    world.unwant(b)
    assert (world.phase("b"), world.queue("gpu")) == ("idle", ["c"])
    world.unwant(c)
    assert world.scheduler.next_deadline() is None
    world.run(10)
    assert world.running() == "a"
    assert world.scheduler.clients["b"].wait_seconds_at(world.now) == pytest.approx(0.3)


def test_a_client_waits_as_long_as_one_of_its_processes_does(world: World) -> None:
    world.process("a", busy=True)
    first, second = world.process("b", busy=True), world.process("b", busy=True)
    world.unwant(first)
    assert world.queue("gpu") == ["b"]
    world.kill(second)
    assert world.queue("gpu") == []


def test_release_gives_up_the_rest_of_the_turn(world: World) -> None:
    world.busy("a", "b")
    world.run(0.1)
    world.feed(ev.TurnReleased("a"))
    assert world.run_until(lambda: world.running() == "b") == 0
    assert world.phase("a") == "waiting"


def test_release_of_a_client_that_does_not_run_changes_nothing(world: World) -> None:
    world.busy("a", "b")
    world.client("c")
    assert world.feed(ev.TurnReleased("b")) == world.feed(ev.TurnReleased("c")) == []
    assert (world.running(), world.queue("gpu")) == ("a", ["b"])


def test_idle_release_ends_a_contended_turn_of_idle_processes(world: World) -> None:
    first, second = world.process("a"), world.process("a")
    world.want(first, second)
    world.idle(first)
    world.idle(second)
    assert world.running() == "a", "nobody waits: nothing is taken away"
    world.process("b", busy=True)
    assert world.running() == "a", "what was reported before anybody waited is old"
    world.idle(first)
    assert world.running() == "a"
    world.idle(second)
    assert world.run_until(lambda: world.running() == "b") == 0
    assert world.phase("a") == "idle"


def test_a_process_that_works_again_is_not_idle_when_the_other_one_becomes_so(world: World) -> None:
    first, second = world.process("a"), world.process("a")
    world.want(first, second)
    world.process("b", busy=True)
    world.idle(first)
    world.works_again(first)
    world.idle(second)
    assert world.running() == "a"
    world.idle(first)
    assert world.run_until(lambda: world.running() == "b") == 0


def test_a_process_that_joins_a_running_client_may_run_at_once(world: World) -> None:
    world.busy("a", "b")
    second = world.process("a", wants=True)
    assert second.gate == "open"
    assert (world.permits["a"].contended, world.permits["a"].deadline) == (True, QUANTUM)


def test_a_shorter_quantum_holds_at_once(world: World) -> None:
    world.busy("a", "b")
    world.run(0.5)
    world.feed(ev.SettingsChanged(baseline(time_quantum=0.25)))
    assert world.run_until(lambda: world.running() == "b") == 0


def test_gpu_seconds_and_wait_seconds(world: World) -> None:
    world.busy("a", "b")
    world.run(3.5 * QUANTUM)
    a, b = (world.scheduler.clients[name] for name in "ab")
    assert (a.gpu_seconds_at(world.now), b.gpu_seconds_at(world.now)) == pytest.approx((2.0, 1.5))
    assert (a.wait_seconds_at(world.now), b.wait_seconds_at(world.now)) == pytest.approx((1.5, 2.0))
    assert (a.quanta, b.quanta) == (2, 2)


class TestProcessesThatEnd:
    def test_process_exit_while_waiting(self, world: World) -> None:
        _, b, _ = world.busy("a", "b", "c")
        world.kill(b)
        assert world.queue("gpu") == ["c"]

    def test_process_exit_while_draining(self, world: World) -> None:
        a = world.process("a", drains_in=50, wants=True)
        world.process("b", busy=True)
        world.run(2 * QUANTUM)
        assert world.phase("a") == "draining"
        world.kill(a)
        assert world.running() == "b"

    def test_the_last_undrained_one_while_the_other_has_drained(self, world: World) -> None:
        first, second = world.process("a", drains_in=50), world.process("a")
        world.want(first, second)
        world.process("b", busy=True)
        world.run(1.5 * QUANTUM)
        world.kill(first)
        world.run(0.01)  # until the other one has looked
        assert world.running() == "b"

    def test_ended_client_can_be_unregistered(self, world: World) -> None:
        a, _ = world.busy("a", "b")
        world.kill(a)
        world.feed(ev.ClientForgotten("a"))
        assert list(world.scheduler.clients) == ["b"]
