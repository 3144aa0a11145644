"""Facts about virtual memory management, which moves memory in mode swap (see test_facts.py)."""

from __future__ import annotations

import os

import pytest

from .harness import MIB, NON_BLOCKING, Cuda, on_driver
from .vmm import GRANULE, NO_ACCESS, READ_WRITE, allow, create, free_bytes, map_at, mapped, properties, reserve


@on_driver()
def test_the_granularity_is_two_mebibytes(cuda: Cuda) -> None:
    """Sizes and addresses must be multiples of the granularity, which is 2 MiB.

    Source: documentation of cuMemGetAllocationGranularity and cuMemCreate; NVIDIA's blog "Introducing Low-Level GPU
    Virtual Memory Management" for the number. Seen on an H200.
    """
    option = cuda.driver.CUmemAllocationGranularity_flags(0)
    assert int(cuda.cuMemGetAllocationGranularity(properties(cuda), option)) == GRANULE
    assert cuda.code("cuMemCreate", GRANULE + 4096, properties(cuda), 0) == 1
    address, handle = reserve(cuda, 4 * GRANULE), create(cuda, GRANULE)
    assert cuda.code("cuMemMap", address + 4096, GRANULE, 0, handle, 0) == 1


@on_driver()
def test_memory_is_mapped_as_a_whole(cuda: Cuda) -> None:
    """cuMemMap of a part of a handle, or of more than the handle has, is refused with 801. Addresses without a
    reservation, an address that is no multiple of the granularity and flags are refused with 1. (In mode swap, the shim
    lets any other call than the whole mapping of reserved addresses wait for its turn.)

    Source: documentation of cuMemMap (`offset` "currently must be zero", flags "must be zero now"), without the codes.
    Seen on an H200.
    """
    address, handle = reserve(cuda, 8 * GRANULE), create(cuda, 2 * GRANULE)
    for size, offset in ((GRANULE, 0), (3 * GRANULE, 0), (4096, 0), (2 * GRANULE, GRANULE)):
        assert cuda.code("cuMemMap", address, size, offset, handle, 0) == 801
    assert cuda.code("cuMemMap", address, 2 * GRANULE, 0, handle, 1) == 1
    assert cuda.code("cuMemMap", address + 4096, 2 * GRANULE, 0, handle, 0) == 1
    gone = reserve(cuda, 2 * GRANULE)
    cuda.cuMemAddressFree(gone, 2 * GRANULE)
    assert cuda.code("cuMemMap", gone, 2 * GRANULE, 0, handle, 0) == 1
    map_at(cuda, address, handle, 2 * GRANULE)


@on_driver()
def test_memory_is_created_of_known_devices_in_whole_granules(cuda: Cuda) -> None:
    """A number of bytes that is no multiple of the granularity is refused with 1, also where it exceeds every device.
    More granules than a device has are refused with 2, an unknown device with 101 and an unknown type with 1.

    Source: documentation of cuMemCreate, without the codes. Seen on an H200.
    """
    answers = {0: 1, 1: 1, 1 << 63: 2, (1 << 64) - 1: 1, (1 << 64) - GRANULE: 2}
    assert {size: cuda.code("cuMemCreate", size, properties(cuda), 0) for size in answers} == answers
    for device in (7, -1):
        assert cuda.code("cuMemCreate", GRANULE, properties(cuda, device=device), 0) == 101
    driver, wrong = cuda.driver, (properties(cuda), properties(cuda))
    wrong[0].type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    wrong[1].location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    assert [cuda.code("cuMemCreate", GRANULE, each, 0) for each in wrong] == [1, 1]


@on_driver()
def test_unmapping_leaves_the_address_and_nothing_else(cuda: Cuda) -> None:
    """After cuMemUnmap the addresses stay reserved. Other memory mapped there has its own contents and no access yet.
    The first memory keeps its data and can be mapped at the same address again. (The shim moves memory in this way.)

    Source: documentation of cuMemUnmap ("converted to an address reservation … access granted through
    cuMemSetAccess, as all mappings start with no accessibility setup"). Seen on an H200.
    """
    address, first = mapped(cuda)
    cuda.launch("fill_f32", address, 1.0, 16)
    cuda.cuCtxSynchronize()
    cuda.cuMemUnmap(address, GRANULE)
    second = create(cuda, GRANULE)
    map_at(cuda, address, second)
    cuda.launch("fill_f32", address, 2.0, 16)
    assert cuda.read_f32(address, 15) == 2.0
    cuda.cuMemUnmap(address, GRANULE)
    map_at(cuda, address, first)
    assert cuda.read_f32(address, 15) == 1.0


