"""Facts about unified memory, pools, pinned memory and contexts (see test_facts.py)."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .harness import IS_GPU, MIB, MS, NON_BLOCKING, Cuda, environment, on_driver, start_test
from .vmm import free_bytes, new_pool

SIZE = 256 * MIB


def location(cuda: Cuda, on_device: bool) -> Any:
    made, kinds = cuda.driver.CUmemLocation(), cuda.driver.CUmemLocationType
    made.type = kinds.CU_MEM_LOCATION_TYPE_DEVICE if on_device else kinds.CU_MEM_LOCATION_TYPE_HOST
    return made


def prefetch(cuda: Cuda, memory: Any, size: int, on_device: bool) -> None:
    cuda.cuMemPrefetchAsync(memory, size, location(cuda, on_device), 0, 0)
    cuda.cuCtxSynchronize()


@pytest.mark.whole_card
@on_driver()
def test_unified_memory_takes_none_of_the_device_until_it_is_used(cuda: Cuda) -> None:
    """cuMemAllocManaged takes no device memory; a launch takes it for what it touches.

    Source: CUDA programming guide, "Unified Memory Programming". Seen on an H200.
    """
    before = free_bytes(cuda)
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    assert free_bytes(cuda) > before - SIZE // 2
    cuda.launch("fill_f32", memory, 1.0, SIZE // 8)
    cuda.cuCtxSynchronize()
    assert before - SIZE < free_bytes(cuda) <= before - SIZE // 2


@pytest.mark.whole_card
@on_driver()
def test_prefetching_populates_untouched_pages(cuda: Cuda) -> None:
    """A prefetch to the device gives untouched pages device memory. (The shim prefetches large new allocations.)

    Source: documentation of cuMemPrefetchAsync; CUDA programming guide, "Data prefetching". Seen on an H200.
    """
    before = free_bytes(cuda)
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    prefetch(cuda, memory, SIZE, True)
    assert free_bytes(cuda) <= before - SIZE


@pytest.mark.whole_card
@on_driver()
def test_prefetching_to_the_host_keeps_the_data_and_takes_no_more_of_the_device(cuda: Cuda) -> None:
    """Data stays the same on the way to the host and back, and a launch finds the data also without a prefetch back.
    Memory that comes back takes no more of the device than before, and its release frees the device.

    cuMemGetInfo may not show the memory as free meanwhile. The driver keeps the memory of blocks of 2 MiB as unused,
    and does not count the memory as free, until another allocation needs the memory.

    Source: documentation of cuMemPrefetchAsync; open-gpu-kernel-modules 595.45.04, nvidia-uvm/uvm_va_block.c:
    block_clear_resident_processor marks the chunk as unused; phys_mem_allocator.c: pmaGetFreeMemory counts free frames
    only. Seen on an H200.
    """
    before = free_bytes(cuda)
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    cuda.launch("fill_f32", memory, 7.0, SIZE // 4)
    cuda.cuCtxSynchronize()
    for on_device in (False, True, False):
        prefetch(cuda, memory, SIZE, on_device)
        assert free_bytes(cuda) > before - SIZE - SIZE // 8
    cuda.launch("work_f32", memory, SIZE // 4, 0, 0)
    assert cuda.read_f32(memory, SIZE // 4 - 1) == 8.0
    cuda.cuMemFree(memory)
    assert free_bytes(cuda) > before - SIZE // 8


@on_driver()
def test_memory_moves_while_work_uses_it(cuda: Cuda) -> None:
    """Prefetches on another stream move memory that a launch uses, and data stays the same. (The shim moves memory in a
    turn without a drain, where the limit of the turn changes.)

    Source: documentation of cuMemPrefetchAsync; CUDA programming guide, "Unified Memory Programming", coherency and
    concurrency of devices with concurrentManagedAccess. Not yet seen on a GPU.
    """
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    cuda.launch("fill_f32", memory, 7.0, SIZE // 4)
    cuda.cuCtxSynchronize()
    stream, other = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    cuda.launch("work_f32", memory, SIZE // 4, 200 * MS, 0, stream=stream)
    for on_device in (False, True, False):
        cuda.cuMemPrefetchAsync(memory, SIZE, location(cuda, on_device), 0, other)
    cuda.cuCtxSynchronize()
    for element in (0, SIZE // 8, SIZE // 4 - 1):
        assert cuda.read_f32(memory, element) == 8.0


def host_bytes_used() -> int:
    """Return the host memory in use: of this process on the simulated driver, else of the host, which does no more."""
    if not IS_GPU:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return -int(lines["MemAvailable"].split()[0]) * 1024


@pytest.mark.whole_card
@on_driver()
def test_unified_memory_takes_host_memory_once(cuda: Cuda) -> None:
    """Memory that leaves the device takes as much host memory, keeps it while it is on the device again, and takes no
    more when it leaves again. The release gives the host memory back.

    Source: open-gpu-kernel-modules 595.45.04, nvidia-uvm/uvm_va_block.c: block_populate_pages_cpu allocates the pages
    that the block lacks. Where Linux exports int_active_memcg, they are charged to the memory cgroup of the process.
    The pages are freed with the block. Seen on an H200.
    """
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    prefetch(cuda, memory, SIZE, True)
    before = host_bytes_used()
    for on_device in (False, True, False):
        prefetch(cuda, memory, SIZE, on_device)
        assert abs(host_bytes_used() - before - SIZE) < SIZE // 8
    cuda.cuMemFree(memory)
    assert abs(host_bytes_used() - before) < SIZE // 8


@pytest.mark.whole_card
@on_driver()
def test_a_prefetch_holds_its_caller(cuda: Cuda) -> None:
    """The caller of a prefetch waits for about half of the copies to the device, and for all copies to the host. (The
    shim evicts in parts, and first shows in the page that an eviction begins.)

    Source: none for copies to the device, measured by the part `costs` of `make test-gpu`; for copies to the host
    open-gpu-kernel-modules 595.45.04, nvidia-uvm/uvm_migrate.c. Not yet seen on a GPU in this form.
    """
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    cuda.launch("fill_f32", memory, 1.0, SIZE // 4)
    cuda.cuCtxSynchronize()

    def seconds(on_device: bool) -> tuple[float, float]:
        """Return the seconds of the call, and of the call with its copies."""
        began = time.monotonic()
        cuda.cuMemPrefetchAsync(memory, SIZE, location(cuda, on_device), 0, 0)
        called = time.monotonic()
        cuda.cuCtxSynchronize()
        return called - began, time.monotonic() - began

    measured = [(*seconds(False), *seconds(True)) for _ in range(8)]
    # A busy machine makes some calls and copies slower, and none faster.
    host_call, to_host, device_call, to_device = (min(column) for column in zip(*measured, strict=True))
    assert host_call > 0.8 * to_host, measured
    assert 0.25 < device_call / to_device < 0.75, measured


@on_driver()
def test_only_unified_memory_is_prefetched(cuda: Cuda) -> None:
    """cuMemPrefetchAsync and cuMemAdvise of memory of cuMemAlloc: 1.

    Source: documentation of cuMemPrefetchAsync ("must be … cuMemAllocManaged"). Seen on an H200.
    """
    plain = cuda.cuMemAlloc(MIB)
    assert cuda.code("cuMemPrefetchAsync", plain, MIB, location(cuda, True), 0, 0) == 1
    advice = cuda.driver.CUmem_advise(5)
    assert cuda.code("cuMemAdvise", plain, MIB, advice, location(cuda, True)) == 1


def unpaged(cuda: Cuda) -> None:
    attribute = cuda.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    if cuda.cuDeviceGetAttribute(attribute, cuda.device):
        return  # a GPU that pages unified memory
    memory = cuda.cuMemAllocManaged(MIB, 1)
    cuda.launch("fill_f32", memory, 7.0, 16)
    cuda.cuCtxSynchronize()
    for on_device in (True, False):
        assert cuda.code("cuMemPrefetchAsync", memory, MIB, location(cuda, on_device), 0, 0) == 101
    assert cuda.code("cuMemAllocManaged", 2 * cuda.cuDeviceTotalMem(cuda.device), 1) == 2


def test_a_device_without_concurrent_managed_access_does_not_page(tmp_path: Path) -> None:
    """Without concurrent managed access, unified memory cannot exceed the device, and prefetches return 101.

    Source: documentation of cuMemPrefetchAsync (the stream's device needs the attribute); CUDA programming guide,
    unified memory without concurrent access. Not yet seen on a GPU.
    """
    (tmp_path / "config").write_text("[device]\nconcurrent_managed_access = 0\n")
    process = start_test(unpaged, environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "config")))
    assert process.communicate(timeout=90)[0] == "" and process.returncode == 0


@pytest.mark.whole_card
@on_driver()
def test_memory_the_device_only_maps_is_not_migrated(cuda: Cuda) -> None:
    """With "accessed by" the device, pages on the host stay there when a launch uses them. (The shim sets it for
    memory of offline clients.)

    Source: documentation of CU_MEM_ADVISE_SET_ACCESSED_BY ("does not cause data migration"); used so by TGS.
    Seen on an H200.
    """
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    ctypes.memset(int(memory), 0, SIZE)
    cuda.cuMemAdvise(memory, SIZE, cuda.driver.CUmem_advise(5), location(cuda, True))
    before = free_bytes(cuda)
    cuda.launch("work_f32", memory, SIZE // 4, 0, 0)
    cuda.cuCtxSynchronize()
    assert free_bytes(cuda) > before - SIZE // 2
    assert cuda.read_f32(memory, SIZE // 4 - 1) == 1.0


@on_driver()
def test_the_host_sees_what_the_device_wrote_to_unified_memory(cuda: Cuda) -> None:
    """After a synchronisation, the device also reads the values that the host wrote.

    Source: CUDA programming guide, "Unified Memory Programming". Seen on an H200.
    """
    memory = cuda.cuMemAllocManaged(MIB, 1)
    word = ctypes.c_float.from_address(int(memory))
    word.value = 5.0
    cuda.launch("work_f32", memory, 1, 0, 0)
    cuda.cuCtxSynchronize()
    assert word.value == 6.0


@pytest.mark.whole_card
@on_driver()
def test_memory_of_the_default_pool_goes_back_at_a_synchronisation(cuda: Cuda) -> None:
    """Memory that cuMemFreeAsync has freed is free for other processes after a synchronisation of the stream (release
    threshold 0).

    Source: CUDA programming guide, "Stream ordered memory allocator" (physical page caching). Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    before = free_bytes(cuda)
    memory = cuda.cuMemAllocAsync(SIZE, stream)
    cuda.launch("fill_f32", memory, 1.0, 16, stream=stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) <= before - SIZE
    cuda.cuMemFreeAsync(memory, stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) > before - SIZE // 2


def pool_figures(cuda: Cuda, pool: Any) -> list[int]:
    """Return the used and the reserved bytes of a pool, now and at most."""
    kinds = cuda.driver.CUmemPool_attribute
    names = ("USED_MEM_CURRENT", "USED_MEM_HIGH", "RESERVED_MEM_CURRENT", "RESERVED_MEM_HIGH")
    return [int(cuda.cuMemPoolGetAttribute(pool, getattr(kinds, f"CU_MEMPOOL_ATTR_{name}"))) for name in names]


@on_driver()
def test_figures_of_a_pool(cuda: Cuda) -> None:
    """The used bytes of a pool are those of its allocations, and the reserved bytes contain freed memory that the pool
    keeps. The high marks stay until a write of 0. A trim gives the kept memory back.

    Source: documentation of cuMemPoolGetAttribute, cuMemPoolSetAttribute and cuMemPoolTrimTo. Not yet seen on a GPU.
    """
    pool, size, attributes = new_pool(cuda), 64 * MIB, cuda.driver.CUmemPool_attribute
    everything = cuda.driver.cuuint64_t((1 << 64) - 1)
    cuda.cuMemPoolSetAttribute(pool, attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, everything)
    assert pool_figures(cuda, pool) == [0, 0, 0, 0]
    memory = [cuda.cuMemAllocFromPoolAsync(size, pool, 0) for _ in range(2)]
    cuda.cuCtxSynchronize()
    used, used_high, reserved, reserved_high = pool_figures(cuda, pool)
    assert 2 * size <= used == used_high <= reserved == reserved_high
    cuda.cuMemFreeAsync(memory.pop(), 0)
    cuda.cuCtxSynchronize()
    assert size <= pool_figures(cuda, pool)[0] < 2 * size
    assert pool_figures(cuda, pool)[1:] == [used_high, reserved, reserved_high]
    cuda.cuMemPoolSetAttribute(pool, attributes.CU_MEMPOOL_ATTR_USED_MEM_HIGH, cuda.driver.cuuint64_t(0))
    assert size <= pool_figures(cuda, pool)[1] < 2 * size
    cuda.cuMemFreeAsync(memory.pop(), 0)
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolTrimTo(pool, 0)
    used, _, reserved, _ = pool_figures(cuda, pool)
    assert used == 0 and reserved < size
    assert pool_figures(cuda, pool)[3] == reserved_high


@on_driver()
def test_stream_ordered_memory_is_freed_by_both_calls(cuda: Cuda) -> None:
    """cuMemFree frees memory of cuMemAllocAsync, and cuMemFreeAsync memory of cuMemAlloc.

    Source: CUDA programming guide, "Stream ordered memory allocator" (API fundamentals). Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    memory = cuda.cuMemAllocAsync(MIB, stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuMemFree(memory)
    cuda.cuMemFreeAsync(cuda.cuMemAlloc(MIB), stream)
    cuda.cuStreamSynchronize(stream)


@on_driver()
def test_stream_ordered_memory_of_no_bytes(cuda: Cuda) -> None:
    """cuMemAllocFromPoolAsync and cuMemAllocAsync of 0 bytes succeed, where cuMemAlloc returns an error (1).

    Source: NVIDIA/cuda-python, test_memory_resource_alloc_zero_bytes of cuda.core, which passes on cards (not measured
    here), and documentation of cuMemAlloc. Not yet seen on a card.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    pool = cuda.cuDeviceGetDefaultMemPool(cuda.cuDeviceGet(0))
    assert cuda.code("cuMemAllocFromPoolAsync", 0, pool, stream) == 0
    assert cuda.code("cuMemAllocAsync", 0, stream) == 0
    assert cuda.code("cuMemAlloc", 0) == 1


@on_driver()
def test_memory_of_a_pool_has_no_legacy_ipc_handle(cuda: Cuda) -> None:
    """cuIpcGetMemHandle refuses memory of cuMemAllocAsync.

    Source: CUDA programming guide, "Stream ordered memory allocator" (interprocess communication support): pools have
    handles of their own. Seen on an H200.
    """
    memory = cuda.cuMemAllocAsync(MIB, 0)
    cuda.cuCtxSynchronize()
    assert cuda.code("cuIpcGetMemHandle", memory) != 0


# Seconds after which a call beside running work counts as one that waits. On a busy machine, any call may take some.
SHOULD_WAIT, SHOULD_RETURN = 1.0, 30.0


def in_stream(cuda: Cuda, copy: Callable[[Any, Any], object], seconds: float) -> bool:
    """Return whether a call with memory and a stream returns in time while the work in the stream is still running."""
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    memory = cuda.cuMemAlloc(MIB)
    cuda.launch("wait_flag", flag, 1, stream=stream)

    def call() -> None:
        cuda.cuCtxSetCurrent(cuda.context)
        copy(memory, stream)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(seconds)
    returned = not thread.is_alive()
    word.value = 1
    thread.join()
    cuda.cuStreamSynchronize(stream)
    return returned


@on_driver()
def test_copies_to_pageable_memory_wait_and_to_pinned_memory_do_not(cuda: Cuda) -> None:
    """cuMemcpyDtoHAsync to pageable memory returns when the copy is done, so the call can wait inside the driver for a
    long time; to pinned memory it returns at once.

    Source: CUDA driver API, "API synchronization behavior". Seen on an H200.
    """
    data, pinned = bytearray(MIB), cuda.cuMemHostAlloc(MIB, 0)
    assert in_stream(cuda, lambda memory, stream: cuda.cuMemcpyDtoHAsync(pinned, memory, MIB, stream), SHOULD_RETURN)
    assert not in_stream(cuda, lambda memory, stream: cuda.cuMemcpyDtoHAsync(data, memory, MIB, stream), SHOULD_WAIT)


@on_driver()
def test_sets_of_pinned_and_unified_memory_wait_for_their_work(cuda: Cuda) -> None:
    """cuMemsetD8 of pinned or unified memory returns when the memory is set.

    Source: CUDA driver API, "API synchronization behavior". Seen on an H200.
    """
    for memory in (int(cuda.cuMemHostAlloc(MIB, 0)), int(cuda.cuMemAllocManaged(MIB, 1))):
        cuda.launch("spin", 20_000_000)
        cuda.cuMemsetD8(memory, 7, MIB)
        assert ctypes.string_at(memory, MIB) == bytes([7]) * MIB


@pytest.mark.whole_card
@on_driver()
def test_pinned_memory_takes_none_of_the_device(cuda: Cuda) -> None:
    """cuMemHostAlloc and cuMemHostRegister take no device memory, and the device reaches both by the host's address.

    Source: CUDA programming guide, "Unified virtual address space". Seen on an H200.
    """
    before = free_bytes(cuda)
    pinned = int(cuda.cuMemHostAlloc(SIZE, 0))
    ctypes.memset(pinned, 0, 64)
    buffer = ctypes.create_string_buffer(2 * MIB)
    own = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    cuda.cuMemHostRegister(own, MIB, 0)
    assert free_bytes(cuda) > before - SIZE // 2
    for address in (pinned, own):
        assert int(cuda.cuMemHostGetDevicePointer(address, 0)) == address
        cuda.launch("work_f32", address, 16, 0, 0)
        cuda.cuCtxSynchronize()
        assert ctypes.c_float.from_address(address).value == 1.0


@pytest.mark.whole_card
@on_driver()
def test_a_context_takes_device_memory(cuda: Cuda) -> None:
    """Each context takes device memory of its own, which no allocation call shows.

    Source: peers' issues; about 500 MB on large cards. Seen on an H200.
    """
    before = free_bytes(cuda)
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    assert free_bytes(cuda) < before
    cuda.cuCtxDestroy(context)
