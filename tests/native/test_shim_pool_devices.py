"""Tests of the device of stream-ordered allocations, on two simulated devices.

The device is that of the stream or of the pool, whichever context is current.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator
from .test_shim_peers import SMALL, evict, two_devices
from .test_shim_pools import USED

CONTEXT, ORDINAL = 1, 9  # CUpointer_attribute
THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
SIZE = 2 << 20  # the granularity of a pool
POOLS = f"""
import ctypes
def default_pool(device):
    pool = c_void_p()
    assert cuda.cuDeviceGetDefaultMemPool(byref(pool), device) == 0
    return pool
def new_pool(device):
    pool, properties = c_void_p(), (c_uint32 * 22)(1, 0, 1, device)
    assert cuda.cuMemPoolCreate(byref(pool), properties) == 0
    return pool
def used(device):
    value = c_uint64()
    assert cuda.cuMemPoolGetAttribute(default_pool(device), {USED}, byref(value)) == 0
    return value.value // {SIZE}
def take_in(stream, size={SIZE}):
    status, address = cuda.alloc(size, 'cuMemAllocAsync', c_void_p(stream))
    assert status == 0, status
    return address
def take_from(pool, stream=0, size={SIZE}):
    status, address = cuda.alloc(size, 'cuMemAllocFromPoolAsync', pool, c_void_p(stream))
    assert status == 0, status
    return address
def device(address):
    status, ordinal = cuda.attribute({ORDINAL}, address)
    assert status == 0, status
    return ordinal
def context(address):
    value = c_void_p()
    assert cuda.cuPointerGetAttribute(byref(value), {CONTEXT}, c_uint64(address)) == 0
    return value.value
def first(address):
    values = (c_float * 1)()
    assert cuda.cuMemcpyDtoH_v2(values, c_uint64(address), c_size_t(4)) == 0
    return values[0]
there = on(peer, cuda.stream, 1)
"""

Started = tuple[CudaClient, ProcessConnection]


@pytest.fixture(params=MEMORY_MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> Iterator[Started]:
    """Start a program whose context on device 0 is current."""
    client, process = two_devices(machine, coordinator, mode)
    client.run(POOLS)
    yield client, process


def test_memory_is_on_the_device_of_the_stream(client: CudaClient) -> None:
    client.run("memory = take_in(there)")
    assert client.run("device(memory), used(0), used(1)") == [1, 0, 1]
    client.run("cuda.cuCtxSetCurrent(peer); memory = take_in(0)")
    assert client.run("device(memory), used(0), used(1)") == [1, 0, 2]


def test_memory_is_on_the_device_of_the_pool(client: CudaClient) -> None:
    client.run("memory = [take_from(pool) for pool in (default_pool(1), new_pool(1))]")
    assert client.run("[device(address) for address in memory], used(0), used(1)") == [[1, 1], 0, 1]


def test_a_program_without_a_current_context(client: CudaClient) -> None:
    assert client.run("cuda.cuCtxSetCurrent(None)") == 0
    client.run("memory = [take_in(there), take_from(default_pool(0), there)]")
    assert client.run("[device(address) for address in memory], used(0), used(1)") == [[1, 0], 1, 1]
    client.run("current = c_void_p(); cuda.cuCtxGetCurrent(byref(current))")
    assert client.run("current.value is None")


def test_the_current_context_is_the_same_after_an_allocation(client: CudaClient) -> None:
    client.run("take_in(there); take_from(default_pool(1)); current = c_void_p()")
    assert client.run("cuda.cuCtxGetCurrent(byref(current)), current.value == own.value") == [0, True]
    client.run("on(peer, lambda: [take_in(0), cuda.cuCtxGetCurrent(byref(current))])")
    assert client.run("current.value == peer.value")


@pytest.mark.parametrize("mode", ["unified", "swap"], indirect=True)
def test_memory_of_another_device_moves(client: CudaClient, process: ProcessConnection) -> None:
    client.run("memory = [take_in(there), take_from(default_pool(1)), take_from(new_pool(1))]")
    assert (process.page.report.allocated, process.page.report.unmovable) == (3 * SIZE, 0)
    assert client.run("[cuda.cuMemsetD32_v2(c_uint64(address), 7, 1) for address in memory]") == [0] * 3
    before = client.run("[first(address) for address in memory]")
    evict(process)
    process.open(2)
    assert client.run("[first(address) for address in memory]") == before
    assert client.run("[device(address) for address in memory]") == [1] * 3


@pytest.mark.parametrize("mode", ["swap"], indirect=True)
def test_memory_belongs_to_the_current_context_of_the_device_first(client: CudaClient) -> None:
    """A program may have several contexts of one device."""
    client.run("second = c_void_p()")
    assert client.run("cuda.cuCtxCreate_v2(byref(second), 0, 1), cuda.cuCtxSetCurrent(second)") == [0, 0]
    client.run(f"memory = [take_in(there, {SMALL}), take_from(default_pool(1), there, {SMALL})]")
    assert client.run("[context(address) == second.value for address in memory]") == [True] * 2
    client.run("cuda.cuCtxSetCurrent(own)")
    client.run(f"memory = [take_in(there, {SMALL}), take_from(default_pool(1), there, {SMALL})]")
    assert client.run("[context(address) == peer.value for address in memory]") == [True] * 2


@pytest.mark.parametrize("mode", ["unified", "swap"], indirect=True)
def test_the_pool_reuses_memory_of_another_device(client: CudaClient, process: ProcessConnection) -> None:
    client.run(f"[cuda.cuMemPoolSetAttribute(default_pool(i), {THRESHOLD}, byref(c_uint64(1 << 40))) for i in (0, 1)]")
    client.run("address = take_in(there)")
    assert client.run("cuda.cuMemFreeAsync(c_uint64(address), c_void_p(there))") == 0
    client.run("here = cuda.stream(1); other = take_in(here)")
    assert client.run("other != address, device(other)") == [True, 0]
    assert client.run("on(peer, take_in, there) == address, used(0), used(1)") == [True, 1, 1]
    assert client.run("cuda.cuMemFreeAsync(c_uint64(address), c_void_p(there))") == 0
    assert client.run("take_from(default_pool(1), there) == address")
    assert process.page.report.allocated == 2 * SIZE


def test_a_device_without_an_active_context(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    """The driver makes the memory, since the shim makes no context."""
    client, process = two_devices(machine, coordinator, mode, devices=3)
    client.run(POOLS)
    client.run("address = take_from(default_pool(2))")
    assert client.run("device(address)") == 2
    assert (process.page.report.allocated, process.page.report.unmovable) == (SIZE, SIZE)
    assert client.run("cuda.cuMemFreeAsync(c_uint64(address), None), cuda.cuCtxSynchronize()") == [0, 0]
    assert process.page.report.allocated == 0