@on_driver()
def test_a_mapping_outlives_the_context_in_which_it_was_made(cuda: Cuda) -> None:
    """Another context of the device uses the memory after that. (In mode swap, another context then moves it.)

    Source: a trial on an H200. Seen on an H200 by this test as well.
    """
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    address, _ = mapped(cuda)
    cuda.cuMemsetD8(address, 0, GRANULE)
    cuda.cuCtxDestroy(context)
    cuda.launch("fill_f32", address, 1.0, 16)
    assert cuda.read_f32(address, 15) == 1.0


@on_driver()
def test_memory_without_access_can_not_be_copied(cuda: Cuda) -> None:
    """A copy from mapped memory before cuMemSetAccess fails.

    Source: documentation of cuMemMap ("does not make the address accessible"). Seen on an H200.
    """
    address = reserve(cuda, GRANULE)
    cuda.cuMemMap(address, GRANULE, 0, create(cuda, GRANULE), 0)
    assert cuda.code("cuMemcpyDtoH", bytearray(4), address, 4) != 0


@on_driver()
def test_a_launch_on_memory_without_access_is_an_illegal_address(cuda: Cuda) -> None:
    """A launch that uses mapped memory before cuMemSetAccess: 700, and the context is lost.

    Source: documentation of cuMemMap and of CUDA_ERROR_ILLEGAL_ADDRESS. Seen on an H200.
    """
    address = reserve(cuda, GRANULE)
    cuda.cuMemMap(address, GRANULE, 0, create(cuda, GRANULE), 0)
    cuda.launch("fill_f32", address, 1.0, 16)
    assert cuda.code("cuCtxSynchronize") == 700


@pytest.mark.whole_card
@on_driver()
def test_released_memory_lives_while_it_is_mapped(cuda: Cuda) -> None:
    """cuMemRelease of mapped memory frees nothing yet; cuMemUnmap of released memory does. A handle can be had back
    from the address.

    Source: documentation of cuMemRelease, cuMemUnmap ("backing memory allocations will be freed if there are no
    existing mappings and there are no unreleased memory handles"), cuMemRetainAllocationHandle. Seen on an H200.
    """
    size = 64 * MIB
    before = free_bytes(cuda)
    address, handle = mapped(cuda, size)
    cuda.cuMemRelease(handle)
    assert free_bytes(cuda) <= before - size
    cuda.launch("fill_f32", address, 3.0, 16)
    assert cuda.read_f32(address, 15) == 3.0
    cuda.cuMemRelease(cuda.cuMemRetainAllocationHandle(address))
    cuda.cuMemUnmap(address, size)
    assert free_bytes(cuda) > before - size


