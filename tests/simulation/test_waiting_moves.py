"""Tests of moves of clients to devices without work, in the simulator with the shipped defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation

from .workloads import (
    DEVICE,
    GB,
    CheckedSimulation,
    busy_participant,
    endless_participant,
    make_workload,
    some_notebooks,
)


def run(workload: Any, seconds: float, **settings: Any) -> CheckedSimulation:
    simulation = CheckedSimulation(replace(workload, overlap=True), Settings(**settings))
    simulation.run(seconds)
    return simulation


@pytest.mark.parametrize("memory", [20 * GB, 50 * GB], ids=["colocated", "in turns"])
def test_two_jobs_soon_have_a_device_each(memory: int) -> None:
    """A third job has the second device for 30 s. The jobs of 20 GB run together, and those of 50 GB take turns."""
    jobs = [endless_participant(name, 5.0, 1000.0, memory=memory) for name in ("one", "other")]
    clients = (jobs[0], busy_participant("short", 30.0, memory=memory), jobs[1])
    workload = replace(make_workload(*clients), devices=(DEVICE,) * 2)
    simulation = run(workload, 600.0)
    assert simulation.moves == 1
    work = [simulation.clients[name].gpu_seconds for name in ("one", "other")]
    assert sum(work) == pytest.approx(2 * 600.0 - 30.0, abs=60.0)
    assert min(work) > 540.0


def test_moved_notebooks_keep_all_rules() -> None:
    workload = some_notebooks(8, hours=0.3, load=0.5, jobs=1, restarts_per_day=200.0, devices=(DEVICE,) * 2)
    assert run(workload, 1000.0, wait_move=0.5).moves > 5


@pytest.mark.parametrize(
    ("devices", "jobs", "bound"), [(2, 1, 0.01), pytest.param(8, 4, 0.025, marks=pytest.mark.nightly)]
)
def test_little_time_of_devices_is_wasted_with_notebooks(devices: int, jobs: int, bound: float) -> None:
    seconds, whole = 7200.0, 7200.0 * devices
    workload = some_notebooks(4 * devices, hours=2.0, load=0.5, jobs=jobs, devices=(DEVICE,) * devices)
    wasted, awaited = [], []
    for wait_move in (0.0, 3.0):
        simulation = Simulation(replace(workload, overlap=True), Settings(wait_move=wait_move))
        simulation.run(seconds)
        wasted.append(simulation.results.wasted / whole)
        awaited.append(simulation.results.awaited / whole)
    assert wasted[0] > 0.1
    assert wasted[1] < bound
    assert max(awaited) < 0.001
