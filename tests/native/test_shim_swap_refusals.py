"""Tests of mode "swap": calls of virtual memory management that the driver refuses, while memory is off the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, swapping

CALLS = """
def call_map(address, size, offset=0, flags=0, name=None):
    sizes = c_size_t(size), c_size_t(offset)
    return cuda.cuMemMap(c_uint64(address), *sizes, c_uint64(handle if name is None else name), c_uint64(flags))

def allow(address, size, *access):
    words = (c_uint32 * max(len(access), 1))(*access)
    return cuda.cuMemSetAccess(c_uint64(address), c_size_t(size), words, c_size_t(len(access) // 3))

def create_on(device, size=2 << 20, kind=1, place=1):
    handle, properties = c_uint64(), (c_uint32 * 8)(kind, 0, place, device)
    return cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0))

def free_addresses(address, size):
    return cuda.cuMemAddressFree(c_uint64(address), c_size_t(size))
"""
# The range `address` has a mapping of 4 MiB, `spare` has none, and `handle` has 4 MiB. The codes are those of an H200,
# or else those of the simulated driver.
REFUSED = {
    "map-unreserved": ("call_map(gone, 4 << 20)", 1),
    "map-odd-address": ("call_map(spare + 4096, 4 << 20)", 1),
    "map-odd-size": ("call_map(spare, 4096)", 801),
    "map-short": ("call_map(spare, 2 << 20)", 801),
    "map-long": ("call_map(spare, 6 << 20)", 801),
    "map-offset": ("call_map(spare, 4 << 20, 2 << 20)", 801),
    "map-beyond": ("call_map(spare + (6 << 20), 4 << 20)", 1),
    "map-mapped": ("call_map(address, 4 << 20)", 1),
    "map-allocation": ("call_map(array, 4 << 20)", 1),
    "access-device": ("allow(address, 4 << 20, 1, 7, 3)", 1),
    "access-flags": ("allow(address, 4 << 20, 1, 0, 2)", 1),
    "access-location": ("allow(address, 4 << 20, 0, 0, 3)", 1),
    "access-host": ("allow(address, 4 << 20, 2, 0, 3)", 801),
    "access-none": ("allow(address, 4 << 20)", 1),
    "access-part": ("allow(address, 2 << 20, 1, 0, 3)", 1),
    "access-hole": ("allow(address, 6 << 20, 1, 0, 3)", 1),
    "unmap-part": ("unmap(address, 2 << 20)", 1),
    "unmap-cut": ("unmap(address + (2 << 20), 6 << 20)", 1),
    "unmap-odd": ("unmap(address + 4096, 8 << 20)", 1),
    "free-mapped": ("free_addresses(address, 8 << 20)", 1),
    "free-allocation": ("free_addresses(array, 4 << 20)", 1),
}


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Return a client with an array and a mapping of 4 MiB each, which have left the device."""
    client, process = swapping(machine, coordinator, GPUSHARE_SIM_DEVICES="2")
    client.run(CALLS)
    client.begin(process, 1)
    client.run("import os; data = os.urandom(4 << 20); array = cuda.alloc(4 << 20)[1]")
    client.run("address, spare, gone = (reserve(8 << 20) for _ in range(3)); free_addresses(gone, 8 << 20)")
    client.run("handle, mapped = create(4 << 20)[1], create(4 << 20)[1]; map_at(address, 4 << 20, mapped)")
    assert client.run("write(array, data), write(address, data)") == [0, 0]
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    process.page.control.resident_target[0] = EVERYTHING
    return client, process


def memory_is_intact(client: CudaClient) -> bool:
    return bool(client.run("has_data(array, data) and has_data(address, data)"))


@pytest.mark.parametrize(("call", "code"), REFUSED.values(), ids=REFUSED)
def test_the_driver_refuses_the_call_in_the_turn(
    client: CudaClient, process: ProcessConnection, call: str, code: int
) -> None:
    assert client.run_at_the_gate(process, 2, call) == code
    assert memory_is_intact(client)
    assert process.page.report.missing_bytes == 0


