"""Tests of queries about addresses: their answers are those for device memory, on the device and off it."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import MIB, TOOLS

DEVICE_POINTER, BUFFER_ID, RANGE_START, RANGE_SIZE, MAPPING_BASE, ACCESS = 3, 7, 11, 12, 19, 16
MEMORY_TYPE, IS_MANAGED = 2, 8
HIGH_BITS = 0xFFFFFFFF00000000  # of a value of four bytes
QUERIES = """
ALL = [*range(1, 5), *range(6, 21)]
POINTERS = ["large", "large + (65 << 20)", "small", "small + 600", "mapped", "mapped + (5 << 20)"]
ONES = (1 << 64) - 1

def one(attribute, address):
    value = c_uint64(ONES)
    status = cuda.cuPointerGetAttribute(byref(value), attribute, c_uint64(address))
    return [status, None if status else value.value]

def several(attributes, address):
    values = [c_uint64(ONES) for _ in attributes]
    places = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    kinds = (c_int * len(values))(*attributes)
    status = cuda.cuPointerGetAttributes(len(values), kinds, places, c_uint64(address))
    return [status, [value.value for value in values]]

def address_range(address):
    base, size = c_uint64(), c_size_t()
    status = cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(address))
    return [status, base.value, size.value]

def access(address):
    flags, location = c_uint64(9), (c_int * 2)(1, 0)
    return [cuda.cuMemGetAccess(byref(flags), location, c_uint64(address)), flags.value]

def answers():
    addresses = [eval(text) for text in POINTERS]
    found = {text: [one(attribute, address) for attribute in ALL] for text, address in zip(POINTERS, addresses)}
    found["several"] = [several(ALL, address) for address in addresses]
    found["ranges"] = [address_range(address) for address in addresses]
    found["access"] = [access(address) for address in addresses[4:]]
    return found
"""


@pytest.fixture
def unified(machine: NativeHost, coordinator: ScriptedCoordinator) -> CudaClient:
    client, _ = machine.new_client(coordinator)
    client.run(QUERIES)
    client.run("memory = cuda.alloc(4 << 20)[1]; managed = cuda.alloc(4 << 20, 'cuMemAllocManaged', 1)[1]")
    return client


def test_redirected_memory_has_an_address_range(unified: CudaClient) -> None:
    """The range is the one that the program asked for, also where the driver has a larger one."""
    for address in ("memory", "memory + 4097"):
        assert unified.run(f"address_range({address}) == [0, memory, 4 << 20]")
        assert unified.run(f"several([{MEMORY_TYPE}, {IS_MANAGED}], {address})[1]") == [HIGH_BITS | 2, HIGH_BITS]
    assert unified.run("address_range(managed)[:2] == [0, managed]")


@pytest.mark.parametrize("mode", MEMORY_MODES)
def test_bytes_behind_an_allocation_have_no_range(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str
) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    process.open(1)
    client.run(TOOLS)
    client.run(QUERIES)
    client.run(
        """
sizes = [700, 512, 4096, 1 << 20, (100 << 20) - 700]
memory = [[cuda.alloc(size)[1], size] for size in sizes]
memory += [[cuda.alloc(size, "cuMemAllocManaged", 1)[1], size] for size in sizes]
memory += [[cuda.alloc(size, "cuMemAllocAsync", c_void_p())[1], size] for size in sizes]
pitch, address = c_size_t(), c_uint64()
cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(100), c_size_t(3), 4)
memory += [[address.value, 3 * pitch.value], [reserve(8 << 20), 2 << 20]]
map_at(memory[-1][0], 2 << 20, create(2 << 20)[1])
behind = lambda: [size for base, size in memory if address_range(base + size)[0] != 500]
inside = lambda: all(address_range(base + size - 1)[:2] == [0, base] for base, size in memory)
"""
    )
    # Neighbours would be another allocation's range.
    client.run("memory = [m for m in memory if all(m[0] + m[1] != other[0] for other in memory)]")
    assert client.run("len(memory) > 10, inside(), behind()") == [True, True, []]
    if mode == "swap":
        assert client.run("cuda.spin(1)") == 0
        process.page.control.resident_target[0] = 0
        process.drain(1)
        wait_until(lambda: process.page.report.missing_bytes > 100 * MIB)
        assert client.run("inside(), behind()") == [True, []]


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.open(1)
    client.run(TOOLS)
    client.run(QUERIES)
    client.run("large, small = cuda.alloc((100 << 20) - 700)[1], cuda.alloc(700)[1]")
    client.run("mapped = reserve(16 << 20); handles = [create(4 << 20)[1] for _ in range(2)]")
    assert client.run("[map_at(mapped + i * (4 << 20), 4 << 20, h) for i, h in enumerate(handles)]") == [0, 0]
    assert client.run("cuda.spin(1)") == 0
    return client, process


def evict(process: ProcessConnection) -> None:
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)


def test_answers_are_the_same_off_the_device(client: CudaClient, process: ProcessConnection) -> None:
    before: dict[str, Any] = client.run("answers()")
    evict(process)
    after = client.run("answers()")
    assert [name for name in before if before[name] != after[name]] == []
    process.page.control.resident_target[0] = (1 << 64) - 1
    process.open(2)
    assert client.run("cuda.spin(1)") == 0
    assert client.run("answers()") == before


def test_evicted_mappings_have_a_device_pointer(client: CudaClient, process: ProcessConnection) -> None:
    """Triton refuses an argument without a device pointer, and asks for the pointer before the gate."""
    evict(process)
    assert client.run(f"one({DEVICE_POINTER}, mapped + 5) == [0, mapped + 5]")
    assert client.run(f"several([{DEVICE_POINTER}], mapped + (7 << 20)) == [0, [mapped + (7 << 20)]]")


def test_memory_of_cuMemAlloc_has_no_handle(client: CudaClient) -> None:
    """A handle of the block would outlive an eviction, keep the device full, and name memory that has moved away."""
    client.run("handle = c_uint64()")
    retain = "cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p({}))"
    for address in ("large", "large + 5", "small"):
        assert client.run(retain.format(address)) == 1
    assert client.run(f"{retain.format('mapped')} or handle.value == handles[0]")


def test_answers_describe_the_allocation(client: CudaClient) -> None:
    start, size = f"one({RANGE_START}, {{}})[1] - {{}}", f"one({RANGE_SIZE}, {{}})[1]"
    assert client.run(start.format("large + 5000000", "large")) == 0
    assert client.run(size.format("large + 5000000")) == 100 * MIB - 700
    assert client.run(start.format("small + 600", "small")) == 0
    assert client.run(size.format("small + 600")) == 700
    assert client.run(f"one({RANGE_START}, mapped + (5 << 20))[1] - mapped") == 0
    assert client.run(size.format("mapped + (5 << 20)")) == 16 * MIB
    assert client.run(f"one({MAPPING_BASE}, mapped + (5 << 20))[1] - mapped") == 4 * MIB
    assert client.run(f"one({ACCESS}, mapped)[1] & 0xffffffff") == 3
    assert client.run("one(1, large)[1] == cuda.context.value and one(1, mapped)[1] == 0")


def test_a_buffer_has_a_number_of_its_own(client: CudaClient) -> None:
    client.run("second = cuda.alloc(700)[1]")
    pointers = "(large, large + (65 << 20), small, small + 600, second, mapped, mapped + (5 << 20))"
    numbers = client.run(f"[one({BUFFER_ID}, p)[1] for p in {pointers}]")
    assert numbers[0] == numbers[1] and numbers[2] == numbers[3]
    assert len(set(numbers)) == 5
