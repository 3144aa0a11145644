"""Tests of mode "swap" with two simulated devices: memory leaves and comes back on the device that is short only."""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_peers import PEERS, evict, two_devices
from .test_shim_swap import EVERYTHING, MIB

DEVICES = {"GPUSHARE_SIM_MEMORY": "256MiB", "GPUSHARE_SIM_DEVICES": "2"}
OWN, PEER = 100 * MIB, 40 * MIB  # bytes on each device


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Start a program with memory on both devices, that of the second one made last."""
    client, process = two_devices(machine, coordinator, "swap", GPUSHARE_SIM_MEMORY=DEVICES["GPUSHARE_SIM_MEMORY"])
    client.run(f"own_array, array_there = cuda.alloc({OWN})[1], alloc_there({PEER})")
    assert client.run("cuda.launch('fill_f32', own_array, 3.0, 1000) or cuda.cuCtxSynchronize()") == 0
    return client, process


def rows(process: ProcessConnection) -> list[tuple[int, int]]:
    """Return the allocated and the resident bytes of the two devices."""
    return [(row.allocated, row.resident) for row in process.page.report.devices[0:2]]


def test_memory_is_reported_by_device(client: CudaClient, process: ProcessConnection) -> None:
    assert rows(process) == [(OWN, OWN), (PEER, PEER)]
    small = client.run("cuda.alloc(1000)[1]")
    assert rows(process)[0] == (OWN + 1000, OWN + 1000)
    assert client.run(f"[cuda.free(one) for one in ({small}, own_array, array_there)]") == [0] * 3
    assert rows(process) == [(0, 0), (0, 0)]


@pytest.mark.parametrize(("device", "there"), [(0, OWN), (1, PEER)])
def test_memory_leaves_one_device_only(client: CudaClient, process: ProcessConnection, device: int, there: int) -> None:
    report = process.page.report
    process.page.control.resident_target[device] = 0
    process.drain(1)
    wait_until(lambda: report.devices[device].resident == 0)
    assert report.devices[1 - device].resident == OWN + PEER - there
    process.open(2)
    assert client.run("read(own_array, 1000)") == [3.0] * 3
    assert (report.evicted_bytes, report.restored_bytes) == (there, there)


def test_as_much_leaves_each_device_as_its_target_demands(process: ProcessConnection) -> None:
    targets = process.page.control.resident_target
    targets[0], targets[1] = 64 * MIB, PEER
    process.drain(1)
    wait_until(lambda: process.page.report.devices[0].resident <= 64 * MIB)
    assert process.page.report.devices[1].resident == PEER


def test_memory_comes_back_ahead_of_the_turn_on_one_device(client: CudaClient, process: ProcessConnection) -> None:
    report, control = process.page.report, process.page.control
    evict(process)
    control.prefetch_limit[1] = EVERYTHING
    process.doorbell()
    wait_until(lambda: report.missing_bytes == OWN)
    assert (report.devices[0].resident, report.devices[1].resident) == (0, PEER)


def fill_second_device(machine: NativeHost) -> CudaClient:
    """Return a program without the shim that has the rest of the second device."""
    other = machine.client(GPUSHARE_DISABLE="1", **DEVICES)
    other.run("cuda = Cuda()")
    other.run(PEERS)
    assert other.run("on(peer, lambda: cuda.alloc(cuda.info()[0])[0])") == 0
    return other


def test_an_allocation_requests_room_on_its_device(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    report, other = process.page.report, fill_second_device(machine)
    client.start("alloc_there(8 << 20)")
    wait_until(lambda: (report.unmet_bytes, report.unmet_device) == (8 * MIB, 2))
    assert report.devices[1].allocated == PEER + 8 * MIB
    other.end()
    client.result()


def test_a_restore_requests_room_on_the_full_device_only(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    report = process.page.report
    evict(process)
    other = fill_second_device(machine)
    process.open(2)
    client.start("read(own_array, 1000)")
    wait_until(lambda: report.devices[0].resident == OWN)
    wait_until(lambda: (report.unmet_bytes, report.unmet_device) == (PEER, 2))
    assert rows(process) == [(OWN, OWN), (PEER, 0)]
    other.end()
    assert client.result() == [3.0] * 3
    assert (report.missing_bytes, report.unmet_bytes) == (0, 0)
