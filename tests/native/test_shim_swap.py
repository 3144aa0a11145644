"""Tests of mode "swap": eviction and restore of memory."""

from __future__ import annotations

import json

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

MIB = 1 << 20
EVERYTHING = (1 << 64) - 1

TOOLS = """
PROPERTIES = (c_uint32 * 8)(1, 0, 1, 0, 0, 0, 0, 0)  # pinned, on device 0
ACCESS = (c_uint32 * 3)(1, 0, 3)                      # device 0, read and write

def read(address, count):
    values = (c_float * count)()
    status = cuda.cuMemcpyDtoH_v2(values, c_uint64(address), c_size_t(4 * count))
    return [values[0], values[count // 2], values[count - 1]] if status == 0 else status

def write(address, data):
    return cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(len(data)))

def has_data(address, data):
    copy = ctypes.create_string_buffer(len(data))
    return cuda.cuMemcpyDtoH_v2(copy, c_uint64(address), c_size_t(len(data))) == 0 and copy.raw == data

def reserve(size):
    address = c_uint64()
    assert cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
    return address.value

def create(size):
    handle = c_uint64()
    return cuda.cuMemCreate(byref(handle), c_size_t(size), PROPERTIES, c_uint64(0)), handle.value

def map_at(address, size, handle):
    status = cuda.cuMemMap(c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))
    return status or cuda.cuMemSetAccess(c_uint64(address), c_size_t(size), ACCESS, c_size_t(1))

def unmap(address, size):
    return cuda.cuMemUnmap(c_uint64(address), c_size_t(size))

def release(handle):
    return cuda.cuMemRelease(c_uint64(handle))
"""


def swapping(machine: NativeHost, coordinator: ScriptedCoordinator, **environment: str) -> StartedClient:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", **environment)
    client.run(TOOLS)
    return client, process


