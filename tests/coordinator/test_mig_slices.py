"""Tests of MIG slices in the list of devices from NVML, and in the topology."""

from __future__ import annotations

import logging
import sys

import pytest

from jupyter_gpushare.coordinator.gpu import simulated_driver
from jupyter_gpushare.coordinator.gpu.nvml import Nvml
from jupyter_gpushare.coordinator.gpu.topology import infer_from_distances

from ..driver_facts import mig
from ..driver_facts.harness import Cuda, on_driver
from .fake_nvml import FakeNvml


def nvml_with(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return Nvml()


def test_slices_take_the_place_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml("GPU-0", "GPU-1", slices={"GPU-1": ("MIG-a", None, "MIG-b")})
    devices = nvml_with(monkeypatch, fake).devices()
    assert [(one.uuid, one.name, one.memory >> 30, one.parent) for one in devices] == [
        ("GPU-0", "Fake GPU", 8, ""),
        ("MIG-a", "Fake GPU MIG 1g.2gb", 2, "GPU-1"),
        ("MIG-b", "Fake GPU MIG 1g.2gb", 2, "GPU-1"),
    ]


def test_a_gpu_in_mig_mode_without_slices_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeNvml("GPU-0", "GPU-1", slices={"GPU-0": (None, None)})
    with caplog.at_level(logging.WARNING):
        assert [one.uuid for one in nvml_with(monkeypatch, fake).devices()] == ["GPU-1"]
    assert "leaving out GPU 0 (GPU-0), which is in MIG mode and has no slice" in caplog.text


def test_a_slice_that_cannot_be_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeNvml("GPU-0", slices={"GPU-0": ("MIG-a", "MIG-b")})
    fake.lost["MIG-a"] = 4
    assert [one.uuid for one in nvml_with(monkeypatch, fake).devices()] == ["MIG-b"]
    assert "leaving out MIG slice 0 of GPU-0, which NVML cannot read: error 4" in caplog.text


def test_the_distance_of_slices_is_that_of_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml("GPU-0", "GPU-1", "GPU-2", slices={"GPU-0": ("MIG-a", "MIG-b"), "GPU-2": ("MIG-c",)})
    fake.levels = {("GPU-0", "GPU-1"): 20, ("GPU-0", "GPU-2"): 40, ("GPU-1", "GPU-2"): 40}
    nvml = nvml_with(monkeypatch, fake)
    uuids = [one.uuid for one in nvml.devices()]
    assert nvml.distance("MIG-a", "MIG-b") == 0
    assert infer_from_distances(uuids, nvml.distance) == {
        "node0": {"socket0": {"switch0": ["MIG-a", "MIG-b", "GPU-1"], "switch1": ["MIG-c"]}}
    }


@on_driver(GPUSHARE_SIM_CONFIG=str(mig.CONFIG))
def test_nvml_and_the_simulated_driver_list_the_same_slices(cuda: Cuda) -> None:
    """The stand-in for NVML is called through pynvml, as NVML is."""
    mig.load_nvml()
    nvml = Nvml()
    found = [(one.uuid, one.name, one.memory, one.parent) for one in nvml.devices()]
    assert found == [(one.uuid, one.name, one.memory, one.parent) for one in simulated_driver.devices()]
    assert [bool(parent) for _, _, _, parent in found] == [False, True, True]
    assert nvml.distance(found[1][0], found[2][0]) == 0
    assert mig.uuid_text(cuda.device) == found[1][0]
    nvml.sample()
    assert [nvml.processes(uuid) for uuid, *_ in found] == [{}, {}, {}]
