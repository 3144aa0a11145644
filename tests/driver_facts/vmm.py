"""Short functions for virtual memory management and pools by cuda-bindings, for the tests of this folder and others."""

from __future__ import annotations

from typing import Any

from .harness import MIB, Cuda

GRANULE = 2 * MIB
NO_ACCESS, READ_WRITE = 0, 3


def properties(cuda: Cuda, shareable: bool = False, device: int = 0) -> Any:
    """Create memory of a device, with `shareable` for export to other processes by a file descriptor."""
    driver = cuda.driver
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    if shareable:
        made.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return made


def create(cuda: Cuda, size: int, device: int = 0) -> Any:
    return cuda.cuMemCreate(size, properties(cuda, device=device), 0)


def reserve(cuda: Cuda, size: int, hint: int = 0) -> int:
    return int(cuda.cuMemAddressReserve(size, 0, hint, 0))


def allow(cuda: Cuda, address: int, size: int, flags: int = READ_WRITE, device: int = 0) -> int:
    """Call cuMemSetAccess for a device, and return its status."""
    access = cuda.driver.CUmemAccessDesc()
    access.location = properties(cuda, device=device).location
    access.flags = cuda.driver.CUmemAccess_flags(flags)
    return cuda.code("cuMemSetAccess", address, size, [access], 1)


def map_at(cuda: Cuda, address: int, handle: Any, size: int = GRANULE) -> None:
    """Map memory, and allow access."""
    cuda.cuMemMap(address, size, 0, handle, 0)
    assert allow(cuda, address, size) == 0


def mapped(cuda: Cuda, size: int = GRANULE) -> tuple[int, Any]:
    """Return an address range with memory that the device may use, and the memory's handle."""
    address, handle = reserve(cuda, size), create(cuda, size)
    map_at(cuda, address, handle, size)
    return address, handle


def free_bytes(cuda: Cuda) -> int:
    return int(cuda.cuMemGetInfo()[0])


def new_pool(cuda: Cuda) -> Any:
    """Return a new memory pool of the device."""
    pool_properties = cuda.driver.CUmemPoolProps()
    pool_properties.allocType = cuda.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    pool_properties.location = properties(cuda).location
    return cuda.cuMemPoolCreate(pool_properties)
