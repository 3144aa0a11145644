"""Test of placement on two devices: programs get the devices of their affinity and their fraction of the memory."""

from __future__ import annotations

import pytest

from .system_host import SystemHost

SIZE = 256 << 20  # bytes of each device


@pytest.fixture
def two_device_host(host: SystemHost) -> SystemHost:
    """Return a host with two devices."""
    host.devices = 2
    host.start_coordinator("--time-quantum", "20")
    return host


def devices(host: SystemHost) -> list[str]:
    return [device["uuid"] for device in host.status()["devices"]]


def test_affinity_and_fractions_of_memory_reach_the_program(two_device_host: SystemHost) -> None:
    first = two_device_host.run("--memory", "0.25", "--place", "affinity=pair")
    first.run("cuda = Cuda()")
    assert first.run("cuda.info()")[1] == SIZE // 4
    other = two_device_host.command("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
    affine = two_device_host.command("run", "--place", "affinity=pair", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    (client,) = two_device_host.clients().values()
    assert [affine.stdout.strip()] == client["devices"]
    assert {other, *client["devices"]} == set(devices(two_device_host))
