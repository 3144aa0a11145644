"""Tests of the release of cached memory in the simulator, at the end of a cell while memory is short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import GB, CheckedSimulation, make_workload, some_notebooks


class CheckedCaches(CheckedSimulation):
    """Simulation that checks the memory of each client after every event."""

    def handle_event(self, event: object) -> None:
        super().handle_event(event)  # type: ignore[arg-type]
        for client in self.all_clients:
            assert 0 <= client.unmade <= client.allocated - client.resident or not client.allocated


def run(workload: Workload, seconds: float, mode: str = "swap") -> CheckedCaches:
    simulation = CheckedCaches(replace(workload, overlap=mode == "swap"), Settings())
    simulation.run(seconds)
    return simulation


def notebook(name: str, arrives: float, memory: int, cache: int) -> Participant:
    cells = (Cell(0.0, (0.0, 2.0)), *(Cell(8.0, (0.0, 2.0)) for _ in range(9)))
    return Participant(name, cells, memory, arrives=arrives, cache=cache)


@pytest.mark.parametrize("mode", ["swap", "unified"])
def test_nothing_moves_while_memory_without_caches_fits(mode: str) -> None:
    """Two notebooks of 50 GB on a device of 80 GB run cells by turns; 30 GB of each is cache."""
    moved, waited = [], []
    for cache in (0, 30 * GB):
        pair = [notebook("one", 0.0, 50 * GB, cache), notebook("other", 5.0, 50 * GB, cache)]
        simulation = run(make_workload(*pair), 200.0, mode)
        assert all(client.gpu_seconds == pytest.approx(20.0) for client in simulation.all_clients)
        moved.append(simulation.bytes_in + simulation.bytes_out)
        waited.append(sum(client.wait_seconds for client in simulation.all_clients))
    assert moved[0] > 18 * 2 * 20 * GB, "each of 19 changes of turns moves what does not fit, to and fro"
    assert moved[1] < 200 * GB, "the first allocations, and the evictions before the first cell of each has ended"
    assert waited[1] < waited[0] / 2


def test_caches_stay_while_all_memory_fits() -> None:
    pair = [notebook("one", 0.0, 30 * GB, 20 * GB), notebook("other", 5.0, 30 * GB, 20 * GB)]
    assert [client.allocated for client in run(make_workload(*pair), 200.0).all_clients] == [30 * GB, 30 * GB]


@pytest.mark.parametrize("mode", ["swap", "unified"])
def test_released_caches_leave_less_to_move(mode: str) -> None:
    workload = some_notebooks(6, hours=0.2, load=0.5, restarts_per_day=100.0)
    moved = []
    for part in (0.0, 0.5):
        participants = tuple(replace(one, cache=int(one.memory * part)) for one in workload.participants)
        simulation = run(replace(workload, participants=participants), 720.0, mode)
        moved.append((simulation.bytes_in, simulation.bytes_out))
    assert moved[1][0] < 0.8 * moved[0][0]
    assert moved[1][1] < 0.8 * moved[0][1]
