"""Tests of the simulator's yardstick, a policy that knows the length of each cell."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.clairvoyant import Clairvoyant
from jupyter_gpushare.simulation.experiment import parse_variant, run
from jupyter_gpushare.simulation.reports.results import LENGTH_CLASSES, Results
from jupyter_gpushare.simulation.workloads.workload import Cell, Costs, DeviceModel, Participant, Workload

GB = 10**9
NO_COSTS = Costs(handoff=0.0, drain=0.0, empty_drain=0.0)


def run_clairvoyant(*cells: tuple[float, Cell]) -> Results:
    """Run a client for each cell; each client has its time of arrival."""
    participants = tuple(
        Participant(f"client {index}", (cell,), arrives=arrives, launch=1e-6)
        for index, (arrives, cell) in enumerate(cells)
    )
    workload = Workload("test", (DeviceModel(80 * GB, 50e9),), participants, NO_COSTS)
    return run(workload, parse_variant("clairvoyant:sharing=exclusive,max_wait=86400"), 1000.0)


def waits(results: Results) -> list[float]:
    return [wait for name in LENGTH_CLASSES for wait in results.waits[name]]


def test_shortest_cell_is_first_and_the_shorter_remainder_is_kept() -> None:
    results = run_clairvoyant((0.0, Cell(0.0, [0, 30])), (20.0, Cell(0.0, [0, 20])), (21.0, Cell(0.0, [0, 5])))
    # The second cell finds 10 s left of the first and waits; the third cell goes before both, and is the shortest.
    assert waits(results) == pytest.approx([0.0, 5.0, 15.0], abs=0.1)


def test_short_cell_preempts_an_endless_cell_for_all_its_length() -> None:
    endless = itertools.cycle([0.0, 60.0])
    results = run_clairvoyant((0.0, Cell(0.0, endless)), (10.0, Cell(0.0, [0, 100])))
    assert waits(results) == pytest.approx([0.0], abs=0.1)


def test_preemption_must_save_more_than_the_switch_costs() -> None:
    remaining = {"running": 30.0, "waiting": 20.0}
    policy = Clairvoyant(Settings(), lambda name: remaining[name])

    def end_with_costs(evict: float, restore: float) -> float:
        running: Any = SimpleNamespace(id="running", switch_cost=SimpleNamespace(total=evict + restore))
        waiting: Any = SimpleNamespace(id="waiting", switch_cost=SimpleNamespace(restore=restore))
        grant: Any = SimpleNamespace(client=running, work_starts_at=100.0)
        return policy.turn_end(grant, waiting, starvation_deadline=500.0)

    assert end_with_costs(evict=3.0, restore=3.0) == 100.0  # saves 10 s and costs 9 s
    assert end_with_costs(evict=4.0, restore=4.0) == 500.0
