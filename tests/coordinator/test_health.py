"""What NVML says of devices, and what is made of it."""

from __future__ import annotations

import pytest

from jupyter_gpushare.coordinator.health import Health

from .fake_nvml import FakeNvml


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml("a", "b", without=("b",))


@pytest.fixture
def health(nvml: FakeNvml) -> Health:
    health = Health(nvml, {"a": "a", "b": "b"})
    assert health.look() == [], "errors of the time before do not count"
    return health


def test_a_lost_device_is_told_once_and_again_when_it_is_back(nvml: FakeNvml, health: Health) -> None:
    nvml.lost["a"] = nvml.NVML_ERROR_GPU_IS_LOST
    assert health.look() == [("a", "lost (error 15)")]
    assert health.look() == []
    del nvml.lost["a"]
    assert health.look() == [("a", "")]


def test_a_call_that_fails_for_another_reason_means_nothing(nvml: FakeNvml, health: Health) -> None:
    nvml.lost["a"] = 999
    assert health.look() == []


def test_uncorrectable_errors_last(nvml: FakeNvml, health: Health) -> None:
    nvml.ecc["a"] += 1
    assert health.look() == [("a", "uncorrectable memory error")]
    assert health.look() == []
    del nvml.ecc["b"]
    assert health.look() == [], "a device without such a counter is healthy"


@pytest.mark.parametrize(("xid", "told"), [(79, [("a", "Xid 79: fallen off the bus")]), (31, []), (13, [])])
def test_errors_of_the_hardware_count_and_those_of_programs_do_not(
    nvml: FakeNvml, health: Health, xid: int, told: list[tuple[str, str]]
) -> None:
    nvml.events = [("a", xid), ("elsewhere", 79)]
    assert health.look() == told
    assert health.look() == []


def test_without_nvml_everything_is_healthy() -> None:
    assert Health(None, {}).look() == []
