"""Tests of memory pools on the simulated driver."""

from __future__ import annotations

from typing import Any

from ..driver_facts.harness import MIB, NON_BLOCKING, Cuda, on_driver
from ..driver_facts.vmm import free_bytes, new_pool, properties

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = range(4, 9)


def figures(cuda: Cuda, pool: Any) -> list[int]:
    """Return reserved and used memory, each with its high mark, in MiB."""
    attribute = cuda.driver.CUmemPool_attribute
    return [
        int(cuda.cuMemPoolGetAttribute(pool, attribute(number))) // MIB for number in range(RESERVED, USED_HIGH + 1)
    ]


def set_attribute(cuda: Cuda, pool: Any, number: int, value: int) -> int:
    number = cuda.driver.CUmemPool_attribute(number)
    return cuda.code("cuMemPoolSetAttribute", pool, number, cuda.driver.cuuint64_t(value))


@on_driver()
def test_a_pool_keeps_memory_up_to_its_threshold(cuda: Cuda) -> None:
    stream, pool = cuda.cuStreamCreate(NON_BLOCKING), new_pool(cuda)
    before = free_bytes(cuda)
    assert set_attribute(cuda, pool, THRESHOLD, 16 * MIB) == 0
    memories = [cuda.cuMemAllocFromPoolAsync(size * MIB, pool, stream) for size in (8, 16)]
    attribute = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert int(cuda.cuPointerGetAttribute(attribute, memories[0])) == int(pool)
    assert figures(cuda, pool) == [24, 24, 24, 24]
    for memory in memories:
        cuda.cuMemFreeAsync(memory, stream)
    cuda.cuStreamSynchronize(stream)
    assert figures(cuda, pool) == [16, 24, 0, 24] and free_bytes(cuda) == before - 16 * MIB
    again = cuda.cuMemAllocFromPoolAsync(10 * MIB, pool, stream)
    assert figures(cuda, pool) == [16, 24, 10, 24]
    assert set_attribute(cuda, pool, RESERVED_HIGH, 0) == set_attribute(cuda, pool, USED_HIGH, 0) == 0
    assert figures(cuda, pool) == [16, 16, 10, 10]
    assert set_attribute(cuda, pool, USED, 0) == 1
    cuda.cuMemPoolTrimTo(pool, 0)
    assert figures(cuda, pool) == [10, 16, 10, 10] and free_bytes(cuda) == before - 10 * MIB
    cuda.cuMemPoolDestroy(pool)  # the pool lives until its last allocation is freed
    assert cuda.code("cuMemAllocFromPoolAsync", MIB, pool, stream) == 1
    cuda.launch("fill_f32", again, 1.0, 16, stream=stream)
    cuda.cuMemFreeAsync(again, stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) == before


@on_driver()
def test_the_pool_of_a_device_can_be_replaced(cuda: Cuda) -> None:
    stream, pool = cuda.cuStreamCreate(NON_BLOCKING), new_pool(cuda)
    default = cuda.cuDeviceGetDefaultMemPool(cuda.device)
    assert int(cuda.cuDeviceGetMemPool(cuda.device)) == int(default)
    cuda.cuDeviceSetMemPool(cuda.device, pool)
    assert int(cuda.cuDeviceGetMemPool(cuda.device)) == int(pool) != int(default)
    memory = cuda.cuMemAllocAsync(4 * MIB, stream)
    assert figures(cuda, pool)[2] == 4 and figures(cuda, default)[2] == 0
    cuda.cuMemFree(memory)
    cuda.cuMemPoolDestroy(pool)
    assert int(cuda.cuDeviceGetMemPool(cuda.device)) == int(default)
    assert cuda.code("cuMemPoolDestroy", default) == 1
    assert int(cuda.cuMemPoolGetAccess(default, properties(cuda).location)) == 3


@on_driver(GPUSHARE_SIM_MEMORY="64MiB")
def test_a_pool_takes_no_more_than_the_device_has(cuda: Cuda) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    default = cuda.cuDeviceGetDefaultMemPool(cuda.device)
    memory = cuda.cuMemAllocAsync(32 * MIB, stream)
    assert cuda.code("cuMemAllocAsync", 32 * MIB, stream) == 2
    assert figures(cuda, default) == [32, 32, 32, 32]
    cuda.cuMemFreeAsync(memory, stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuMemAlloc(32 * MIB)


@on_driver()
def test_the_pool_of_a_location_is_the_pool_of_its_device(cuda: Cuda) -> None:
    location, pool = properties(cuda).location, new_pool(cuda)
    pinned, managed = (cuda.driver.CUmemAllocationType(number) for number in (1, 2))
    default = cuda.cuDeviceGetDefaultMemPool(cuda.device)
    assert int(cuda.cuMemGetDefaultMemPool(location, pinned)) == int(default)
    assert int(cuda.cuMemGetMemPool(location, pinned)) == int(default)
    cuda.cuMemSetMemPool(location, pinned, pool)
    assert int(cuda.cuMemGetMemPool(location, pinned)) == int(cuda.cuDeviceGetMemPool(cuda.device)) == int(pool)
    assert int(cuda.cuMemGetDefaultMemPool(location, pinned)) == int(default)
    host, nowhere = cuda.driver.CUmemLocation(), cuda.driver.CUmemLocation()
    host.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    nowhere.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    assert [cuda.code("cuMemGetMemPool", host, kind) for kind in (pinned, managed)] == [801, 801], "not simulated"
    assert [cuda.code("cuMemGetMemPool", nowhere, kind) for kind in (pinned, managed)] == [1, 801]
