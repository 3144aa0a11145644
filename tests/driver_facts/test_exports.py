"""Facts about file descriptors of mapped memory, multicast objects and the driver's own log (see test_facts.py)."""

from __future__ import annotations

import os
import sys

from .harness import CANNOT_RUN, Cuda, on_driver
from .vmm import GRANULE, create, free_bytes, map_at, properties, reserve

SIZE = 64 * GRANULE
NOT_SUPPORTED = 801
MULTICAST_SUPPORTED = 132
# The statuses that the documentation of cuMulticastCreate and of cuMulticastGetGranularity lists.
MULTICAST_STATUSES = {0, 1, 2, 800, 801, 802}


@on_driver()
def test_mapped_memory_can_be_exported_and_is_the_same_memory(cuda: Cuda) -> None:
    """A descriptor of memory that is mapped opens as a handle of the same memory, which is counted once. Memory that
    was created without a type of handles has no descriptor, and flags other than zero are refused with 1. (The shim
    exports memory that is on the device, and moves it no more.)

    Source: documentation of cuMemExportToShareableHandle, cuMemImportFromShareableHandle and cuMemCreate. Not yet seen
    on a GPU.
    """
    kind = cuda.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    address, handle = reserve(cuda, SIZE), cuda.cuMemCreate(SIZE, properties(cuda, shareable=True), 0)
    map_at(cuda, address, handle, SIZE)
    free = free_bytes(cuda)
    file = int(cuda.cuMemExportToShareableHandle(handle, kind, 0))
    imported, other = cuda.cuMemImportFromShareableHandle(file, kind), reserve(cuda, SIZE)
    map_at(cuda, other, imported, SIZE)
    assert free_bytes(cuda) > free - SIZE // 2
    cuda.launch("fill_f32", address, 3.0, 16)
    assert cuda.read_f32(other, 15) == 3.0
    for mapped, owned in ((address, handle), (other, imported)):
        cuda.cuMemUnmap(mapped, SIZE)
        cuda.cuMemRelease(owned)
    os.close(file)
    assert free_bytes(cuda) > free + SIZE // 2
    assert cuda.code("cuMemExportToShareableHandle", create(cuda, GRANULE), kind, 0) != 0
    shareable = cuda.cuMemCreate(GRANULE, properties(cuda, shareable=True), 0)
    assert cuda.code("cuMemExportToShareableHandle", shareable, kind, 1) == 1


@on_driver()
def test_multicast_is_refused_where_the_device_lacks_it(cuda: Cuda) -> None:
    """A device whose attribute CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED is 0 refuses multicast objects with 801. A
    device that has them answers for a team of one device with a documented status, and a granularity that divides into
    granules.

    Source: CUDA programming guide, "Multicast Object Sharing" (query of the attribute before use), and documentation of
    cuMulticastCreate and cuMulticastGetGranularity. Not yet seen on a GPU.
    """
    wanted = cuda.driver.CUmulticastObjectProp()
    wanted.numDevices, wanted.size = 1, SIZE
    minimum = cuda.driver.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM
    attribute = cuda.driver.CUdevice_attribute(MULTICAST_SUPPORTED)
    statuses = [
        cuda.code("cuMulticastGetGranularity", wanted, minimum),
        cuda.code("cuMulticastCreate", wanted),
    ]
    if not int(cuda.cuDeviceGetAttribute(attribute, cuda.device)):
        assert statuses == [NOT_SUPPORTED, NOT_SUPPORTED]
        return
    assert set(statuses) <= MULTICAST_STATUSES
    if statuses[0] == 0:
        assert int(cuda.cuMulticastGetGranularity(wanted, minimum)) % GRANULE == 0


@on_driver()
def test_the_log_of_the_driver_has_no_messages_of_calls_that_succeed(cuda: Cuda) -> None:
    """A dump from the present end of the log has no messages while calls succeed, and its text is empty. Flags other
    than zero are refused with 1. (The shim leaves the log alone.)

    Source: documentation of cuLogsCurrent and cuLogsDumpToMemory ("will always null terminate the buffer"; "if there
    are no messages to dump, *size will be set to 0"). Not yet seen on a GPU.
    """
    try:
        cuda.driver.cuLogsCurrent(0)
    except RuntimeError:  # the driver is older than CUDA 12.9
        sys.exit(CANNOT_RUN)
    end = cuda.cuLogsCurrent(0)
    cuda.cuMemFree(cuda.cuMemAlloc(GRANULE))
    text = bytes(bytearray(b"x" * 4096))
    _, size = cuda.cuLogsDumpToMemory(end, text, len(text), 0)
    assert (int(size), text[:1]) == (0, b"\0")
    assert cuda.code("cuLogsCurrent", 1) == 1
    assert cuda.code("cuLogsDumpToMemory", end, text, len(text), 1) == 1
