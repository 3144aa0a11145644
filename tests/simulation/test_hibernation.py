"""Tests of hibernation in the simulator with the shipped defaults and the setting `hibernate_after`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import DEVICE, GB, CheckedSimulation, endless_participant, make_workload, some_notebooks

IDLE = 100.0
MEMORY = 20 * GB
DRIVER_SECONDS = 0.6  # for one half of a move


class Hibernations(CheckedSimulation):
    """Simulation that records the ends of hibernations and returns."""

    def __init__(self, workload: Workload, settings: Settings) -> None:
        self.ends: list[cmd.FinishMove] = []
        super().__init__(workload, settings)

    def _on_finish_move(self, command: cmd.FinishMove) -> None:
        self.ends.append(command)
        super()._on_finish_move(command)

    def count(self, *, returns: bool) -> int:
        return sum(end.returns == returns and not end.error for end in self.ends)


def run(workload: Workload, seconds: float, mode: str = "swap", **settings: Any) -> Hibernations:
    settings = {"hibernate_after": IDLE, **settings}
    simulation = Hibernations(replace(workload, overlap=mode == "swap"), Settings(**settings))
    simulation.run(seconds)
    return simulation


def notebook(*thinks: float) -> Participant:
    return Participant("notebook", tuple(Cell(think, (0.0, 2.0)) for think in thinks), MEMORY)


def waits(simulation: Simulation) -> list[float]:
    return list(simulation.results.waits["short"])


def test_an_idle_notebook_hibernates_and_is_back_at_its_next_cell() -> None:
    simulation = run(make_workload(notebook(0.0, 300.0, 20.0, 300.0)), 1000.0)
    assert [simulation.count(returns=returns) for returns in (False, True)] == [3, 2]
    first, after_hibernation, soon, again = waits(simulation)
    restore = MEMORY / DEVICE.link
    assert first == pytest.approx(restore, abs=0.01)
    assert soon == pytest.approx(0.0, abs=0.01)
    assert after_hibernation == pytest.approx(DRIVER_SECONDS + restore, abs=0.1)
    assert again == pytest.approx(after_hibernation, abs=0.01)
    assert simulation.clients["notebook"].gpu_seconds == pytest.approx(8.0)
    assert all(device.resident_bytes == 0 for device in simulation.devices.values()), "it is hibernated at the end"


def test_a_notebook_returns_beside_an_endless_job() -> None:
    job = endless_participant("job", 0.0, 1000.0, memory=70 * GB)
    simulation = run(make_workload(notebook(0.0, 300.0, 300.0), job), 1000.0)
    assert simulation.count(returns=True) == 2
    switch = 2 * (70 * GB + MEMORY - DEVICE.memory) / DEVICE.link
    assert max(waits(simulation)[1:]) <= 1.0 + 2 * DRIVER_SECONDS + 2 * switch
    assert simulation.clients["job"].gpu_seconds > 1000.0 - 30.0


@pytest.mark.parametrize(
    ("client", "mode"), [("notebook", "unified"), ("job", "swap")], ids=["unified memory", "no notebook"]
)
def test_a_client_that_cannot_hibernate_stays(client: str, mode: str) -> None:
    given = replace(notebook(0.0, 300.0), kind=client)
    simulation = run(make_workload(given), 500.0, mode)
    assert [bool(end.error) for end in simulation.ends] == [True]
    assert waits(simulation)[1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("restarts", [0.0, 400.0])
def test_hibernated_notebooks_keep_all_rules(restarts: float) -> None:
    """`CheckedSimulation` checks memory, turns and waits after every event."""
    workload = some_notebooks(8, hours=1.0, load=0.5, jobs=1, restarts_per_day=restarts)
    simulation = run(workload, 3600.0, hibernate_after=20.0)
    assert simulation.count(returns=False) > 20 and simulation.count(returns=True) > 20
    assert simulation.results.work > 0.8 * 3600.0


def test_idle_notebooks_move_and_hibernate() -> None:
    workload = some_notebooks(8, hours=1.0, load=0.5, jobs=1, devices=(DEVICE,) * 2)
    simulation = run(workload, 3600.0, hibernate_after=60.0, idle_move=20.0)
    assert simulation.moves > 3 and simulation.count(returns=True) > 3
