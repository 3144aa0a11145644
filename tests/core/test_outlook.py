"""What the queue is told about its waits, and what error reports tell of the past."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.outlook import expected_waits

from .conftest import QUANTUM
from .world import World, baseline


def waits(world: World) -> dict[str, float]:
    return expected_waits(world.scheduler, "gpu", world.now)


def test_nobody_waits(world: World) -> None:
    assert waits(world) == {}
    world.process("a", busy=True)
    assert waits(world) == {}


def test_everybody_ahead_takes_a_quantum_until_their_turns_are_known(world: World) -> None:
    for name in "abc":
        world.process(name, busy=True)
    world.run(0.25)
    assert waits(world) == pytest.approx({"b": 0.75, "c": 1.75})


def test_short_turns_shorten_the_wait(world: World) -> None:
    a = world.process("a")
    for _ in range(20):
        world.start_cell("a", "1")
        world.want(a)
        world.run(0.05)
        world.end_cell("a", "1")
        world.run(1)
    world.process("b", busy=True)
    world.run(0.5)
    world.want(a)
    world.process("c", busy=True)
    expected = waits(world)
    assert expected["a"] == pytest.approx(0.5)
    assert expected["c"] == pytest.approx(0.5 + 0.1)


def test_no_turn_is_expected_to_be_longer_than_the_quantum_of_now(world: World) -> None:
    for name in "abc":
        world.process(name, busy=True)
    world.run(5 * QUANTUM)
    world.feed(ev.SettingsChanged(baseline(time_quantum=0.25)))
    world.run(0.1)
    first, second = waits(world).values()
    assert second - first == pytest.approx(0.25)


def test_an_overdue_turn_is_expected_to_end_now(world: World) -> None:
    a = world.process("a", drains_in=5)
    world.want(a)
    world.process("b", busy=True)
    world.run(3 * QUANTUM)
    assert waits(world) == {"b": 0.0}


def test_the_story_tells_events_and_decisions(world: World) -> None:
    world.process("a", busy=True)
    world.process("b", busy=True)
    world.run(QUANTUM)
    story = "\n".join(world.scheduler.story())
    assert "Wanted(process=1) -> Grant(client='a'" in story
    assert "1.000000 TimePassed() -> Close(client='a'" in story


def test_the_story_is_bounded(world: World) -> None:
    a = world.process("a", busy=True)
    for _ in range(1000):
        world.unwant(a)
        world.idle(a)
    assert len(world.scheduler.story()) <= 200