@pytest.fixture(params=["pageable", "pinned"])
def started(request: pytest.FixtureRequest, machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    client, process = swapping(machine, coordinator, GPUSHARE_PINNED=str(512 * MIB if request.param == "pinned" else 0))
    process.pinned = request.param == "pinned"
    return client, process


def device_used(machine: NativeHost) -> int:
    """Return the used bytes of the whole device by the driver's own figures, without the shim."""
    bare = machine.client(GPUSHARE_DISABLE="1")
    bare.run("cuda = Cuda()")
    free, total = bare.run("cuda.info()")
    bare.end()
    return int(total - free)


def test_evicted_memory_is_restored_with_its_data(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    control, report = process.page.control, process.page.report
    empty = device_used(machine)
    process.open(1)
    client.run(
        "arrays = [cuda.alloc(n << 20)[1] for n in (3, 100, 64)]; small = [cuda.alloc(1000)[1] for _ in range(9)]"
    )
    client.run("[cuda.launch('fill_f32', a, float(i), 750000) for i, a in enumerate(arrays)]")
    client.run("[cuda.launch('fill_f32', a, 100.0 + i, 250) for i, a in enumerate(small)]")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    assert report.allocated == report.resident == 167 * MIB + 9000
    assert device_used(machine) - empty == (4 + 100 + 64 + 2) * MIB
    control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: (report.resident, report.missing_bytes) == (0, 170 * MIB))
    host_bytes = (report.host_pinned, report.host_pageable)
    assert host_bytes == ((170 * MIB, 0) if process.pinned else (0, 170 * MIB))
    assert device_used(machine) == empty
    control.resident_target[0] = EVERYTHING
    process.open(2)
    assert client.run("[read(a, 750000) for a in arrays]") == [[float(i)] * 3 for i in range(3)]
    assert client.run("[read(a, 250) for a in small]") == [[100.0 + i] * 3 for i in range(9)]
    assert (report.missing_bytes, report.resident) == (0, 167 * MIB + 9000)
    assert (report.evicted_bytes, report.restored_bytes) == (170 * MIB, 170 * MIB)
    assert report.host_pinned == (170 * MIB if process.pinned else 0)  # kept for the next eviction
    assert client.run("[cuda.free(a) for a in arrays + small]") == [0] * 12
    assert (report.allocated, report.resident) == (0, 0)
    assert device_used(machine) - empty <= 2 * MIB  # the shim keeps a slab


def test_memory_of_an_allocation_out_of_turn_waits_for_the_turn(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    before = device_used(machine)
    assert client.run("code, early = cuda.alloc(50 << 20)\ncode") is None
    assert client.run("code") == 0
    assert device_used(machine) == before
    report = process.page.report
    assert (report.allocated, report.resident, report.unmade) == (50 * MIB, 0, 50 * MIB)
    process.open(1)
    assert client.run("cuda.launch('fill_f32', early, 4.0, 1000) or read(early, 1000)") == [4.0] * 3
    assert (report.resident, report.unmade) == (50 * MIB, 0)
    assert (report.restored_bytes, report.restored) == (0, 0)  # it was never evicted
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: (report.resident, report.unmade) == (0, 0))


def test_memory_that_is_freed_before_its_first_turn_is_no_longer_unmade(
    client: CudaClient, process: ProcessConnection
) -> None:
    client.run("large, small = cuda.alloc(50 << 20)[1], cuda.alloc(1000)[1]")
    assert process.page.report.unmade == (50 << 20) + 1000
    assert client.run("cuda.free(large), cuda.free(small)") == [0, 0]
    assert (process.page.report.allocated, process.page.report.unmade) == (0, 0)


def test_memory_allocated_between_turns_does_not_use_up_the_limit_of_evicted_memory(
    client: CudaClient, process: ProcessConnection
) -> None:
    report, control = process.page.report, process.page.control
    client.begin(process, 1)
    client.run("cuda.alloc(40 << 20)")
    process.drain(1)
    client.run("cuda.alloc(50 << 20)")
    control.evicted_limit, control.resident_target[0] = 64 * MIB, 0
    process.doorbell()
    wait_until(lambda: (report.resident, report.unmade) == (0, 50 * MIB))


def test_the_programs_own_mappings_are_evicted_too(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """Expandable segments reserve a large range and map it piece by piece. A handle keeps naming the same memory."""
    report = process.page.report
    empty = device_used(machine)
    process.open(1)
    client.run("address = reserve(64 << 20); codes, handles = zip(*[create(4 << 20) for _ in range(3)])")
    assert client.run("codes") == [0] * 3
    assert client.run("[map_at(address + i * (4 << 20), 4 << 20, h) for i, h in enumerate(handles)]") == [0] * 3
    assert client.run("release(handles[0])") == 0  # the mapping keeps the memory
    client.run("import os; data = [os.urandom(4 << 20) for _ in range(3)]")
    assert client.run("[write(address + i * (4 << 20), d) for i, d in enumerate(data)]") == [0] * 3
    assert client.run("unmap(address + (8 << 20), 4 << 20)") == 0  # the handle keeps the memory
    assert (report.allocated, report.unmovable) == (12 * MIB, 0)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: report.resident == 0)
    assert device_used(machine) == empty
    assert client.run("map_at(address + (16 << 20), 4 << 20, handles[2])") == 0
    process.open(2)
    assert (
        client.run("[has_data(address + i * (4 << 20), d) for i, d in ((0, data[0]), (1, data[1]), (4, data[2]))]")
        == [True] * 3
    )
    client.run("again = c_uint64(); properties = (c_uint32 * 8)()")
    assert client.run("cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address + (4 << 20) + 5))") == 0
    assert client.run("again.value == handles[1]")
    assert client.run("cuda.cuMemGetAllocationPropertiesFromHandle(properties, again)") == 0
    assert client.run("list(properties)") == [1, 0, 1, 0, 0, 0, 0, 0]
    assert client.run("release(again.value), release(handles[1]), release(handles[2]), release(handles[1])") == [
        0,
        0,
        0,
        1,
    ]
    assert client.run("unmap(address, 8 << 20), unmap(address + (16 << 20), 4 << 20)") == [0, 0]
    assert (report.allocated, report.resident) == (0, 0)
    assert device_used(machine) == empty


def test_a_context_takes_its_memory_with_it(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    empty = device_used(machine)
    client.begin(process, 1)
    client.run("other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)")
    client.run("cuda.alloc(30 << 20), cuda.alloc(100)")
    process.page.control.resident_target[0] = 10 * MIB
    process.drain(1)
    wait_until(lambda: process.page.report.resident <= 10 * MIB)
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    assert (process.page.report.allocated, process.page.report.resident) == (0, 0)
    assert device_used(machine) == empty


def test_pinned_memory_outlives_the_context_that_pinned_it(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, process = swapping(machine, coordinator, GPUSHARE_PINNED=str(512 * MIB))
    process.open(1)
    client.run("import os; data = os.urandom(4 << 20); other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)")
    client.run("address = reserve(4 << 20); _, handle = create(4 << 20); map_at(address, 4 << 20, handle)")
    assert client.run("write(address, data)") == 0
    client.run("cuda.make_current(); array = cuda.alloc(3 << 20)[1]; write(array, data[:3 << 20])")
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    assert process.page.report.host_pinned == 8 * MIB
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    assert (process.page.report.host_pinned, process.page.report.host_pageable) == (4 * MIB, 4 * MIB)
    process.open(2)
    assert client.run("has_data(address, data) and has_data(array, data[:3 << 20])")


def test_threads_in_a_turn_never_find_memory_missing(client: CudaClient, process: ProcessConnection) -> None:
    """Turns begin while the agent is about to evict memory, and every launch still finds its array."""
    client.run(
        "array = cuda.alloc(16 << 20)[1]\n"
        "def work(n):\n"
        "    cuda.make_current()\n"
        "    return [cuda.launch('work_f32', array, 100, 0, 0) or cuda.cuCtxSynchronize() for _ in range(n)]\n"
    )
    process.open(1)
    assert client.run("cuda.launch('fill_f32', array, 0.0, 100)") == 0
    process.drain(1)
    for epoch in range(2, 30):
        process.page.control.resident_target[0] = 0
        process.doorbell()
        process.open(epoch)
        assert client.run("work(1)") == [0]
        process.drain(epoch)
    process.page.control.resident_target[0] = EVERYTHING
    process.open(99)
    assert client.run("read(array, 100)") == [28.0] * 3


def test_wrong_handles_and_addresses(client: CudaClient, process: ProcessConnection) -> None:
    client.begin(process, 1)
    client.run("address = reserve(8 << 20); handle = create(2 << 20)[1]")
    assert client.run("create(1000)[0], map_at(address + 5, 2 << 20, handle), map_at(address, 4 << 20, handle)") == [
        1,
        1,
        801,
    ]
    assert client.run("map_at(address, 2 << 20, handle), map_at(address, 2 << 20, handle)") == [0, 1]
    assert client.run("unmap(address, 10 << 20), unmap(address, 2 << 20), release(handle), release(handle)") == [
        1,
        0,
        0,
        1,
    ]
    assert json.dumps(process.page.report.allocated) == "0"
