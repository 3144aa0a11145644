"""Measurements of driver calls and contexts, without other work and while a rival has the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..system.system_host import MIB
from .card_host import IS_GPU, PROGRAMS, WAIT, CardHost

SIZE = (1024 if IS_GPU else 32) * MIB


@pytest.mark.parametrize("company", ["exclusive", "rival"])
def test_costs_of_calls(host: CardHost, company: str, record_property: Callable[[str, object], None]) -> None:
    """The program that measures has no shim, so the times are those of the driver."""
    host.begin("unified")
    program = host.card_program("")
    rival = host.start_rival("unified", size=SIZE) if company == "rival" else None
    program.start(f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); from costs import Costs")
    program.result(WAIT)
    figures = program.run(f"Costs(cuda, {SIZE}).measure()", WAIT)
    for name, value in figures.items():
        record_property(name, value)
    assert all(value > 0 for value in figures.values())
    if rival:
        host.stop_rival(rival, size=SIZE)


def test_bytes_of_a_context(host: CardHost, record_property: Callable[[str, object], None]) -> None:
    """Each program takes memory for its context, which neither the shim nor the coordinator can move."""
    host.begin("unified")
    witness = host.card_program("")
    host.start_rival("unified", size=SIZE)
    before = witness.run("cuda.info()[0]")
    bare = host.card_program("")
    between = witness.run("cuda.info()[0]")
    client = host.card_program("one", "unified")
    after = witness.run("cuda.info()[0]")
    record_property("without_the_shim_MiB", (before - between) / MIB)
    record_property("with_the_shim_MiB", (between - after) / MIB)
    assert before > between > after
    for program in (bare, client):
        program.end()
