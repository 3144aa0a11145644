"""Clients that nobody uses: they are told, their memory leaves, they are suspended; who comes back is served."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.idleness import EVICT_AUTO, Prospect

from .conftest import MakeWorld
from .world import FakeProcess, World, baseline

HOUR = 3600.0
MOST = (1 << 30) * 3 // 4  # of a device's memory: two clients that have so much don't fit


def used(world: World, client: str, size: int = MOST) -> FakeProcess:
    """It has had a turn, has that much memory on the device, and its cell is over."""
    process = world.process(client)
    world.start_cell(client, "cell")
    world.want(process)
    world.run_until(lambda: process.gate == "open")
    world.holds(client, size)
    world.end_cell(client, "cell")
    world.run(1.0)
    assert world.phase(client) == "idle"
    return process


def prospect(world: World, client: str) -> Prospect | None:
    return world.scheduler.idleness.prospect(world.scheduler.clients[client], world.now)


def sent(world: World, client: str) -> list[tuple[float, int | None]]:
    """Return when the scheduler sent how many bytes the client may keep, and how many."""
    return [
        (at, command.bytes)
        for at, command in world.timeline
        if isinstance(command, cmd.SetResident) and command.client == client
    ]


def test_memory_leaves_after_so_long_and_the_next_turn_brings_it_back(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=HOUR)
    process = used(world, "a")
    since = world.now - prospect(world, "a").idle  # type: ignore[union-attr]
    world.run_to(since + HOUR - 0.001)
    assert sent(world, "a") == []
    world.run(0.001)
    assert sent(world, "a") == [(pytest.approx(since + HOUR), 0)]
    world.holds("a", MOST, 0)
    world.run(HOUR)
    world.want(process)
    assert world.running() == "a"
    assert sent(world, "a")[-1][1] is None


def test_idleness_begins_anew_with_a_cell_that_never_touches_the_device(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=HOUR)
    used(world, "a")
    world.run(0.9 * HOUR)
    world.start_cell("a", "thinking")
    world.run(2 * HOUR)
    assert prospect(world, "a") is None
    world.end_cell("a", "thinking")
    world.run(0.9 * HOUR)
    assert sent(world, "a") == []
    world.run(0.2 * HOUR)
    assert sent(world, "a")


def test_holding_client_is_idle_only_after_the_hold(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=100.0)
    used(world, "a")
    world.feed(ev.TurnHeld("a", 500.0))
    world.run(499.0)
    assert prospect(world, "a") is None
    world.run(100.0)
    assert sent(world, "a") == []
    world.run(2.0)
    assert sent(world, "a")


def test_a_hold_that_is_given_up_is_over(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=100.0)
    used(world, "a")
    world.feed(ev.TurnHeld("a", 500.0))
    world.feed(ev.TurnReleased("a"))
    world.run(101.0)
    assert sent(world, "a")


def test_active_clients_are_never_idle(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=10.0, idle_suspend=20.0)
    world.process("runs", busy=True)
    world.start_cell("runs", "endless")
    used(world, "thinks")
    world.start_cell("thinks", "input()")
    world.run(HOUR)
    assert not any(client.suspended or client.evicted for client in world.scheduler.clients.values())


def test_a_client_without_a_process_has_nothing_to_lose(make_world: MakeWorld) -> None:
    world = make_world(idle_warn=10.0, idle_evict=10.0, idle_suspend=20.0)
    world.client("a")
    world.run(HOUR)
    assert world.phase("a") == "idle"
    assert prospect(world, "a") == Prospect(HOUR, None, None, False)


def test_memory_that_cannot_leave_stays(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=10.0)
    used(world, "a")
    world.holds("a", MOST, pinned=MOST)
    world.run(HOUR)
    assert not world.scheduler.clients["a"].evicted
    assert prospect(world, "a").evicted_in is None  # type: ignore[union-attr]


class TestAuto:
    """Memory leaves only where the device has not enough for all of its clients."""

    def test_memory_that_fits_stays(self, make_world: MakeWorld) -> None:
        world = make_world(idle_evict="auto", idle_warn="auto")
        used(world, "a", MOST)
        used(world, "b", (1 << 30) - MOST)
        world.run(24 * HOUR)
        assert sent(world, "a") == sent(world, "b") == []
        assert not prospect(world, "a").warned  # type: ignore[union-attr]

    def test_memory_that_does_not_fit_is_evicted(self, make_world: MakeWorld) -> None:
        world = make_world(idle_evict="auto")
        used(world, "a")
        used(world, "b")
        world.run(EVICT_AUTO - 10)
        assert not world.scheduler.clients["a"].evicted
        world.run(20)
        assert world.scheduler.clients["a"].evicted

    def test_eviction_follows_a_later_memory_shortage(self, make_world: MakeWorld) -> None:
        world = make_world(idle_evict="auto")
        used(world, "a")
        world.run(24 * HOUR)
        used(world, "b")
        world.run(100.0)
        assert world.scheduler.clients["a"].evicted, "within a minute or so"
        assert not world.scheduler.clients["b"].evicted

    def test_a_warning_comes_ten_minutes_before(self, make_world: MakeWorld) -> None:
        world = make_world(idle_warn="auto", idle_evict="auto")
        used(world, "b")
        used(world, "a")
        world.run_to(world.now - prospect(world, "a").idle + EVICT_AUTO - 601)  # type: ignore[union-attr]
        assert not prospect(world, "a").warned  # type: ignore[union-attr]
        world.run(2.0)
        assert prospect(world, "a") == Prospect(pytest.approx(EVICT_AUTO - 599), pytest.approx(599), None, True)


def test_a_warning_comes_when_it_is_set_whatever_follows(make_world: MakeWorld) -> None:
    world = make_world(idle_warn=100.0)
    used(world, "a")
    world.run(98.0)
    assert not prospect(world, "a").warned  # type: ignore[union-attr]
    world.run(2.0)
    assert prospect(world, "a").warned  # type: ignore[union-attr]


class TestSuspended:
    @pytest.fixture
    def world(self, make_world: MakeWorld) -> World:
        """`a` is suspended for being idle, and `b` runs."""
        world = make_world(idle_evict=HOUR, idle_suspend=2 * HOUR)
        used(world, "a")
        world.run(2 * HOUR)
        assert world.phase("a") == "suspended"
        assert world.scheduler.clients["a"].suspended_by_policy
        return world

    def process(self, world: World) -> FakeProcess:
        return next(process for process in world.processes.values() if process.client == "a")

    def test_next_gate_call_resumes_the_client(self, world: World) -> None:
        world.want(self.process(world))
        assert world.running() == "a"

    def test_resumed_client_waits_for_its_turn(self, world: World) -> None:
        world.process("b", busy=True)
        assert world.running() == "b"
        world.want(self.process(world))
        assert world.queue("gpu") == ["a"]
        assert world.run_until(lambda: world.running() == "a") <= 1.1

    def test_next_cell_resumes_the_client(self, world: World) -> None:
        world.start_cell("a", "cell")
        assert world.phase("a") == "idle"
        world.end_cell("a", "cell")
        world.run(1.9 * HOUR)
        assert world.phase("a") == "idle"

    def test_one_process_of_many_resumes_the_client(self, make_world: MakeWorld) -> None:
        world = make_world("d1", "d2", idle_suspend=HOUR)
        ranks = [world.process("gang", "d1", "d2") for _ in range(4)]
        world.run(HOUR)
        assert world.phase("gang") == "suspended"
        world.want(ranks[2])
        assert (world.phase("gang"), ranks[2].gate) == ("running", "open")
        world.want(*ranks)
        assert [rank.gate for rank in ranks] == ["open"] * 4

    def test_client_resumed_by_its_user_is_not_suspended_at_once(self, world: World) -> None:
        world.feed(ev.Resumed("a"))
        world.run(1.9 * HOUR)
        assert world.phase("a") == "idle"
        world.run(0.2 * HOUR)
        assert world.phase("a") == "suspended"

    def test_hold_resumes_the_client(self, world: World) -> None:
        world.feed(ev.TurnHeld("a", 60.0))
        assert world.phase("a") == "idle"

    def test_program_restart_resumes_the_client(self, world: World) -> None:
        world.kill(self.process(world))
        world.client("a")
        assert world.phase("a") == "idle"

    def test_user_request_replaces_the_policys_action(self, world: World) -> None:
        world.feed(ev.Suspended("a"))
        world.start_cell("a", "cell")
        world.want(self.process(world))
        assert world.phase("a") == "suspended"
        world.feed(ev.Resumed("a"))
        assert world.running() == "a"

    def test_client_suspended_by_its_user_is_left_to_the_user(self, make_world: MakeWorld) -> None:
        world = make_world(idle_evict=10.0, idle_suspend=20.0)
        process = used(world, "a")
        world.feed(ev.Suspended("a"))
        world.run(HOUR)
        assert not world.scheduler.clients["a"].suspended_by_policy
        assert prospect(world, "a") is None
        world.want(process)
        assert world.phase("a") == "suspended"

    def test_earlier_suspension_is_kept_unless_the_client_works(self, world: World) -> None:
        for client in ("idle", "busy"):
            process = world.process(client)
        world.want(process)
        for client in ("idle", "busy"):
            world.feed(ev.Suspended(client, by_policy=True))
        assert (world.phase("idle"), world.phase("busy")) == ("suspended", "running")
        world.start_cell("idle", "cell")
        assert world.phase("idle") == "idle"


def test_client_evicted_by_its_user_stays_evicted_until_its_turn(make_world: MakeWorld) -> None:
    world = make_world(idle_evict=10.0)
    used(world, "a")
    world.run(20.0)
    world.feed(ev.Evicted("a"))
    world.start_cell("a", "cell")
    assert world.scheduler.clients["a"].evicted


def test_settings_change_live(make_world: MakeWorld) -> None:
    world = make_world()
    used(world, "a")
    world.run(HOUR)
    assert sent(world, "a") == []
    world.feed(ev.SettingsChanged(baseline(time_quantum=1.0, idle_evict=2 * HOUR)))
    world.run(0.9 * HOUR)
    assert sent(world, "a") == []
    world.feed(ev.SettingsChanged(baseline(time_quantum=1.0, idle_evict=1.5 * HOUR)))
    assert sent(world, "a"), "it has been idle for longer already"
    world.feed(ev.SettingsChanged(baseline(time_quantum=1.0, idle_suspend=1.5 * HOUR)))
    assert world.phase("a") == "suspended"
