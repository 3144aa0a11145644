"""Tests of device failures and recoveries, as the coordinator derives them from the results of NVML."""

from __future__ import annotations

import pytest

from jupyter_gpushare.coordinator.gpu.device_health import DeviceHealth
from jupyter_gpushare.nvml_devices import NvmlDevice

from .fake_nvml import ANY_INSTANCE, FakeNvml


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml("a", "b", without=("b",))


@pytest.fixture
def health(nvml: FakeNvml) -> DeviceHealth:
    health = DeviceHealth(nvml, {uuid: NvmlDevice(uuid, uuid, uuid) for uuid in ("a", "b")})
    assert health.poll() == [], "errors before the first poll count"
    return health


def test_lost_device_is_reported_once_and_once_on_recovery(nvml: FakeNvml, health: DeviceHealth) -> None:
    nvml.lost["a"] = nvml.NVML_ERROR_GPU_IS_LOST
    assert health.poll() == [("a", "lost (error 15)")]
    assert health.poll() == []
    del nvml.lost["a"]
    assert health.poll() == [("a", "")]


def test_other_call_failures_are_ignored(nvml: FakeNvml, health: DeviceHealth) -> None:
    nvml.lost["a"] = 999
    assert health.poll() == []


def test_uncorrectable_errors_persist(nvml: FakeNvml, health: DeviceHealth) -> None:
    nvml.ecc["a"] += 1
    assert health.poll() == [("a", "uncorrectable memory error")]
    assert health.poll() == []
    del nvml.ecc["b"]
    assert health.poll() == [], "a device without an error counter has failed"


@pytest.mark.parametrize(("xid", "changes"), [(79, [("a", "Xid 79: fallen off the bus")]), (31, []), (13, [])])
def test_hardware_errors_count_and_program_errors_do_not(
    nvml: FakeNvml, health: DeviceHealth, xid: int, changes: list[tuple[str, str]]
) -> None:
    nvml.events = [("a", xid), ("other", 79)]
    assert health.poll() == changes
    assert health.poll() == []


XID = "Xid 79: fallen off the bus"


@pytest.mark.parametrize(
    ("event", "failed"),
    [
        (("gpu", 79), ["one", "two"]),
        (("gpu", 79, 2, 0), ["two"]),
        (("gpu", 79, 2, ANY_INSTANCE), ["two"]),
        (("gpu", 79, 2, 1), []),
        (("whole", 79), ["whole"]),
    ],
)
def test_an_event_of_a_gpu_concerns_its_slices(event: tuple[object, ...], failed: list[str]) -> None:
    nvml = FakeNvml("whole", "gpu", slices={"gpu": ("one", "two")})
    devices = {
        "whole": NvmlDevice("whole", "whole", "whole"),
        "one": NvmlDevice("one", "gpu", "gpu", (1, 0)),
        "two": NvmlDevice("two", "gpu", "gpu", (2, 0)),
    }
    health = DeviceHealth(nvml, devices)
    assert nvml.registered == ["whole", "gpu"]
    nvml.events = [event]
    assert health.poll() == [(uuid, XID) for uuid in failed]


def test_without_nvml_everything_is_healthy() -> None:
    assert DeviceHealth(None, {}).poll() == []
