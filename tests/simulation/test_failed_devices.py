"""Tests of a device that an admin takes out of use while clients work there, under the shipped settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings

from .workloads import GB, CheckedSimulation, endless_participant, make_workload


def taken_out_of_use(memory: int, overlap: bool) -> CheckedSimulation:
    """Simulate three jobs on two devices for 20 s, and 20 s more after the failure of the device with two of them."""
    jobs = [endless_participant(name, 0.0, 1000.0, memory=memory) for name in "abc"]
    workload = make_workload(*jobs)
    simulation = CheckedSimulation(replace(workload, devices=workload.devices * 2, overlap=overlap), Settings())
    simulation.run_until(20.0)
    assert devices(simulation) == [["GPU-0"], ["GPU-1"], ["GPU-0"]]
    simulation.handle_event(ev.DeviceFailed("GPU-0", "maintenance", works=True))
    simulation.run_until(40.0)
    return simulation


def devices(simulation: CheckedSimulation) -> list[list[str]]:
    return [[device.uuid for device in client.devices] for client in simulation.all_clients]


@pytest.mark.parametrize("memory", [0, 50 * GB])
def test_clients_at_work_leave_the_device_and_share_the_other_one(memory: int) -> None:
    """Clients without memory run together, and clients with 50 GB take turns. After the recovery, one moves back."""
    simulation = taken_out_of_use(memory, overlap=True)
    assert (devices(simulation), simulation.moves) == ([["GPU-1"]] * 3, 2)
    before = [client.busy_seconds for client in simulation.all_clients]
    simulation.handle_event(ev.DeviceRecovered("GPU-0"))
    simulation.run(100.0)
    assert simulation.moves == 3
    after = [client.busy_seconds for client in simulation.all_clients]
    assert min(now - then for now, then in zip(after, before, strict=True)) >= 15.0


def test_clients_with_unified_memory_stay_and_go_on() -> None:
    simulation = taken_out_of_use(50 * GB, overlap=False)
    before = [client.gpu_seconds for client in simulation.all_clients]
    simulation.run(100.0)
    assert (devices(simulation), simulation.moves) == ([["GPU-0"], ["GPU-1"], ["GPU-0"]], 0)
    assert all(client.gpu_seconds >= then + 25.0 for client, then in zip(simulation.all_clients, before, strict=True))
