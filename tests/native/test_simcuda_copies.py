"""Tests of copies in three dimensions, in batches and with arrays on the simulated driver."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ..driver_facts.harness import MIB, NON_BLOCKING, Cuda, on_driver
from ..driver_facts.vmm import free_bytes, properties


def with_bytes(cuda: Cuda, data: bytes) -> int:
    memory = cuda.cuMemAlloc(len(data))
    cuda.cuMemcpyHtoD(memory, data, len(data))
    return int(memory)


@on_driver()
def test_three_dimensions(cuda: Cuda) -> None:
    data = os.urandom(4 * 6 * 8)  # 4 layers of 6 rows of 8 bytes
    source, target = with_bytes(cuda, data), with_bytes(cuda, bytes(4096))
    kind = cuda.driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy = cuda.driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = kind
    copy.srcDevice, copy.srcPitch, copy.srcHeight = source, 8, 6
    copy.dstDevice, copy.dstPitch, copy.dstHeight = target, 16, 8
    copy.srcXInBytes, copy.srcY, copy.srcZ = 2, 1, 1
    copy.dstXInBytes, copy.dstY, copy.dstZ = 4, 3, 2
    copy.WidthInBytes, copy.Height, copy.Depth = 5, 4, 3
    cuda.cuMemcpy3D(copy)
    found = cuda.read(target, 4096)
    expected = bytearray(4096)
    for z in range(3):
        for y in range(4):
            at, to = (z + 1) * 48 + (y + 1) * 8 + 2, (z + 2) * 128 + (y + 3) * 16 + 4
            expected[to : to + 5] = data[at : at + 5]
    assert found == bytes(expected)
    copy.srcHeight = 4  # the layers overlap
    assert cuda.code("cuMemcpy3D", copy) == 1


def batch(addresses: list[int]) -> Any:
    return (ctypes.c_uint64 * len(addresses))(*addresses)


@on_driver()
def test_batches_by_both_signatures(cuda: Cuda) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    handle = ctypes.c_void_p(int(stream))
    parts = [os.urandom(size) for size in (100, 4096, 70000)]
    sources = batch([with_bytes(cuda, part) for part in parts])
    sizes, count = batch([len(part) for part in parts]), ctypes.c_size_t(3)
    attributes, first, one = (ctypes.c_uint64 * 8)(), batch([0]), ctypes.c_size_t(1)
    failed = ctypes.c_size_t(7)
    calls = (("cuMemcpyBatchAsync_ptsz", (ctypes.byref(failed), handle)), ("cuMemcpyBatchAsync_v2", (handle,)))
    for name, rest in calls:
        targets = batch([with_bytes(cuda, bytes(len(part))) for part in parts])
        assert getattr(library, name)(targets, sources, sizes, count, attributes, first, one, *rest) == 0
        cuda.cuStreamSynchronize(stream)
        assert [cuda.read(targets[i], len(part)) for i, part in enumerate(parts)] == parts
    assert failed.value == 2**64 - 1
    targets[1] = 0
    arguments = (targets, sources, sizes, count, attributes, first, one)
    assert library.cuMemcpyBatchAsync(*arguments, ctypes.byref(failed), handle) == 1 and failed.value == 1
    assert library.cuMemcpyBatchAsync_v2(*arguments, ctypes.c_void_p(0)) == 1  # the legacy stream
    # The first element has no attributes.
    assert library.cuMemcpyBatchAsync_v2(*arguments[:5], batch([1]), one, handle) == 1


@on_driver()
def test_prefetches_in_a_batch(cuda: Cuda) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    memories = [cuda.cuMemAllocManaged(8 * MIB, 1) for _ in range(3)]
    before = free_bytes(cuda)
    to_array = properties(cuda).location
    cuda.cuMemPrefetchBatchAsync(memories, [8 * MIB] * 3, 3, [to_array], [0], 1, 0, stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) == before - 24 * MIB
    host = cuda.driver.CUmemLocation()
    host.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    cuda.cuMemPrefetchBatchAsync(memories, [8 * MIB] * 3, 3, [host, to_array], [0, 1], 2, 0, stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) == before - 16 * MIB


@on_driver()
def test_arrays_keep_the_copied_data(cuda: Cuda) -> None:
    driver, data = cuda.driver, os.urandom(64 * 10)
    source, target = with_bytes(cuda, data), with_bytes(cuda, bytes(640))
    before = free_bytes(cuda)
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 300, 2000, 2
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    array = cuda.cuArrayCreate(shape)
    assert free_bytes(cuda) <= before - 300 * 2000 * 8
    assert int(cuda.cuArrayGetDescriptor(array).Height) == 2000
    to_array, from_array = driver.CUDA_MEMCPY2D(), driver.CUDA_MEMCPY2D()
    kinds = driver.CUmemorytype
    to_array.srcMemoryType, to_array.srcDevice, to_array.srcPitch = kinds.CU_MEMORYTYPE_DEVICE, source, 64
    to_array.dstMemoryType, to_array.dstArray, to_array.dstXInBytes, to_array.dstY = (
        kinds.CU_MEMORYTYPE_ARRAY,
        array,
        8,
        1500,
    )
    from_array.srcMemoryType, from_array.srcArray, from_array.srcXInBytes, from_array.srcY = (
        kinds.CU_MEMORYTYPE_ARRAY,
        array,
        8,
        1500,
    )
    from_array.dstMemoryType, from_array.dstDevice, from_array.dstPitch = kinds.CU_MEMORYTYPE_DEVICE, target, 64
    to_array.WidthInBytes = from_array.WidthInBytes = 64
    to_array.Height = from_array.Height = 10
    cuda.cuMemcpy2D(to_array)
    cuda.cuMemcpy2D(from_array)
    assert cuda.read(target, 640) == data
    to_array.dstXInBytes = 300 * 8 - 32
    assert cuda.code("cuMemcpy2D", to_array) == 1  # beyond the row
    cuda.cuMemcpyHtoA(array, 16, data, 100)
    found = bytearray(50)
    cuda.cuMemcpyAtoH(found, array, 20, 50)
    assert bytes(found) == data[4:54]
    cuda.cuArrayDestroy(array)
    assert free_bytes(cuda) == before
    assert cuda.code("cuArrayDestroy", array) == 400
    assert cuda.code("cuMemcpy2D", from_array) == 400


@on_driver()
def test_arrays_in_three_dimensions(cuda: Cuda) -> None:
    driver = cuda.driver
    shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels = 16, 4, 3, 1
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    array = cuda.cuArray3DCreate(shape)
    data = os.urandom(16 * 4 * 3)
    source, target = with_bytes(cuda, data), with_bytes(cuda, bytes(len(data)))
    copy, kinds = driver.CUDA_MEMCPY3D(), driver.CUmemorytype
    copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight = kinds.CU_MEMORYTYPE_DEVICE, source, 16, 4
    copy.dstMemoryType, copy.dstArray = kinds.CU_MEMORYTYPE_ARRAY, array
    copy.WidthInBytes, copy.Height, copy.Depth = 16, 4, 3
    cuda.cuMemcpy3D(copy)
    copy.srcMemoryType, copy.srcArray = kinds.CU_MEMORYTYPE_ARRAY, array
    copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight = kinds.CU_MEMORYTYPE_DEVICE, target, 16, 4
    cuda.cuMemcpy3D(copy)
    assert cuda.read(target, len(data)) == data
