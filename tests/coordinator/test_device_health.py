"""Tests of device failures and recoveries, as the coordinator derives them from the results of NVML."""

from __future__ import annotations

import pytest

from jupyter_gpushare.coordinator.gpu.device_health import DeviceHealth

from .fake_nvml import FakeNvml


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml("a", "b", without=("b",))


@pytest.fixture
def health(nvml: FakeNvml) -> DeviceHealth:
    health = DeviceHealth(nvml, {"a": "a", "b": "b"})
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


def test_without_nvml_everything_is_healthy() -> None:
    assert DeviceHealth(None, {}).poll() == []
