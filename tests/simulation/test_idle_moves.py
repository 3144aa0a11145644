"""Tests of moves of idle clients in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import (
    GB,
    busy_participant,
    endless_participant,
    make_workload,
    simulate,
    simulate_shipped,
    some_notebooks,
)


def notebook_beside_a_job(seconds: float, **settings: Any) -> Simulation:
    """Simulate a notebook and a job, which have one device since another client had the other device for 30 s.

    The notebook works for 1 s, thinks for 200 s, and works for 100 s. The two clients do not fit on a device together.
    """
    notebook = Participant("notebook", (Cell(0.0, (0.0, 1.0)), Cell(200.0, (0.0, 100.0))), 60 * GB)
    job = replace(endless_participant("job", 5.0, 1000.0, memory=60 * GB), arrives=5.0)
    return swap_devices(make_workload(notebook, busy_participant("short", 30.0), job), 2, seconds, **settings)


def swap_devices(workload: Workload, devices: int, seconds: float, **settings: Any) -> Simulation:
    """Simulate the workload in memory mode `swap` with the shipped settings."""
    workload = replace(workload, devices=workload.devices * devices, overlap=True)
    return simulate_shipped(workload, seconds, **settings)


def test_a_notebook_leaves_the_device_of_a_job_before_its_next_cell() -> None:
    stays, moves = (notebook_beside_a_job(190.0, idle_move=idle) for idle in (0.0, 60.0))
    assert (stays.moves, moves.moves) == (0, 1)
    stays, moves = (notebook_beside_a_job(500.0, idle_move=idle) for idle in (0.0, 60.0))
    assert moves.clients["notebook"].gpu_seconds == pytest.approx(101.0)
    assert moves.clients["job"].gpu_seconds > stays.clients["job"].gpu_seconds
    assert moves.results.wasted < 0.1 < stays.results.wasted


def test_moved_notebooks_keep_all_rules() -> None:
    """`simulate` checks memory, turns and waits after every event."""
    workload = some_notebooks(12, hours=1.0, load=0.5, jobs=1)
    simulation = swap_devices(workload, 3, 3600.0, idle_move=10.0)
    assert simulation.moves > 3
    assert all(len(client.devices) <= 1 for client in simulation.all_clients)


def test_a_kernel_that_restarts_while_it_moves_leaves_both_devices() -> None:
    workload = some_notebooks(12, hours=1.0, load=0.5, jobs=1, restarts_per_day=400.0)
    simulation = swap_devices(workload, 3, 3600.0, idle_move=10.0)
    assert simulation.moves > 3
    for device in simulation.devices.values():
        assert all(device in client.devices or client.moving_to for client in device.clients_in_turn.values())


def test_notebooks_with_unified_memory_stay() -> None:
    workload = some_notebooks(12, hours=0.5, load=0.5, jobs=1)
    simulation = simulate(replace(workload, devices=workload.devices * 3), 1800.0, idle_move=10.0)
    assert simulation.moves == 0