@pytest.mark.whole_card
@on_driver()
def test_memory_is_taken_when_it_is_created(cuda: Cuda) -> None:
    """cuMemCreate takes the device's memory (cuMemGetInfo), reserving addresses doesn't; more than is free is refused
    with 2, and unmapping gives nothing back by itself.

    Source: documentation of cuMemCreate; NVIDIA's blog "Introducing Low-Level GPU Virtual Memory Management".
    Seen on an H200.
    """
    size = 64 * MIB
    before = free_bytes(cuda)
    address = reserve(cuda, 8 * size)
    assert free_bytes(cuda) > before - size
    handle = create(cuda, size)
    assert free_bytes(cuda) <= before - size
    map_at(cuda, address, handle, size)
    cuda.cuMemUnmap(address, size)
    assert free_bytes(cuda) <= before - size
    cuda.cuMemRelease(handle)
    assert free_bytes(cuda) > before - size
    total = int(cuda.cuMemGetInfo()[1])
    assert cuda.code("cuMemCreate", (total // GRANULE + 1) * GRANULE, properties(cuda), 0) == 2


@on_driver()
def test_freed_addresses_can_be_reserved_again(cuda: Cuda) -> None:
    """A hint for addresses that are free is taken.

    Source: documentation of cuMemAddressReserve ("treats it as a hint"): a hope, checked here. Seen on an H200.
    """
    address = reserve(cuda, 16 * GRANULE)
    cuda.cuMemAddressFree(address, 16 * GRANULE)
    assert reserve(cuda, 16 * GRANULE, hint=address) == address


@on_driver()
def test_several_whole_mappings_are_unmapped_in_one_call(cuda: Cuda) -> None:
    """cuMemUnmap of neighbouring whole mappings unmaps all of them.

    Source: simpleFreeMultiDeviceMmap of NVIDIA/cuda-samples. Seen on an H200.
    """
    address = reserve(cuda, 8 * GRANULE)
    for offset in (0, 2 * GRANULE):
        map_at(cuda, address + offset, create(cuda, 2 * GRANULE), 2 * GRANULE)
    assert cuda.code("cuMemUnmap", address, 4 * GRANULE) == 0
    map_at(cuda, address, create(cuda, 4 * GRANULE), 4 * GRANULE)


@on_driver()
def test_unmapping_a_larger_range_succeeds(cuda: Cuda) -> None:
    """cuMemUnmap of a range inside a reservation unmaps what is mapped in the range, also nothing. A range that cuts a
    mapping is refused with 1, and the mapping stays. (In mode swap, the driver itself answers for a range that the
    mappings do not fill, because the documentation requires "the entire contiguous address range that was mapped to".)

    Source: observed. Seen on an H200, driver 580.159.04, without a hole between mappings and without a cut at the end.
    """
    address = reserve(cuda, 8 * GRANULE)
    assert cuda.code("cuMemUnmap", address, GRANULE) == 0
    for offset in (0, 3 * GRANULE):
        map_at(cuda, address + offset, create(cuda, 2 * GRANULE), 2 * GRANULE)
    cuda.launch("fill_f32", address, 1.0, GRANULE // 2)
    for start, size in ((0, GRANULE), (GRANULE, 7 * GRANULE), (0, 4 * GRANULE)):
        assert cuda.code("cuMemUnmap", address + start, size) == 1
    assert cuda.read_f32(address, GRANULE // 2 - 1) == 1.0
    assert cuda.code("cuMemUnmap", address, 8 * GRANULE) == 0
    assert cuda.code("cuMemUnmap", address, 8 * GRANULE) == 0
    map_at(cuda, address, create(cuda, 8 * GRANULE), 8 * GRANULE)


@on_driver()
def test_neighbouring_mappings_get_access_in_one_call(cuda: Cuda) -> None:
    """One cuMemSetAccess covers several whole mappings.

    Source: simpleMallocMultiDeviceMmap of NVIDIA/cuda-samples; PyTorch's expandable segments. Seen on an H200.
    """
    address = reserve(cuda, 4 * GRANULE)
    for offset in (0, GRANULE):
        cuda.cuMemMap(address + offset, GRANULE, 0, create(cuda, GRANULE), 0)
    assert allow(cuda, address, 2 * GRANULE) == 0
    cuda.launch("fill_f32", address, 1.0, GRANULE // 2)
    assert cuda.read_f32(address, GRANULE // 2 - 1) == 1.0


@on_driver()
def test_neighbouring_mappings_are_one_memory_for_launches_and_copies(cuda: Cuda) -> None:
    """A launch, a copy and a set cross from one mapping to the next.

    Source: PyTorch's expandable segments rely on it. Seen on an H200.
    """
    address = reserve(cuda, 2 * GRANULE)
    for offset in (0, GRANULE):
        map_at(cuda, address + offset, create(cuda, GRANULE))
    cuda.launch("fill_f32", address, 1.0, 2 * GRANULE // 4)
    assert cuda.read_f32(address, 2 * GRANULE // 4 - 1) == 1.0
    data = os.urandom(4096)
    cuda.cuMemcpyHtoD(address + GRANULE - 2048, data, 4096)
    assert cuda.read(address, 4096, GRANULE - 2048) == data
    cuda.cuMemsetD8(address + GRANULE - 4, 0, 8)
    assert cuda.read(address, 8, GRANULE - 4) == bytes(8)


@on_driver()
def test_one_memory_may_be_mapped_twice(cuda: Cuda) -> None:
    """Both mappings of one handle show the same bytes. (Memory can be read through one while the program's address is
    being prepared.)

    Source: documentation of cuMemMap; CUDA programming guide, "Virtual aliasing support". Seen on an H200.
    """
    address, handle = mapped(cuda)
    twin = reserve(cuda, GRANULE)
    map_at(cuda, twin, handle)
    cuda.launch("fill_f32", address, 4.0, 16)
    cuda.cuCtxSynchronize()
    assert cuda.read_f32(twin, 15) == 4.0


@on_driver()
def test_mapped_memory_is_no_allocation(cuda: Cuda) -> None:
    """cuMemFree refuses mapped memory, cuIpcGetMemHandle too, and its addresses are not those of unified memory.

    Source: CUDA programming guide, "Virtual memory management" (legacy IPC is not for it). Seen on an H200.
    """
    address, _ = mapped(cuda)
    assert cuda.code("cuMemFree", address) != 0
    assert cuda.code("cuIpcGetMemHandle", address) != 0
    attribute = cuda.driver.CUpointer_attribute
    assert int(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)) == 0
    assert int(cuda.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 2


@on_driver()
def test_the_address_range_of_mapped_memory_is_one_mapping(cuda: Cuda) -> None:
    """cuMemGetAddressRange answers for the one mapping around the address, not for the reservation.

    Source: NCCL walks expandable segments by it, mapping after mapping. Seen on an H200.
    """
    address = reserve(cuda, 4 * GRANULE)
    for offset in (0, GRANULE):
        map_at(cuda, address + offset, create(cuda, GRANULE))
    found = [int(value) for value in cuda.cuMemGetAddressRange(address + GRANULE + 100)]
    assert found == [address + GRANULE, GRANULE]


@on_driver()
def test_mapping_goes_on_while_a_stream_captures(cuda: Cuda) -> None:
    """Creating, mapping, unmapping and releasing memory disturb no capture, whatever its mode.

    Source: PyTorch grows expandable segments while it captures, without changing the thread's mode. Seen on an H200.
    """
    stream, memory = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuMemAlloc(MIB)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(0))
    cuda.launch("fill_f32", memory, 1.0, 16, stream=stream)
    address, handle = mapped(cuda)
    cuda.cuMemUnmap(address, GRANULE)
    cuda.cuMemRelease(handle)
    assert cuda.code("cuStreamEndCapture", stream) == 0


@on_driver()
def test_access_may_be_granted_again_and_taken(cuda: Cuda) -> None:
    """cuMemSetAccess of a mapped range may be repeated; of a range with a hole it is refused.

    Source: documentation of cuMemSetAccess ("must be a fully mapped address range"). Seen on an H200.
    """
    address = reserve(cuda, 4 * GRANULE)
    map_at(cuda, address, create(cuda, GRANULE))
    assert allow(cuda, address, GRANULE) == 0
    assert allow(cuda, address, 2 * GRANULE) != 0


@on_driver()
def test_wrong_access_is_an_invalid_value(cuda: Cuda) -> None:
    """cuMemSetAccess is refused with 1 for an absent device, although cuMemCreate is refused with 101. The other wrong
    values are refused with 1 as well, such as flags, the location type 0, no access at all, and a part of a mapping.

    Source: observed. Seen on an H200, driver 580.159.04.
    """
    address = reserve(cuda, 4 * GRANULE)
    map_at(cuda, address, create(cuda, 2 * GRANULE), 2 * GRANULE)
    access = cuda.driver.CUmemAccessDesc()
    access.flags = cuda.driver.CUmemAccess_flags(READ_WRITE)
    assert cuda.code("cuMemSetAccess", address, 2 * GRANULE, [access], 1) == 1  # location type 0
    assert allow(cuda, address, 2 * GRANULE, device=7) == 1
    for start, size in ((0, GRANULE), (0, 4 * GRANULE), (4096, GRANULE), (0, 0), (2 * GRANULE, GRANULE)):
        assert allow(cuda, address + start, size) == 1
    assert allow(cuda, address, 2 * GRANULE, NO_ACCESS) == 0
