"""Facts about queries and settings of addresses (see test_facts.py)."""

from __future__ import annotations

import ctypes

from .harness import MIB, Cuda, observe, on_driver
from .vmm import GRANULE, map_at, mapped, properties, reserve

CONTEXT, MEMORY_TYPE, DEVICE_POINTER, SYNC_MEMOPS, BUFFER_ID, IS_MANAGED = 1, 2, 3, 6, 7, 8
RANGE_START, RANGE_SIZE, MAPPING_SIZE = 11, 12, 18
NOT_FOUND = 500


def get_one(attribute: int, address: int) -> int:
    """Return the status of cuPointerGetAttribute."""
    query = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    status = int(query(ctypes.byref(ctypes.c_uint64()), attribute, ctypes.c_uint64(address)))
    observe(f"cuPointerGetAttribute {attribute}: {status}")
    return status


def get_all(attributes: list[int], address: int) -> tuple[int, list[int]]:
    """Return the status of cuPointerGetAttributes, and the values in eight bytes each that were all ones before."""
    values = [ctypes.c_uint64(2**64 - 1) for _ in attributes]
    places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    kinds = (ctypes.c_int * len(values))(*attributes)
    status = ctypes.CDLL("libcuda.so.1").cuPointerGetAttributes(len(values), kinds, places, ctypes.c_uint64(address))
    found = [value.value for value in values]
    observe(f"cuPointerGetAttributes {attributes}: {status} {found}")
    return int(status), found


@on_driver()
def test_an_address_without_memory_has_no_attributes(cuda: Cuda) -> None:
    """For a reserved address without memory the query of one attribute returns 1. The query of several returns 0 and
    stores null values, each as wide as its type. (Triton refuses an argument without a device pointer.)

    Source: documentation of cuPointerGetAttribute and cuPointerGetAttributes ("assigned default NULL values").
    Seen on an H200.
    """
    address = reserve(cuda, GRANULE)
    for attribute in (MEMORY_TYPE, DEVICE_POINTER, BUFFER_ID, IS_MANAGED):
        assert get_one(attribute, address) == 1
    status, values = get_all([CONTEXT, DEVICE_POINTER, BUFFER_ID, MAPPING_SIZE, MEMORY_TYPE], address)
    assert status == 0
    assert values[:4] == [0] * 4
    assert values[4] & 0xFFFFFFFF == 0


@on_driver()
def test_a_reserved_range_is_known_without_memory(cuda: Cuda) -> None:
    """The range of an address is the reserved one, also where nothing is mapped. (The shim adds nothing to the driver's
    answer while memory is evicted.)

    Source: documentation of CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ("not necessarily the address of the mapped region");
    cu_vm_test.cc of NVIDIA/DALI. Seen on an H200.
    """
    address = reserve(cuda, 4 * GRANULE)
    assert get_all([RANGE_START, RANGE_SIZE], address + GRANULE) == (0, [address, 4 * GRANULE])


@on_driver()
def test_unified_memory_has_a_start_and_a_size(cuda: Cuda) -> None:
    """The attributes of unified memory, and cuMemGetAddressRange, return its start and its size.

    Source: documentation of CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, and of cuMemGetAddressRange in CUDA 13 ("the
    allocation that contains the input pointer"). openucx/ucx pull request 7485 differs ("managed memory is not handled
    by cuMemGetAddressRange"). Seen on an H200.
    """
    address = int(cuda.cuMemAllocManaged(4 * MIB, 1))
    assert get_all([RANGE_START, RANGE_SIZE], address + MIB) == (0, [address, 4 * MIB])
    assert [int(value) for value in cuda.cuMemGetAddressRange(address + MIB)] == [address, 4 * MIB]
    assert cuda.code("cuMemGetAddressRange", address + 4 * MIB) == NOT_FOUND


