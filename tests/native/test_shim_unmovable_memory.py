"""Tests with the driver stubcuda.c: unmovable memory is counted, and a device without paging gets plain memory.

Also the UUID of a MIG instance in hello, and batch calls, which wait at the gate and count as copies.
"""

from __future__ import annotations

from typing import Any

from .conftest import NativeHost
from .fake_coordinator import ProcessConnection, wait_until

MIB = 1 << 20
DEVICE, HOST = 1, 2


def counted(process: ProcessConnection) -> tuple[int, int]:
    report = process.page.report
    return report.allocated // MIB, report.unmovable // MIB


def test_a_mig_slice_has_a_mig_uuid(stub: Any) -> None:
    _, process = stub()
    (device,) = process.hello["devices"]
    assert device["uuid"] == "MIG-22222222-2222-2222-2222-222222222222"
    assert device["name"] == "Stub"


def test_a_device_without_paging_gets_plain_memory(machine: NativeHost, stub: Any) -> None:
    client, process = stub()
    client.run("memory = cuda.alloc(1 << 20)[1]")
    assert counted(process) == (1, 1)
    assert client.run("cuda.free(memory)") == 0
    assert counted(process) == (0, 0)
    assert "does not support memory mode unified" in machine.log_text()


def test_redirection_needs_a_device_that_pages(stub: Any) -> None:
    client, process = stub(STUB_MANAGED="1")
    client.run("memory = cuda.alloc(1 << 20)[1]")
    assert counted(process) == (1, 0)


def test_physical_memory_lives_as_long_as_a_handle_or_a_mapping(stub: Any) -> None:
    client, process = stub()
    assert client.run("create(4 << 20)") == 0
    assert counted(process) == (4, 4)
    assert client.run("map_at(0x100000, 4 << 20), release()") == [0, 0]
    assert counted(process) == (4, 4)
    assert client.run("create(2 << 20)") == 0  # the same number for other memory
    assert counted(process) == (6, 6)
    assert client.run("unmap(0x100000, 4 << 20)") == 0
    assert counted(process) == (2, 2)
    assert client.run("release()") == 0
    assert counted(process) == (0, 0)
    assert client.run("release()") == 400


def test_a_range_of_mappings_and_a_retained_handle(stub: Any) -> None:
    client, process = stub()
    assert client.run("create(4 << 20)") == 0
    assert client.run("map_at(0x100000, 1 << 20), map_at(0x200000, 1 << 20)") == [0, 0]
    assert client.run("cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(0x200000))") == 0
    assert client.run("release(), unmap(0x100000, 2 << 20)") == [0, 0]
    assert counted(process) == (4, 4)
    assert client.run("release()") == 0
    assert counted(process) == (0, 0)


def test_host_memory_is_not_counted_and_limits_hold(stub: Any) -> None:
    client, process = stub()
    process.page.control.memory_limit = 3 * MIB
    assert client.run(f"create(8 << 20, {HOST})") == 0
    assert client.run("release()") == 0
    assert client.run(f"create(4 << 20, {DEVICE})") == 2
    assert client.run("create(3 << 20)") == 0
    assert counted(process) == (3, 3)


def test_arrays_are_counted_as_unmovable(stub: Any) -> None:
    client, process = stub()
    client.run("array = c_void_p(); shape = (c_size_t * 5)(1024, 512, 2, (4 << 32) | 0x20, 0)")
    assert client.run("cuda.cuArray3DCreate_v2(byref(array), shape)") == 0
    assert process.page.report.unmovable == 1024 * 512 * 2 * 4 * 4
    assert client.run("cuda.cuArrayDestroy(array)") == 0
    assert counted(process) == (0, 0)


def test_functions_with_32_bit_addresses_are_counted_too(stub: Any) -> None:
    client, process = stub()
    process.page.control.memory_limit = 8 * MIB
    client.run("from ctypes import c_uint; old, pitch = c_uint(), c_uint()")
    assert client.run("cuda.cuMemAlloc(byref(old), 5 << 20)") == 0
    assert counted(process) == (5, 5)
    assert client.run("cuda.cuMemAlloc(byref(c_uint()), 4 << 20)") == 2
    client.run("free, total = c_uint(), c_uint()")
    assert client.run("cuda.cuMemGetInfo(byref(free), byref(total)), free.value, total.value") == [0, 3 * MIB, 8 * MIB]
    assert client.run("cuda.cuDeviceTotalMem(byref(total), 0), total.value") == [0, 8 * MIB]
    process.page.control.memory_limit = 0
    process.page.control.memory_backing = 6 << 30
    assert client.run("cuda.cuMemGetInfo(byref(free), byref(total)), free.value") == [0, 0xFFFFFFFF]
    assert client.run("cuda.cuMemFree(old)") == 0
    assert counted(process) == (0, 0)
    assert client.run("cuda.cuMemAllocPitch(byref(old), byref(pitch), 500, 2048, 4)") == 0
    assert counted(process) == (1, 1)
    client.run("array = c_void_p(); shape = (c_uint * 4)(1024, 512, 0x20, 4)")
    assert client.run("cuda.cuArrayCreate(byref(array), shape)") == 0
    assert counted(process) == (9, 9)
    assert client.run("cuda.cuMemFree(old), cuda.cuArrayDestroy(array)") == [0, 0]
    assert counted(process) == (0, 0)


def test_batches_wait_at_the_gate_and_are_counted(stub: Any) -> None:
    """Batch copies have two signatures: the older one has one more parameter, before the stream."""
    client, process = stub()
    client.run(
        """
lists = (c_uint64 * 2)(1, 2), (c_uint64 * 2)(3, 4), (c_uint64 * 2)(1000, 24)
failed, two, one = c_size_t(5), c_size_t(2), c_size_t(1)
stream, flags = c_void_p(0), c_uint64(0)
names = "cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemPrefetchBatchAsync cuMemDiscardBatchAsync".split()
older, newer, prefetch, discard = (getattr(cuda, name) for name in names)
"""
    )
    assert client.run_at_the_gate(
        process, 1, "older(*lists, two, None, None, one, byref(failed), stream), failed.value"
    ) == [0, 77]
    assert client.run("newer(*lists, two, None, None, one, stream)") == 0
    process.drain(1)
    wait_until(lambda: (process.page.report.copies, process.page.report.bytes_copied) == (4, 2048))
    for call in (
        "prefetch(*lists[:2], two, None, None, one, flags, stream)",
        "discard(*lists[:2], two, flags, stream)",
    ):
        client.start(call)
        process.wait_for_waiting_thread()
        assert client.is_running()
        epoch = process.last_turn.epoch + 1
        process.open(epoch)
        assert client.result() == 0
        process.drain(epoch)


def test_batches_of_3d_copies_are_counted_by_their_extents(stub: Any) -> None:
    client, process = stub()
    process.open(1)
    operand = 8 + 32  # bytes: the kind; then an address, two lengths and a location, or an array and three offsets
    words = 2 * (2 * operand + 24 + 8) // 8
    client.run(f"operations = (c_uint64 * {words})(); at = {2 * operand // 8}; step = {words // 2}")
    client.run("operations[at : at + 3] = (16, 4, 2); operations[at + step : at + step + 3] = (8, 1, 1)")
    assert client.run("cuda.cuMemcpy3DBatchAsync_v2(c_size_t(2), operations, c_uint64(0), c_void_p(0))") == 0
    process.drain(1)
    wait_until(lambda: (process.page.report.copies, process.page.report.bytes_copied) == (2, 136))
