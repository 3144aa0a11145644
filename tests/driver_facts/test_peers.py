"""Facts about several devices in one process (see test_facts.py), which need two devices that can be peers.

A launch on a device uses memory of another device only with access, which each kind of memory has from another call.
"""

from __future__ import annotations

import sys
from typing import Any

from .harness import CANNOT_RUN, IS_GPU, MIB, Cuda, on_driver
from .vmm import GRANULE, NO_ACCESS, allow, create, reserve

on_two_devices = on_driver(GPUSHARE_SIM_DEVICES="2")

UNSUPPORTED, ALREADY_ENABLED, NOT_ENABLED, INVALID_CONTEXT, ILLEGAL_ADDRESS = 217, 704, 705, 201, 700


def peer_of(cuda: Cuda) -> Any:
    """Return the primary context of device 1. The context of device 0 stays current."""
    if int(cuda.cuDeviceGetCount()) < 2 or not int(cuda.cuDeviceCanAccessPeer(0, 1)):
        assert IS_GPU
        sys.exit(CANNOT_RUN)
    return cuda.cuDevicePrimaryCtxRetain(1)


def alloc_there(cuda: Cuda, peer: Any, size: int = MIB) -> int:
    """Return memory of cuMemAlloc of the peer."""
    cuda.cuCtxSetCurrent(peer)
    address = int(cuda.cuMemAlloc(size))
    cuda.cuCtxSetCurrent(cuda.context)
    return address


def fill(cuda: Cuda, address: int) -> int:
    """Write 16 numbers by a launch on device 0, and return the status of the work."""
    cuda.launch("fill_f32", address, 1.0, 16)
    return cuda.code("cuCtxSynchronize")


@on_two_devices
def test_the_errors_of_peer_access(cuda: Cuda) -> None:
    """A context is no peer of itself, and a second call is refused, for enabling and for disabling.

    Source: CUDA driver API, "Peer Context Memory Access" (cuCtxEnablePeerAccess, cuCtxDisablePeerAccess,
    cuDeviceGetP2PAttribute). Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    assert cuda.code("cuCtxEnablePeerAccess", peer, 1) == 1
    assert cuda.code("cuCtxEnablePeerAccess", cuda.context, 0) == INVALID_CONTEXT
    assert cuda.code("cuCtxDisablePeerAccess", peer) == NOT_ENABLED
    cuda.cuCtxEnablePeerAccess(peer, 0)
    assert cuda.code("cuCtxEnablePeerAccess", peer, 0) == ALREADY_ENABLED
    cuda.cuCtxDisablePeerAccess(peer)
    assert cuda.code("cuCtxDisablePeerAccess", peer) == NOT_ENABLED
    supported = cuda.driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert int(cuda.cuDeviceGetP2PAttribute(supported, 0, 1)) == 1
    assert cuda.code("cuDeviceGetP2PAttribute", supported, 0, 0) == 101


@on_two_devices
def test_peer_access_covers_memory_from_before_and_after(cuda: Cuda) -> None:
    """After cuCtxEnablePeerAccess a launch uses ordinary memory of the peer, whenever it was allocated.

    Source: CUDA driver API, cuCtxEnablePeerAccess ("all allocations from peerContext will immediately be accessible")
    and CUDA programming guide, "Peer-to-Peer Memory Access". Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    before = alloc_there(cuda, peer)
    cuda.cuCtxEnablePeerAccess(peer, 0)
    assert [fill(cuda, address) for address in (before, alloc_there(cuda, peer))] == [0, 0]
    assert cuda.read_f32(before, 15) == 1.0


@on_two_devices
def test_a_launch_without_peer_access_is_an_illegal_address(cuda: Cuda) -> None:
    """A launch that uses memory of another device without access: 700.

    Source: documentation of CUDA_ERROR_ILLEGAL_ADDRESS; CUDA programming guide, "Peer-to-Peer Memory Access" ("must be
    enabled"). Not yet seen on a GPU.
    """
    assert fill(cuda, alloc_there(cuda, peer_of(cuda))) == ILLEGAL_ADDRESS


@on_two_devices
def test_access_goes_one_way(cuda: Cuda) -> None:
    """The access of device 1 to memory of device 0 gives device 0 none.

    Source: CUDA driver API, cuCtxEnablePeerAccess ("access granted by this call is unidirectional"). Not yet seen on a
    GPU.
    """
    peer = peer_of(cuda)
    memory = alloc_there(cuda, peer)
    cuda.cuCtxSetCurrent(peer)
    cuda.cuCtxEnablePeerAccess(cuda.context, 0)
    cuda.cuCtxSetCurrent(cuda.context)
    assert fill(cuda, memory) == ILLEGAL_ADDRESS


