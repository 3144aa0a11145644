"""Test of notebooks in which most cells ran before, under the shipped settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Workload

from .workloads import some_notebooks

HOURS = 0.5


@dataclass(frozen=True)
class Unnamed:
    """The same cells, each of which counts as a cell that never ran before."""

    cells: Iterable[Cell]

    def __iter__(self) -> Iterator[Cell]:
        return (cell._replace(name="") for cell in self.cells)


def without_expectations(workload: Workload) -> Workload:
    participants = tuple(replace(one, cells=Unnamed(one.cells)) for one in workload.participants)
    return replace(workload, participants=participants)


def mean_bounded_slowdown(workload: Workload) -> float:
    simulation = Simulation(workload, Settings())
    simulation.run(HOURS * 3600.0)
    return float(simulation.results.as_json()["mean_bounded_slowdown"])


def test_cells_that_ran_before_slow_each_other_down_less() -> None:
    """The work is the same with and without expectations, so only the order of the cells differs.

    The order has chance effects in a workload of half an hour, so the test compares the sums of four workloads.
    """
    expected = unknown = new_cells = 0.0
    for seed in range(1, 5):
        workload = some_notebooks(hours=HOURS, seed=seed, load=0.8, reruns=0.67)
        expected += mean_bounded_slowdown(workload) - 1.0
        unknown += mean_bounded_slowdown(without_expectations(workload)) - 1.0
        new_cells += mean_bounded_slowdown(some_notebooks(hours=HOURS, seed=seed, load=0.8)) - 1.0
    assert expected < 0.95 * unknown
    assert expected < new_cells