@on_driver()
def test_mapped_memory_refuses_synchronous_memory_operations(cuda: Cuda) -> None:
    """The setting SYNC_MEMOPS of mapped memory is refused with 801. Memory of cuMemAlloc and unified memory accept the
    setting.

    Source: openucx/ucx issue 9895 (mapped memory); lupinemachines/lupine pull request 646 (unified memory).
    Seen on an H200.
    """
    setting = cuda.driver.CUpointer_attribute(SYNC_MEMOPS)
    assert cuda.code("cuPointerSetAttribute", 1, setting, cuda.cuMemAlloc(MIB)) == 0
    assert cuda.code("cuPointerSetAttribute", 1, setting, cuda.cuMemAllocManaged(MIB, 1)) == 0
    assert cuda.code("cuPointerSetAttribute", 1, setting, mapped(cuda)[0]) == 801


@on_driver()
def test_memory_for_rdma_is_capable_of_it(cuda: Cuda) -> None:
    """Where the device supports GPUDirect RDMA, memory of cuMemAlloc can be used with it, and so can mapped memory that
    was created for it. (The answer for unified memory is unknown.)

    Source: documentation of CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE and of gpuDirectRDMACapable. Seen on an
    H200.
    """
    numbers = cuda.driver.CUdevice_attribute
    supported = int(
        cuda.cuDeviceGetAttribute(numbers.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, cuda.device)
    )
    wanted = properties(cuda)
    wanted.allocFlags.gpuDirectRDMACapable = 1
    address = reserve(cuda, GRANULE)
    map_at(cuda, address, cuda.cuMemCreate(GRANULE, wanted, 0))
    capable = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
    answers = [int(cuda.cuPointerGetAttribute(capable, pointer)) for pointer in (cuda.cuMemAlloc(MIB), address)]
    assert answers == [supported, supported]


@on_driver()
def test_only_mapped_memory_has_a_handle(cuda: Cuda) -> None:
    """cuMemRetainAllocationHandle fails for memory of cuMemAlloc and for unified memory. (UCX and NCCL recognise mapped
    memory by this call.)

    Source: documentation of cuMemRetainAllocationHandle ("previously mapped by cuMemMap"); uct_cuda_copy_detect_vmm
    of UCX. Seen on an H200.
    """
    assert cuda.code("cuMemRetainAllocationHandle", cuda.cuMemAlloc(4 * MIB)) != 0
    assert cuda.code("cuMemRetainAllocationHandle", cuda.cuMemAllocManaged(4 * MIB, 1)) != 0
    address, handle = mapped(cuda)
    assert int(cuda.cuMemRetainAllocationHandle(address)) == int(handle)


@on_driver()
def test_the_first_byte_behind_memory_has_no_range(cuda: Cuda) -> None:
    """cuMemGetAddressRange returns 500 from the first byte behind an allocation or a mapping on, although the driver
    takes whole granules from the device.

    Source: observed. Seen on an H200, driver 580.159.04.
    """
    plain, (mapping, _) = int(cuda.cuMemAlloc(MIB)), mapped(cuda)
    assert [int(value) for value in cuda.cuMemGetAddressRange(plain + MIB - 1)] == [plain, MIB]
    for address in (plain + MIB, plain + MIB + 512, mapping + GRANULE):
        assert cuda.code("cuMemGetAddressRange", address) == NOT_FOUND


@on_driver()
def test_stream_ordered_memory_has_a_pool(cuda: Cuda) -> None:
    """The attribute MEMPOOL_HANDLE is the pool of a stream-ordered allocation, and null for other memory. An allocation
    from no pool is refused with 1.

    Source: observed. Seen on an H200, driver 580.159.04.
    """
    pool, memory = cuda.cuDeviceGetDefaultMemPool(cuda.device), cuda.cuMemAllocAsync(MIB, 0)
    attribute = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert int(cuda.cuPointerGetAttribute(attribute, memory)) == int(pool)
    assert int(cuda.cuPointerGetAttribute(attribute, cuda.cuMemAlloc(MIB))) == 0
    assert cuda.code("cuMemAllocFromPoolAsync", MIB, None, 0) == 1
