"""Facts about file descriptors of mapped memory, multicast objects and the driver's own log (see test_facts.py)."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from .harness import CANNOT_RUN, Cuda, on_driver
from .vmm import GRANULE, create, free_bytes, map_at, mapped, properties, reserve

WITH_MULTICAST = on_driver(GPUSHARE_SIM_CONFIG=str(Path(__file__).with_name("multicast.conf")))
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
    for place, owned in ((address, handle), (other, imported)):
        cuda.cuMemUnmap(place, SIZE)
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


def multicast_team(cuda: Cuda, devices: int = 1) -> Any:
    """Return a multicast object for a team of the first devices, without the last one of them."""
    attribute = cuda.driver.CUdevice_attribute(MULTICAST_SUPPORTED)
    if int(cuda.cuDeviceGetCount()) < devices or not int(cuda.cuDeviceGetAttribute(attribute, cuda.device)):
        sys.exit(CANNOT_RUN)
    wanted = cuda.driver.CUmulticastObjectProp()
    wanted.numDevices, wanted.size = devices, SIZE
    if cuda.code("cuMulticastCreate", wanted):
        sys.exit(CANNOT_RUN)
    team = cuda.cuMulticastCreate(wanted)
    for device in range(devices - 1):
        cuda.cuMulticastAddDevice(team, cuda.cuDeviceGet(device))
    return team


@WITH_MULTICAST
def test_memory_that_a_multicast_object_has_lives_until_it_is_unbound(cuda: Cuda) -> None:
    """Memory can be bound by its handle or by an address, and stays on the device without handles and mappings until it
    is unbound, or until the object is released. (The shim moves bound memory no more.)

    Source: documentation of cuMulticastBindMem, cuMulticastBindAddr, cuMulticastUnbind and cuMemRelease. Not yet seen
    on a GPU.
    """
    team = multicast_team(cuda)
    cuda.cuMulticastAddDevice(team, cuda.device)
    free = free_bytes(cuda)
    address, handle = mapped(cuda, SIZE // 2)
    other = create(cuda, SIZE // 2)
    cuda.cuMulticastBindAddr(team, 0, address, SIZE // 2, 0)
    cuda.cuMulticastBindMem(team, SIZE // 2, other, 0, SIZE // 2, 0)
    cuda.cuMemUnmap(address, SIZE // 2)
    cuda.cuMemRelease(handle)
    cuda.cuMemRelease(other)
    assert free_bytes(cuda) <= free - SIZE
    cuda.cuMulticastUnbind(team, cuda.device, 0, SIZE // 2)
    assert free - SIZE < free_bytes(cuda) <= free - SIZE // 2
    cuda.cuMemRelease(team)
    assert free_bytes(cuda) > free - SIZE // 2


@WITH_MULTICAST
def test_memory_must_fit_into_a_multicast_object(cuda: Cuda) -> None:
    """A bind is refused that exceeds the object or the memory, that is no multiple of the granularity, or that has
    flags. So is an object with a size that is no multiple, and memory of a device outside the team.

    Source: documentation of cuMulticastCreate and cuMulticastBindMem. Not yet seen on a GPU.
    """
    team, handle = multicast_team(cuda), create(cuda, 2 * GRANULE)
    cuda.cuMulticastAddDevice(team, cuda.device)
    wrong = ((SIZE, 0, GRANULE, 0), (0, 0, 4 * GRANULE, 0), (0, GRANULE, 2 * GRANULE, 0), (0, 0, GRANULE, 1))
    odd = ((1, 0, GRANULE, 0), (0, 1, GRANULE, 0), (0, 0, GRANULE + 1, 0))
    for at, offset, size, flags in wrong + odd:
        assert cuda.code("cuMulticastBindMem", team, at, handle, offset, size, flags) == 1, (at, offset, size, flags)
    uneven = cuda.driver.CUmulticastObjectProp()
    uneven.numDevices, uneven.size = 1, GRANULE + 1
    assert cuda.code("cuMulticastCreate", uneven) == 1
    if int(cuda.cuDeviceGetCount()) > 1:
        outside = create(cuda, GRANULE, device=1)
        assert cuda.code("cuMulticastBindMem", team, 0, outside, 0, GRANULE, 0) in (1, 101)
    cuda.cuMulticastBindMem(team, 0, handle, 0, 2 * GRANULE, 0)


@WITH_MULTICAST
def test_a_bind_waits_for_the_team_of_a_multicast_object(cuda: Cuda) -> None:
    """A thread that binds memory waits until the last device of the team has been added.

    Source: documentation of cuMulticastAddDevice ("will block until all devices have been added"). Not yet seen on a
    GPU.
    """
    team, handle, begun, statuses = multicast_team(cuda, 2), create(cuda, GRANULE), threading.Event(), []

    def bind() -> None:
        begun.set()
        statuses.append(cuda.code("cuMulticastBindMem", team, 0, handle, 0, GRANULE, 0))

    thread = threading.Thread(target=bind)
    thread.start()
    begun.wait()
    thread.join(0.2)
    assert thread.is_alive()
    cuda.cuMulticastAddDevice(team, cuda.cuDeviceGet(1))
    thread.join()
    assert statuses == [0]


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
