"""Worlds with the settings of most tests; everything is checked once more when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.core.invariants import check

from .world import World, host_of

QUANTUM = 1.0

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(*devices: str, **settings: float) -> World:
        made.append(host_of(*devices or ("gpu",), **{"time_quantum": QUANTUM, **settings}))
        return made[-1]

    yield make
    for world in made:
        check(world.scheduler, world.now)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """One device, a quantum of one second."""
    return make_world()