@on_two_devices
def test_disabled_access_is_gone(cuda: Cuda) -> None:
    """After cuCtxDisablePeerAccess a launch on memory of the peer: 700.

    Source: CUDA driver API, cuCtxDisablePeerAccess ("Disables direct access to memory allocations in a peer context").
    Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    memory = alloc_there(cuda, peer)
    cuda.cuCtxEnablePeerAccess(peer, 0)
    assert fill(cuda, memory) == 0
    cuda.cuCtxDisablePeerAccess(peer)
    assert fill(cuda, memory) == ILLEGAL_ADDRESS


@on_two_devices
def test_peer_access_does_not_cover_mapped_memory(cuda: Cuda) -> None:
    """Memory of cuMemCreate is for the devices of cuMemSetAccess, whatever cuCtxEnablePeerAccess has allowed. (The shim
    sets the access of the peers itself in mode swap.)

    Source: CUDA programming guide, "Stream-Ordered Memory Allocator" (device accessibility: "Just like allocation
    accessibility controlled through the virtual memory management APIs …") and "Virtual Memory Management"
    (introduction). Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    cuda.cuCtxEnablePeerAccess(peer, 0)
    address = reserve(cuda, GRANULE)
    cuda.cuMemMap(address, GRANULE, 0, create(cuda, GRANULE, device=1), 0)
    assert allow(cuda, address, GRANULE, device=1) == 0
    assert allow(cuda, address, GRANULE, device=0) == 0
    assert fill(cuda, address) == 0
    assert cuda.read_f32(address, 15) == 1.0
    assert allow(cuda, address, GRANULE, NO_ACCESS, device=0) == 0
    assert fill(cuda, address) == ILLEGAL_ADDRESS


@on_two_devices
def test_peer_access_does_not_cover_memory_of_pools(cuda: Cuda) -> None:
    """Memory of a pool is for the devices of cuMemPoolSetAccess, whatever cuCtxEnablePeerAccess has allowed.

    Source: CUDA programming guide, "Stream-Ordered Memory Allocator" (device accessibility for multi-GPU support:
    "memory pool allocation accessibility does not follow cudaDeviceEnablePeerAccess or cuCtxEnablePeerAccess").
    Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    cuda.cuCtxEnablePeerAccess(peer, 0)
    pool = cuda.cuDeviceGetDefaultMemPool(1)
    cuda.cuCtxSetCurrent(peer)
    memory = int(cuda.cuMemAllocAsync(MIB, 0))
    cuda.cuCtxSynchronize()
    cuda.cuCtxSetCurrent(cuda.context)
    access = cuda.driver.CUmemAccessDesc()
    access.location.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = cuda.driver.CUmemAccess_flags(3)
    cuda.cuMemPoolSetAccess(pool, [access], 1)
    assert fill(cuda, memory) == 0
    access.flags = cuda.driver.CUmemAccess_flags(0)
    cuda.cuMemPoolSetAccess(pool, [access], 1)
    assert fill(cuda, memory) == ILLEGAL_ADDRESS


@on_two_devices
def test_copies_and_unified_memory_need_no_peer_access(cuda: Cuda) -> None:
    """Copies between devices go without peer access, and every device reaches unified memory.

    Source: CUDA programming guide, "Peer-to-Peer Memory Copy" and "Unified Memory Programming" (multi-GPU). Not yet
    seen on a GPU.
    """
    peer = peer_of(cuda)
    own, there = int(cuda.cuMemAlloc(64)), alloc_there(cuda, peer)
    cuda.launch("fill_f32", own, 2.0, 16)
    cuda.cuMemcpyPeer(there, peer, own, cuda.context, 64)
    cuda.cuMemcpyDtoD(there + 64, there, 64)
    assert cuda.read_f32(there, 31) == 2.0
    cuda.cuCtxSetCurrent(peer)
    managed = int(cuda.cuMemAllocManaged(MIB, 1))
    cuda.cuCtxSetCurrent(cuda.context)
    assert fill(cuda, managed) == 0


@on_two_devices
def test_access_ends_with_the_context(cuda: Cuda) -> None:
    """The reset of the accessing device ends its access.

    Source: CUDA runtime API, cudaDeviceEnablePeerAccess ("until access is explicitly disabled … or either device is
    reset"). Not yet seen on a GPU.
    """
    peer = peer_of(cuda)
    cuda.cuCtxEnablePeerAccess(peer, 0)
    cuda.cuDevicePrimaryCtxReset(0)
    cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0))
    assert cuda.code("cuCtxDisablePeerAccess", peer) == NOT_ENABLED
