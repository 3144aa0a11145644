"""Whose memory leaves first is known without keeping all that ever waited."""

from __future__ import annotations

from .world import World, baseline


def test_what_is_remembered_does_not_grow_with_turns() -> None:
    world = World(baseline(time_quantum=0.1))
    world.device("d")
    for name in ("a", "b", "c"):
        world.process(name, busy=True)
    world.run(100.0)
    assert len(world.turns["d"]) > 900
    assert len(world.scheduler.devices["d"].leavers._waiting) < 100