def test_calls_that_no_driver_accepts_need_no_turn(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("call_map(spare, 4 << 20, flags=1), call_map(spare, 4 << 20, name=77)") == [1, 1]
    assert client.run("[create_on(device) for device in (2, 7, 0xffffffff)]") == [101] * 3
    assert client.run("create_on(0, kind=0), create_on(0, place=0), create_on(0, 1000)") == [1, 1, 1]
    process.open(2)
    assert memory_is_intact(client)


def test_memory_of_cuMemAlloc_is_never_unmapped(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("[unmap(array, size) for size in (2 << 20, 4 << 20, 8 << 20)]") == [1, 1, 1]
    client.run("below = array - (4 << 20)")  # wherever the driver has put it
    assert client.run("unmap(below, 8 << 20), unmap(below, array + (64 << 20) - below)") == [1, 1]
    process.open(2)
    assert memory_is_intact(client)


def test_an_unmapped_larger_range_leaves_no_memory(client: CudaClient, process: ProcessConnection) -> None:
    """The range has a mapping that has left the device and one that never was there, and holes."""
    assert client.run("map_at(address + (6 << 20), 2 << 20, create(2 << 20)[1]), release(mapped)") == [0, 0]
    assert client.run("release(handle)") == 0
    report = process.page.report
    assert report.allocated == 10 * MIB
    assert client.run_at_the_gate(process, 2, "unmap(address, 8 << 20)") == 0
    assert (report.allocated, report.missing_bytes) == (6 * MIB, 0)
    assert client.run("unmap(address, 8 << 20), free_addresses(address, 8 << 20), has_data(array, data)") == [
        0,
        0,
        True,
    ]


def test_an_empty_part_of_a_range_is_unmapped_without_a_turn(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("unmap(address + (4 << 20), 4 << 20), unmap(spare, 8 << 20)") == [0, 0]
    process.open(2)
    assert memory_is_intact(client)


def test_usual_calls_need_no_turn(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("map_at(spare, 4 << 20, create(4 << 20)[1]), call_map(spare + (4 << 20), 4 << 20)") == [0, 0]
    assert client.run("allow(spare, 8 << 20, 1, 0, 3, 1, 1, 3), allow(address, 4 << 20, 1, 0, 1)") == [0, 0]
    assert client.run("allow(address, 4 << 20, 1, 0, 0), allow(address, 4 << 20, 1, 0, 3)") == [0, 0]
    process.open(2)
    assert memory_is_intact(client)
    assert client.run("write(spare, data), write(spare + (4 << 20), data)") == [0, 0]


@pytest.mark.parametrize("mode", MEMORY_MODES)
def test_sizes_that_no_device_has(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    client.run(CALLS)
    sizes = (0, 1, 1 << 63, (1 << 64) - 1, (1 << 64) - (2 << 20))
    assert client.run(f"[create_on(0, size) for size in {sizes}]") == [1, 1, 2, 1, 2]
    assert process.page.report.allocated == 0


def test_a_driver_may_map_memory_beyond_a_reserved_range(
    machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("reservation_unit = 64 MiB\n")
    client, process = swapping(machine, coordinator, GPUSHARE_SIM_CONFIG=str(tmp_path / "config"))
    client.run(CALLS)
    client.begin(process, 1)
    client.run("import os; data = os.urandom(8 << 20); address = reserve(32 << 20); end = address + (28 << 20)")
    assert client.run("map_at(end, 8 << 20, create(8 << 20)[1]), write(end, data)") == [0, 0]
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    process.page.control.resident_target[0] = EVERYTHING
    process.open(2)
    assert client.run("has_data(end, data), free_addresses(address, 32 << 20)") == [True, 1]
    assert client.run("unmap(end, 8 << 20), free_addresses(address, 32 << 20)") == [0, 0]
