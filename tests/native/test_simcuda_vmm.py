"""Tests of virtual memory management on the simulated driver, through NVIDIA's own cuda-bindings."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from ..driver_facts.harness import MIB, NON_BLOCKING, Cuda, environment, on_driver, running_process
from ..driver_facts.test_facts import run
from ..driver_facts.vmm import (
    GRANULE,
    NO_ACCESS,
    READ_WRITE,
    allow,
    create,
    free_bytes,
    map_at,
    mapped,
    properties,
    reserve,
)
from ..support.polling import wait_until


@on_driver(GPUSHARE_SIM_MEMORY="64MiB")
def test_the_device_can_be_full(cuda: Cuda) -> None:
    handle = cuda.cuMemCreate(32 * MIB, properties(cuda), 0)
    assert cuda.code("cuMemCreate", 32 * MIB, properties(cuda), 0) == 2
    assert cuda.code("cuMemAlloc", 32 * MIB) == 2
    cuda.cuMemRelease(handle)
    managed = cuda.cuMemAllocManaged(40 * MIB, 1)
    cuda.launch("fill_f32", managed, 1.0, 10 * MIB)
    cuda.cuCtxSynchronize()
    cuda.cuMemCreate(32 * MIB, properties(cuda), 0)  # unified memory leaves the device for it
    assert cuda.read_f32(managed, 10 * MIB - 1) == 1.0


@on_driver()
def test_ranges_must_be_whole_aligned_and_free(cuda: Cuda) -> None:
    address, handle = mapped(cuda, 2 * GRANULE)
    assert cuda.code("cuMemUnmap", address, 3 * GRANULE) == 1  # beyond the range
    assert cuda.code("cuMemMap", address, 2 * GRANULE, 0, handle, 0) == 1  # mapped already
    assert cuda.code("cuMemAddressFree", address, 2 * GRANULE) == 1  # still mapped
    assert cuda.code("cuMemAddressReserve", 100, 0, 0, 0) == 1
    other = reserve(cuda, 4 * GRANULE, hint=address)
    assert other != address
    free = reserve(cuda, 16 * GRANULE)
    cuda.cuMemAddressFree(free, 16 * GRANULE)
    assert reserve(cuda, GRANULE, hint=free + 4 * GRANULE) == free + 4 * GRANULE
    assert int(cuda.cuMemAddressReserve(GRANULE, 1 << 30, 0, 0)) % (1 << 30) == 0
    assert cuda.code("cuMemMap", other, 4 * GRANULE, 0, handle, 0) == 801  # more than there is
    assert cuda.code("cuMemMap", other + 3 * GRANULE, 2 * GRANULE, 0, handle, 0) == 1  # beyond the range
    assert allow(cuda, other, GRANULE) == 1  # nothing mapped
    assert cuda.code("cuMemFree", other) == 1
    wrong = properties(cuda)
    wrong.location.id = 7
    assert cuda.code("cuMemCreate", GRANULE, wrong, 0) == 101
    assert cuda.code("cuMemRelease", 0) == 1


@on_driver()
def test_access_and_properties(cuda: Cuda) -> None:
    address, handle = mapped(cuda)
    location = properties(cuda).location
    assert int(cuda.cuMemGetAccess(location, address + 100)) == READ_WRITE
    assert allow(cuda, address, GRANULE, NO_ACCESS) == 0
    assert int(cuda.cuMemGetAccess(location, address)) == NO_ACCESS
    assert cuda.code("cuMemcpyDtoH", bytearray(4), address, 4) != 0
    again = cuda.cuMemRetainAllocationHandle(address + 4096)
    assert int(again) == int(handle)
    assert int(cuda.cuMemGetAllocationPropertiesFromHandle(again).location.id) == 0
    cuda.cuMemRelease(again)
    cuda.cuMemRelease(handle)
    assert cuda.code("cuMemGetAllocationPropertiesFromHandle", handle) == 1
    handle = cuda.cuMemRetainAllocationHandle(address)
    cuda.cuMemUnmap(address, GRANULE)
    cuda.cuMemMap(address, GRANULE, 0, handle, 0)


@on_driver()
def test_pointers_into_mappings(cuda: Cuda) -> None:
    attribute = cuda.driver.CUpointer_attribute
    address = reserve(cuda, 4 * GRANULE)
    cuda.cuMemMap(address + GRANULE, GRANULE, 0, create(cuda, GRANULE), 0)
    inside = address + GRANULE + 100
    numbers = [2, 8, 9, 10, 11, 12, 13, 18, 19]
    answers = [int(cuda.cuPointerGetAttribute(attribute(number), inside)) for number in numbers]
    assert answers == [2, 0, 0, 0, address, 4 * GRANULE, 1, GRANULE, address + GRANULE]
    many = cuda.cuPointerGetAttributes(len(numbers), [attribute(number) for number in numbers], inside)
    assert [int(value) for value in many] == answers
    assert int(cuda.cuPointerGetAttribute(attribute(13), address)) == 0
    assert cuda.code("cuPointerGetAttribute", attribute(2), address) == 1
    assert cuda.code("cuMemGetAddressRange", address) == 500


@on_driver()
def test_unfinished_work_on_unmapped_memory_fails_without_blocking(cuda: Cuda) -> None:
    address, _ = mapped(cuda, 16 * MIB)
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.launch("fill_f32", address, 1.0, 4 * MIB, stream=stream)
    start = time.monotonic()
    cuda.cuMemUnmap(address, 16 * MIB)  # cuMemUnmap does not wait, unlike cuMemFree
    assert time.monotonic() - start < 5
    assert not cuda.is_done(stream)
    word.value = 1
    assert cuda.code("cuStreamSynchronize", stream) == 700


def importer(cuda: Cuda, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        file = socket.recv_fds(connection, 1, 1)[1][0]
    kind = cuda.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    free = free_bytes(cuda)
    handle = cuda.cuMemImportFromShareableHandle(file, kind)
    os.close(file)
    assert free_bytes(cuda) == free  # the memory is counted once
    address = reserve(cuda, GRANULE)
    map_at(cuda, address, handle)
    cuda.cuMemRelease(handle)
    print(cuda.read_f32(address, 3), flush=True)
    input()  # meanwhile the exporter releases the memory
    assert cuda.read_f32(address, 3) == 4.0
    cuda.launch("fill_f32", address, 8.0, 16)
    assert cuda.read_f32(address, 3) == 8.0
    print(free_bytes(cuda), flush=True)
    input()


def exporter(cuda: Cuda, state: str) -> None:
    kind = cuda.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    before = free_bytes(cuda)
    handle = cuda.cuMemCreate(GRANULE, properties(cuda, shareable=True), 0)
    address = reserve(cuda, GRANULE)
    map_at(cuda, address, handle)
    cuda.launch("fill_f32", address, 4.0, 16)
    cuda.cuCtxSynchronize()
    assert cuda.code("cuMemExportToShareableHandle", cuda.cuMemCreate(GRANULE, properties(cuda), 0), kind, 0) == 1
    file = int(cuda.cuMemExportToShareableHandle(handle, kind, 0))
    assert free_bytes(cuda) == before - 2 * GRANULE
    again = cuda.cuMemImportFromShareableHandle(file, kind)  # an import in the same process is the same memory
    cuda.cuMemRelease(again)
    assert free_bytes(cuda) == before - 2 * GRANULE
    assert cuda.code("cuMemImportFromShareableHandle", 0, kind) == 1  # standard input
    path = f"{state}.socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with running_process(importer, environment(Path(state)), path) as other:
            assert other.stdin and other.stdout
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(connection, [b"."], [file])
            os.close(file)
            assert other.stdout.readline() == "4.0\n"
            with_both = free_bytes(cuda)
            cuda.cuMemUnmap(address, GRANULE)
            cuda.cuMemRelease(handle)
            assert free_bytes(cuda) == with_both  # the importer keeps the memory
            other.stdin.write("\n")
            other.stdin.flush()
            assert int(other.stdout.readline()) == with_both
            other.kill()
            other.wait()
            wait_until(lambda: free_bytes(cuda) >= before - GRANULE)


def test_memory_exported_as_a_descriptor_is_one_memory_for_both_processes(tmp_path: Path) -> None:
    run(exporter, tmp_path)
