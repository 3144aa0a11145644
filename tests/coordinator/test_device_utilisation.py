"""Tests of the utilisation of devices, from NVML or else from the reports of processes."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.coordinator.gpu.nvml import Nvml
from jupyter_gpushare.coordinator.monitoring.device_utilisation import UtilisationSampler
from jupyter_gpushare.coordinator.views import subscriptions
from jupyter_gpushare.server import snapshot_times
from jupyter_gpushare.wire import messages

from .conftest import CoordinatorProcess, ProcessFactory
from .fake_nvml import FakeNvml
from .protocol_process import wait_until


def device(coordinator: CoordinatorProcess) -> Any:
    return coordinator.status()["devices"][0]


def test_without_nvml_utilisation_is_estimated_from_reports(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    a = processes("a")
    wait_until(lambda: device(coordinator)["utilisation"] == 0.0)
    assert device(coordinator)["utilisation_is_estimate"] is True
    started_at = time.monotonic_ns()

    def is_half_busy() -> bool:
        a.report.gpu_ns = (time.monotonic_ns() - started_at) // 2
        return bool(0.35 < device(coordinator)["utilisation"] < 0.65)

    wait_until(is_half_busy)
    utilisation = coordinator.request(messages.History())["utilisation"]
    assert utilisation.keys() == {device(coordinator)["uuid"]}


def test_change_of_only_the_utilisation_sends_no_snapshot(coordinator: CoordinatorProcess) -> None:
    """Such snapshots would make an idle server look busy to a hub's proxy."""
    status = coordinator.status()
    busy = {**status, "devices": [{"uuid": "gpu", "grants": [], "utilisation": 0.9}]}
    idle = {**status, "devices": [{"uuid": "gpu", "grants": [], "utilisation": 0.1}]}
    other = {**status, "devices": [{"uuid": "gpu", "grants": [1], "utilisation": 0.1}]}
    for fields_of in (subscriptions.significant_fields, snapshot_times.without_clock_fields):
        assert fields_of(busy) == fields_of(idle) != fields_of(other)


def _samples(fraction: float, nvml: Any = None, simulated: bool = False, clients: int = 1) -> UtilisationSampler:
    """Return samples of a device that was busy for a fraction of the time for each client."""
    names = [f"c{number}" for number in range(clients)]
    found = SimpleNamespace(info=SimpleNamespace(simulated=simulated), clients=dict.fromkeys(names))
    scheduler: Any = SimpleNamespace(devices={"gpu": found}, clients=dict.fromkeys(names))
    sampler = UtilisationSampler(nvml or SimpleNamespace(utilisation=lambda uuid: None))
    for second in range(5):
        counters = SimpleNamespace(gpu_ns=int(fraction * second * 1e9))
        sampler.sample(scheduler, [SimpleNamespace(client_id=name, counters=counters) for name in names], float(second))  # type: ignore[misc]
    return sampler


@pytest.mark.parametrize(("fraction", "clients", "found"), [(0.0, 1, 0.0), (0.3, 2, 0.6), (0.8, 2, 1.0)])
def test_busy_time_of_colocated_clients_is_added_up(fraction: float, clients: int, found: float) -> None:
    assert _samples(fraction, clients=clients).of_device("gpu").fraction == pytest.approx(found)


def test_nvml_overrides_the_estimate_except_on_simulated_devices() -> None:
    nvml = SimpleNamespace(utilisation=lambda uuid: 0.9)
    assert _samples(0.1, nvml).of_device("gpu").as_json() == {"utilisation": 0.9, "utilisation_is_estimate": False}
    assert _samples(0.1, nvml, simulated=True).of_device("gpu").fraction == pytest.approx(0.1)
    assert _samples(0.1).of_device("another").fraction is None


def test_nvml_returns_percent_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("GPU-0", "GPU-1", slices={"GPU-1": ("MIG-1",)}))
    nvml = Nvml()
    assert [found.uuid for found in nvml.devices()] == ["GPU-0", "MIG-1"]
    devices = ("GPU-0", "MIG-1", "GPU-other")
    nvml.sample()
    assert [nvml.utilisation(uuid) for uuid in devices] == [0.37, None, None]
    assert [nvml.memory_used(uuid) for uuid in devices] == [1 << 30, 1 << 30, None]
    nvml.discard_samples()
    assert [nvml.utilisation(uuid) for uuid in devices] == [None, None, None]
