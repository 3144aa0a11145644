"""Tests of the figures of pools whose memory the shim has allocated outside of the pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ScriptedCoordinator

RESERVED, RESERVED_HIGH, USED, USED_HIGH = 5, 6, 7, 8  # CUmemPool_attribute
SETUP = """
def figure(pool, attribute):
    value = c_uint64()
    assert cuda.cuMemPoolGetAttribute(pool, attribute, byref(value)) == 0
    return value.value >> 20
def default_pool():
    pool = c_void_p()
    assert cuda.cuDeviceGetDefaultMemPool(byref(pool), 0) == 0
    return pool
def new_pool():
    pool, properties = c_void_p(), (ctypes.c_uint32 * 22)(1, 0, 1, 0)  # pinned memory of device 0
    assert cuda.cuMemPoolCreate(byref(pool), properties) == 0
    return pool
def take(pool, size):
    status, address = cuda.alloc(size << 20, 'cuMemAllocFromPoolAsync', pool, None)
    assert status == 0
    return address
def give(address):
    assert cuda.cuMemFreeAsync(c_uint64(address), None) == 0
    cuda.cuCtxSynchronize()
"""


@pytest.fixture(params=MEMORY_MODES)
def program(
    machine: NativeHost, coordinator: ScriptedCoordinator, request: pytest.FixtureRequest
) -> Iterator[CudaClient]:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=request.param)
    process.open(1)
    client.run("import ctypes")
    client.run(SETUP)
    yield client


def test_memory_of_a_pool_counts_while_it_is_in_use(program: CudaClient) -> None:
    program.run("pool = default_pool(); status, one = cuda.alloc(40 << 20, 'cuMemAllocAsync', None)")
    program.run("two = take(pool, 20)")
    assert program.run(f"figure(pool, {USED}), figure(pool, {USED_HIGH})") == [60, 60]
    assert program.run(f"figure(pool, {RESERVED}) >= 60 and figure(pool, {RESERVED_HIGH}) >= 60")
    program.run("give(one)")
    assert program.run(f"figure(pool, {USED}), figure(pool, {USED_HIGH})") == [20, 60]
    assert program.run(f"cuda.cuMemPoolSetAttribute(pool, {USED_HIGH}, byref(c_uint64()))") == 0
    assert program.run(f"figure(pool, {USED_HIGH})") == 20
    assert program.run("cuda.free(two)") == 0
    assert program.run(f"figure(pool, {USED})") == 0


def test_memory_has_the_pool_that_it_came_from(program: CudaClient) -> None:
    program.run(
        """
def pool_of(address, plural=False):
    found, kind = c_void_p(1), c_int(17)
    if plural:
        place = c_void_p(ctypes.addressof(found))
        return cuda.cuPointerGetAttributes(1, byref(kind), byref(place), c_uint64(address)) or found.value
    return cuda.cuPointerGetAttribute(byref(found), kind, c_uint64(address)) or found.value
"""
    )
    program.run("own, other = new_pool(), default_pool(); plain = cuda.alloc(1 << 20)[1]; first = take(own, 3)")
    program.run("second, small = (cuda.alloc(size, 'cuMemAllocAsync', None)[1] for size in (8 << 20, 700))")
    for plural in (False, True):
        pools = f"pool_of(first + 5, {plural}), pool_of(second, {plural}), pool_of(small + 5, {plural})"
        assert program.run(f"[{pools}] == [own.value, other.value, other.value]")
        assert program.run(f"pool_of(plain, {plural})") is None


def test_no_pool_has_no_memory(program: CudaClient) -> None:
    assert program.run("cuda.alloc(4096, 'cuMemAllocFromPoolAsync', None, None)[0]") == 1


def test_pools_have_figures_of_their_own(program: CudaClient) -> None:
    program.run("pools = [new_pool(), new_pool()]; memory = [take(pool, 8 + 2 * i) for i, pool in enumerate(pools)]")
    assert program.run(f"[figure(pool, {USED}) for pool in pools]") == [8, 10]
    assert program.run("cuda.cuMemPoolDestroy(pools.pop())") == 0
    program.run("pools.append(new_pool())")
    assert program.run(f"[figure(pool, {USED}) for pool in pools]") == [8, 0]
    program.run("[give(address) for address in memory]")
    assert program.run(f"[figure(pool, {USED}) for pool in pools]") == [0, 0]


def test_memory_that_ends_with_its_context_no_longer_counts(program: CudaClient) -> None:
    program.run("pool = default_pool(); take(pool, 8)")
    assert program.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    program.run("context = c_void_p(); cuda.cuDevicePrimaryCtxRetain(byref(context), 0); cuda.cuCtxSetCurrent(context)")
    assert program.run(f"figure(default_pool(), {USED})") == 0


DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
PLACES = """
def pool_at(place, find=None):
    pool, location = c_void_p(), (c_int * 2)(place, 0)
    call = getattr(cuda, find) if find else cuda.cuMemPoolCreate
    assert call(byref(pool), *[location, 1] if find else [(c_int * 22)(1, 0, place, 0)]) == 0
    return pool
def take(pool):
    status, address = cuda.alloc(1 << 20, 'cuMemAllocFromPoolAsync', pool, c_void_p(1))
    assert status == 0
    return address
"""


@pytest.mark.parametrize("mode", MEMORY_MODES)
def test_memory_of_a_pool_of_host_memory_is_not_charged(stub: Any, mode: str) -> None:
    client, process = stub(STUB_MANAGED="1", STUB_MAPPED="1", GPUSHARE_MEMORY_MODE=mode)
    client.run(PLACES)
    client.run(f"pools = [pool_at(place) for place in ({HOST}, {HOST_NUMA}, {HOST_NUMA_CURRENT})]")
    client.run("pools += [pool_at(2, find) for find in ('cuMemGetDefaultMemPool', 'cuMemGetMemPool')]")
    client.run("memory = [take(pool) for pool in pools]")
    assert (process.page.report.allocated, process.page.report.unmovable) == (0, 0)
    assert client.run("[cuda.cuMemFreeAsync(c_uint64(address), c_void_p(1)) for address in memory]") == [0] * 5
    assert process.page.report.allocated == 0
    assert client.run(f"take(pool_at({DEVICE})) != 0")
    assert process.page.report.allocated == 1 << 20
    assert client.run(f"cuda.cuMemPoolDestroy(pools[0]), pool_at({HOST}).value == pools[0].value") == [0, True]
