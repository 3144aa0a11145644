"""Fixtures with simulated hosts, whose invariants are checked once more at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.core.views.invariants import check

from .simulated_host import SimulatedHost, host_of

QUANTUM_SECONDS = 1.0

MakeHost = Callable[..., SimulatedHost]


@pytest.fixture
def make_host() -> Iterator[MakeHost]:
    made: list[SimulatedHost] = []

    def make(*devices: str, **settings: float) -> SimulatedHost:
        made.append(host_of(*devices or ("gpu",), **{"time_quantum": QUANTUM_SECONDS, **settings}))
        return made[-1]

    yield make
    for host in made:
        check(host.scheduler, host.now)


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedHost:
    """Return a host with one device and a quantum of one second."""
    return make_host()
