"""Tests of MIG slices in the simulator with the shipped defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import DeviceModel, Participant

from .workloads import DEVICE, GB, CheckedSimulation, busy_participant, endless_participant, make_workload

SLICE = DeviceModel(20 * GB, 50e9, parent="GPU-whole")
SECONDS = 300.0


def run(devices: tuple[DeviceModel, ...], *participants: Participant) -> CheckedSimulation:
    workload = replace(make_workload(*participants), devices=devices, overlap=True)
    simulation = CheckedSimulation(workload, Settings())
    simulation.run(SECONDS)
    return simulation


def jobs(count: int, memory: int = 15 * GB) -> list[Participant]:
    return [endless_participant(f"job {number}", 0.0, 1000.0, memory=memory) for number in range(count)]


def test_each_slice_has_its_own_turns() -> None:
    """Two of the three jobs take turns, since their memory exceeds that of a slice."""
    simulation = run((SLICE, SLICE), *jobs(3))
    work = sorted(client.gpu_seconds for client in simulation.all_clients)
    assert work[2] == pytest.approx(SECONDS, abs=1.0)
    assert work[0] == pytest.approx(work[1], rel=0.1)
    assert 0.8 * SECONDS < work[0] + work[1] <= SECONDS


@pytest.mark.parametrize(("device", "moves"), [(SLICE, 0), (replace(SLICE, parent=""), 1)], ids=["slice", "whole"])
def test_no_client_moves_to_a_slice(device: DeviceModel, moves: int) -> None:
    """The client of the second device ends after 30 s, while two jobs take turns on the first."""
    first, other = jobs(2)
    simulation = run((device, device), first, busy_participant("short", 30.0, memory=15 * GB), other)
    assert simulation.moves == moves


def test_a_client_with_two_devices_gets_whole_devices_only() -> None:
    gang = replace(endless_participant("gang", 0.0, 1000.0, memory=2 * GB), gpus=2)
    assert run((SLICE, SLICE), gang).results.refused == 1
    simulation = run((SLICE, DEVICE, SLICE, DEVICE), gang)
    assert simulation.results.refused == 0
    assert [device.uuid for device in simulation.clients["gang"].devices] == ["GPU-1", "GPU-3"]


def test_a_notebook_gets_the_device_with_room_for_its_memory() -> None:
    """A quota of 40 GB does not fit on a slice."""
    big = endless_participant("big", 0.0, 1000.0, memory=40 * GB)
    big = replace(big, quota=big.quota.with_changes({"memory": 40 * GB}))
    simulation = run((SLICE, SLICE, DEVICE), big)
    assert [device.uuid for device in simulation.clients["big"].devices] == ["GPU-2"]
