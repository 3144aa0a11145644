"""What the queue is told about its waits, and what error reports tell of the past."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.outlook import expected_waits, outlook, seconds_left
from jupyter_gpushare.core.quota import Quota

from .conftest import QUANTUM
from .world import FakeProcess, World, baseline, host_of


def waits(world: World) -> dict[str, float]:
    return expected_waits(world.scheduler, "gpu", world.now)


def test_no_wait_without_a_queue(world: World) -> None:
    assert waits(world) == {}
    world.process("a", busy=True)
    assert waits(world) == {}


def test_clients_ahead_count_one_quantum_until_measured(world: World) -> None:
    world.busy(*"abc")
    world.run(0.25)
    assert waits(world) == pytest.approx({"b": 0.75, "c": 1.75})


def short_turns(world: World) -> FakeProcess:
    """A process of the client "a", which has had twenty turns of 0.05 s."""
    a = world.process("a")
    for _ in range(20):
        world.start_cell("a", "1")
        world.want(a)
        world.run(0.05)
        world.end_cell("a", "1")
        world.run(1)
    return a


def test_short_turns_shorten_the_wait(world: World) -> None:
    a = short_turns(world)
    world.process("b", busy=True)
    world.run(0.5)
    world.want(a)
    world.process("c", busy=True)
    expected = waits(world)
    assert expected["a"] == pytest.approx(0.5)
    assert expected["c"] == pytest.approx(0.5 + 0.1)


def test_a_turn_that_lasts_longer_than_usual_goes_on_for_half_as_long_again() -> None:
    world = host_of("gpu", time_quantum=1000.0)
    a = short_turns(world)
    world.client("b")
    world.start_cell("a", "long")
    world.want(a)
    world.process("b", busy=True)
    world.run(0.02)
    assert waits(world)["b"] == pytest.approx(0.1 - 0.02, abs=0.01), "as its turns usually are"
    world.run(19.98)
    assert waits(world)["b"] == pytest.approx(10.0)


def test_hold_is_expected_to_last_to_its_end(world: World) -> None:
    world.process("a", busy=True)
    world.feed(ev.TurnHeld("a", 60.0))
    world.process("b", busy=True)
    world.run(10.0)
    assert waits(world) == {"b": pytest.approx(50.0)}


def test_no_turn_is_expected_to_be_longer_than_the_quantum_of_now(world: World) -> None:
    world.busy(*"abc")
    world.run(5 * QUANTUM)
    world.feed(ev.SettingsChanged(baseline(time_quantum=0.25)))
    world.run(0.1)
    first, second = waits(world).values()
    assert second - first == pytest.approx(0.25)


def test_an_overdue_turn_is_expected_to_end_now(world: World) -> None:
    world.process("a", drains_in=5, wants=True)
    world.process("b", busy=True)
    world.run(3 * QUANTUM)
    assert waits(world) == {"b": 0.0}


@pytest.mark.parametrize("policy", ["fcfs", "interactive", "fair"])
def test_forecast_of_one_client_equals_that_of_the_queue(policy: str) -> None:
    world = host_of("gpu", time_quantum=QUANTUM, policy=policy)
    for number in range(12):
        name, tenant = f"c{number}", str(1000 + number % 3)
        quota = Quota(limit=0.2 if number == 5 else 1.0, service="offline" if number % 4 == 3 else "online")
        world.client(name, quota, tenant=tenant)
        world.process(name, busy=True)
    for _ in range(40):
        world.run(0.3)
        queue, expected = world.queue("gpu"), waits(world)
        told = {name: outlook(world.scheduler, client, world.now) for name, client in world.scheduler.clients.items()}
        assert {name: (one.position, one.wait) for name, one in told.items() if one} == {
            name: (place, pytest.approx(expected[name])) for place, name in enumerate(queue, 1)
        }


def test_a_client_of_several_devices_waits_for_the_last_of_them(world: World) -> None:
    world.device("second")
    world.process("a", "gpu", busy=True)
    world.process("b", "second", busy=True)
    world.run(0.25)
    world.process("c", "second", busy=True)
    world.process("gang", "gpu", "second", busy=True)
    told = outlook(world.scheduler, world.scheduler.clients["gang"], world.now)
    assert told and (told.position, told.wait) == (2, pytest.approx(1.75))


def test_wait_of_a_suspended_client_starts_at_its_gate(world: World) -> None:
    a = world.process("a")
    client = world.scheduler.clients["a"]
    world.feed(ev.Suspended("a"))
    world.run(1.0)
    assert client.stands_since is None
    world.want(a)
    world.run(1.0)
    assert client.stands_since == 1.0
    assert outlook(world.scheduler, client, world.now) is None
    world.feed(ev.Resumed("a"))
    assert client.stands_since is None


def test_contended_turn_has_a_remaining_time(world: World) -> None:
    world.process("a", busy=True, drains_in=0.05)
    world.run(0.25)
    grant = world.scheduler.clients["a"].grant
    assert grant and seconds_left(grant, world.now) is None
    world.process("b", busy=True)
    assert seconds_left(grant, world.now) == pytest.approx(0.75)
    world.run_until(lambda: world.phase("a") == "draining")
    assert seconds_left(grant, world.now) is None


def test_event_log_has_events_and_decisions(world: World) -> None:
    world.busy("a", "b")
    world.run(QUANTUM)
    story = "\n".join(world.scheduler.story())
    assert "Wanted(process=1) -> Permit(client='a'" in story
    assert "1.000000 Ended(process=1, turn=" in story


def test_event_log_is_bounded(world: World) -> None:
    a = world.process("a", busy=True)
    for _ in range(1000):
        world.unwant(a)
        world.idle(a)
    assert len(world.scheduler.story()) <= 200
