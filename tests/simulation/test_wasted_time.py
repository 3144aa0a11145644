"""Tests of the figures `wasted` and `awaited`: time in which a device has no turn although a client waits.

The clients have so much memory that no two of them fit on a device together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.simulation.workloads.workload import Cell, Participant

from .workloads import GB, busy_participant, endless_participant, make_workload, simulate_shipped

MEMORY = 50 * GB
CLIENTS = (
    endless_participant("one", 0.0, 10.0, memory=MEMORY),
    busy_participant("short", 10.0, memory=MEMORY),
    endless_participant("other", 0.0, 10.0, memory=MEMORY),
)


def wasted(devices: int, failure: tuple[tuple[float, float], ...] = (), mode: str = "unified") -> float:
    """Return the wasted part of the devices' time in 100 s, if the last device fails at these times."""
    workload = make_workload(*CLIENTS)
    device = workload.devices[0]
    given = replace(
        workload,
        devices=(device,) * (devices - 1) + (replace(device, outages=failure),),
        overlap=mode == "swap",
    )
    return simulate_shipped(given, 100.0).results.wasted / (100.0 * devices)


def test_nothing_is_wasted_on_one_device() -> None:
    assert wasted(1) == pytest.approx(0.0, abs=0.001)


def test_one_of_two_clients_of_a_device_moves_to_a_device_without_clients() -> None:
    """The client of the second device ends after 10 s."""
    assert wasted(2, mode="swap") < 0.02


def test_clients_with_unified_memory_share_a_device_while_another_device_is_wasted() -> None:
    """The client of the second device ends after 10 s, and the driver moves no client with unified memory."""
    assert wasted(2) == pytest.approx((100.0 - 10.0) / 200.0, abs=0.01)


def test_a_device_whose_notebook_has_not_begun_is_not_wasted() -> None:
    """The second job gets the device of a notebook without work so far, although the notebook came first."""
    notebook = Participant("notebook", (Cell(1000.0, (0.0, 1.0)),))
    workload = make_workload(endless_participant("one", 0.0, 10.0), notebook, endless_participant("other", 5.0, 1000.0))
    simulation = simulate_shipped(replace(workload, devices=workload.devices * 2), 100.0)
    assert simulation.results.wasted == pytest.approx(0.0, abs=0.01)
    assert [client.gpu_seconds for client in simulation.all_clients] == pytest.approx([100.0, 0.0, 95.0], abs=1.0)


def test_a_failed_device_is_not_wasted() -> None:
    assert wasted(2, ((20.0, 70.0),)) == pytest.approx((100.0 - 10.0 - 50.0) / 200.0, abs=0.01)


def test_only_a_device_for_which_a_client_waits_is_awaited() -> None:
    """The second device has no work after 10 s, and a client of both devices waits for the first one from 50 s on."""
    gang = Participant("gang", (Cell(0.0, (0.0, 30.0)),), gpus=2, arrives=50.0)
    workload = make_workload(*CLIENTS, gang)
    devices = replace(workload, devices=workload.devices * 2)
    simulation = simulate_shipped(devices, 100.0)
    waited = simulation.clients["gang"].wait_seconds
    assert waited > 10.0
    assert simulation.results.awaited == pytest.approx(waited, abs=0.01)
    assert simulation.results.wasted == pytest.approx(40.0 + waited, abs=2.0)
