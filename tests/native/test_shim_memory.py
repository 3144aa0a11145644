"""Tests of memory: redirection, counting, limits, and the same figures in every view."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .ptrace_stop import stopped_thread, thread_named

MIB = 1 << 20
GIB = 1 << 30
MEMORY_TYPE, HOST_POINTER, IS_MANAGED = 2, 4, 8


def test_more_than_the_device_holds(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    client.run("memory = [cuda.alloc(512 << 20) for _ in range(4)]")
    assert client.run("[code for code, _ in memory]") == [0] * 4
    assert process.page.report.allocated == 2 * GIB
    assert process.client_page.view.slots[0].allocated == 2 * GIB
    assert client.run("[cuda.launch('fill_f32', a, 1.5, 1000) for _, a in memory]") == [0] * 4
    client.run("word = c_float()")
    assert (
        client.run("cuda.cuMemcpyDtoH_v2(byref(word), c_uint64(memory[3][1] + 400), c_size_t(4)) or word.value") == 1.5
    )
    assert client.run("[cuda.free(a) for _, a in memory]") == [0] * 4
    assert process.page.report.allocated == 0


def test_the_process_rings_when_its_memory_grows_within_a_turn(client: CudaClient, process: ProcessConnection) -> None:
    """Clients that were colocated while they fitted on the device may not fit any more."""
    process.page.control.memory_total = GIB
    assert client.run("cuda.alloc(512 << 20)[0]") == 0
    assert process.is_silent(), "between turns the periodic reads of the coordinator suffice"
    client.begin(process, 1)
    assert process.is_silent()
    assert client.run("cuda.alloc(63 << 20)[0]") == 0
    assert process.is_silent()
    assert client.run("cuda.alloc(1 << 20)[0]") == 0
    process.wait_for_doorbell()
    assert client.run("[cuda.free(cuda.alloc(60 << 20)[1]) for _ in range(4)]") == [0] * 4
    assert process.is_silent(), "memory that is freed and allocated again rings once at most"


def test_memory_limit_refuses_with_a_reason(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    process.page.control.memory_limit = 100 * MIB
    assert client.run("cuda.alloc(60 << 20)[0]") == 0
    assert client.run("cuda.alloc(41 << 20)") == [2, 0]
    assert client.run("cuda.alloc(41 << 20, 'cuMemAllocManaged', 1)[0]") == 2
    assert client.run("cuda.alloc(41 << 20, 'cuMemAllocAsync', None)[0]") == 2
    assert client.run("cuda.alloc(1 << 62)[0]") == 2
    assert client.run("cuda.alloc(40 << 20)[0], cuda.alloc(1 << 20)[0]") == [0, 2]
    assert process.page.report.refused_allocations == 4
    assert process.page.report.allocated == 100 * MIB
    assert "memory limit is 100 MiB" in machine.log_text()
    assert "%gpushare quota memory=101MiB" in machine.log_text()
    assert client.end().count("\n") == 1, "more than one line on standard error"


def test_allocation_beyond_the_backing_is_refused(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The bound is for all memory of the client, so many small allocations do not pass it before its next update."""
    process.page.control.memory_backing = 10 * MIB
    assert client.run("cuda.alloc(11 << 20)[0]") == 2
    assert client.run("[cuda.alloc(4 << 20)[0] for _ in range(3)]") == [0, 0, 2]
    assert client.run("cuda.alloc(2 << 20)[0]") == 0
    assert "8 MiB are allocated, and device and host memory together can back only 10 MiB" in machine.log_text()


def test_every_view_of_the_memory_agrees(client: CudaClient, process: ProcessConnection) -> None:
    control = process.page.control
    assert client.run("cuda.info()") == [GIB, GIB]
    control.memory_total = 4 * GIB
    control.memory_limit = 3 * GIB
    client.run("memory = cuda.alloc(1 << 30)[1]; total = c_size_t(); cuda.cuDeviceTotalMem_v2(byref(total), 0)")
    assert client.run("cuda.info()") == [2 * GIB, 4 * GIB]
    assert client.run("total.value") == 4 * GIB
    control.memory_backing = 2 * GIB
    assert client.run("cuda.info()") == [GIB, 4 * GIB]
    assert client.run("cuda.free(memory)") == 0
    control.memory_backing = (1 << 64) - 1
    assert client.run("cuda.info()") == [3 * GIB, 4 * GIB]


@pytest.mark.parametrize(("mode", "total"), [("unified", 6), ("swap", 4)])
def test_a_limit_above_the_device_is_the_total_where_it_can_be_used(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str, total: int
) -> None:
    """Memory pools divide the total, so the total and the free bytes must not contradict each other."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    process.page.control.memory_total = 4 * GIB
    process.page.control.memory_limit = 6 * GIB
    client.run("total = c_size_t(); cuda.cuDeviceTotalMem_v2(byref(total), 0)")
    assert client.run("cuda.info()")[1] == client.run("total.value") == total * GIB


def test_redirected_memory_has_attributes_of_device_memory(client: CudaClient) -> None:
    client.run("memory = cuda.alloc(1 << 20)[1]; managed = cuda.alloc(1 << 20, 'cuMemAllocManaged', 1)[1]")
    for address in ("memory", "memory + 4097"):
        assert client.run(f"cuda.attribute({IS_MANAGED}, {address})") == [0, 0]
        assert client.run(f"cuda.attribute({MEMORY_TYPE}, {address})") == [0, 2]
        assert client.run(f"cuda.attribute({HOST_POINTER}, {address})[0]") == 1
        client.run("values = [c_uint64(9) for _ in range(3)]")
        client.run("data = (c_void_p * 3)(*(ctypes.addressof(v) for v in values))")
        client.run(f"kinds = (c_int * 3)({IS_MANAGED}, {MEMORY_TYPE}, {HOST_POINTER})")
        assert client.run(f"cuda.cuPointerGetAttributes(3, kinds, data, c_uint64({address}))") == 0
        assert client.run("[v.value & 0xffffffff for v in values]") == [0, 2, 0]
    assert client.run(f"cuda.attribute({IS_MANAGED}, managed)") == [0, 1]


def test_plain_mode_only_counts(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="plain")
    process.page.control.memory_limit = 100 * MIB
    client.run("memory = cuda.alloc(50 << 20)[1]")
    assert client.run(f"cuda.attribute({IS_MANAGED}, memory)") == [0, 0]
    assert client.run("cuda.alloc(51 << 20)[0]") == 2
    assert (process.page.report.allocated, process.page.report.unmovable) == (50 * MIB, 50 * MIB)
    client.run("pooled = cuda.alloc(10 << 20, 'cuMemAllocAsync', None)[1]")
    assert process.page.report.allocated == 60 * MIB
    assert client.run("cuda.cuMemFreeAsync(c_uint64(pooled), None)") == 0
    assert client.run("cuda.free(memory)") == 0
    assert process.page.report.allocated == process.page.report.unmovable == 0


def test_asynchronous_release_waits_for_its_stream(client: CudaClient, process: ProcessConnection) -> None:
    process.page.control.memory_limit = 100 * MIB
    process.open(1)
    client.run("one = cuda.stream(1); code, memory = cuda.alloc(80 << 20, 'cuMemAllocAsync', c_void_p(one))")
    assert client.run("code, cuda.hold(one), cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one))") == [0, 0, 0]
    assert process.page.report.allocated == 80 * MIB
    client.run("cuda.release()")
    wait_until(lambda: process.page.report.allocated == 0)  # no thread asked for memory, so the agent gave it back
    client.run("code, memory = cuda.alloc(80 << 20, 'cuMemAllocAsync', c_void_p(one))")
    client.run("cuda.spin(200, one); cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one))")
    assert client.run("cuda.alloc(90 << 20)[0]") == 0  # the call waits for the stream and is not refused


def test_memory_freed_by_a_stream_counts_as_free(client: CudaClient, process: ProcessConnection) -> None:
    """The memory is free at once, because a program may ask for the bytes that cuMemGetInfo has just returned."""
    process.page.control.memory_limit = process.page.control.memory_total = 100 * MIB
    process.open(1)
    client.run("one = cuda.stream(1)")
    for _ in range(20):
        client.run("code, memory = cuda.alloc(80 << 20, 'cuMemAllocAsync', c_void_p(one))")
        client.run("cuda.spin(1, one), cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one))")
        assert client.run("cuda.cuStreamSynchronize(c_void_p(one)), cuda.info()") == [0, [100 * MIB, 100 * MIB]]


def test_allocation_waits_for_memory_that_another_thread_frees(client: CudaClient, process: ProcessConnection) -> None:
    """The agent stops right after the driver has taken the memory back, before the ledger has changed."""
    process.page.control.memory_limit = process.page.control.memory_total = 100 * MIB
    process.open(1)
    client.run("one = cuda.stream(1)")
    client.run("code, memory = cuda.alloc(80 << 20, 'cuMemAllocAsync', c_void_p(one))")
    begin = f"\n{client.run('memory'):x}-"
    maps = Path(f"/proc/{client.pid}/maps")
    assert begin in maps.read_text()
    client.run("cuda.spin(100, one), cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one))")
    with stopped_thread(thread_named(client.pid, "gpushare"), lambda: begin not in maps.read_text()):
        client.start("cuda.info()")
        client.is_running()
    assert client.result() == [100 * MIB, 100 * MIB]


def test_pitched_allocations_are_counted_with_their_pitch(client: CudaClient, process: ProcessConnection) -> None:
    client.run("address, pitch = c_uint64(), c_size_t()")
    call = "cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t({}), c_size_t(10), {})"
    assert client.run(call.format(700, 4)) == 0
    assert client.run("pitch.value") == 1024
    assert process.page.report.allocated == 10240
    assert client.run(call.format(700, 3)) == 1  # the driver's own answer
    assert client.run("cuda.free(address.value)") == 0
    assert process.page.report.allocated == 0


def test_memory_of_a_destroyed_context_is_no_longer_counted(client: CudaClient, process: ProcessConnection) -> None:
    client.run("other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0); cuda.alloc(1 << 20)")
    assert process.page.report.allocated == MIB
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    assert process.page.report.allocated == 0


def test_processes_of_a_client_share_its_limit(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    one, two = machine.client(GPUSHARE_CLIENT="x"), machine.client(GPUSHARE_CLIENT="x")
    first = one.join(coordinator)
    two.start("cuda = Cuda()")
    second = coordinator.accept().join(first, 1)
    two.result()
    for process in (first, second):
        process.page.control.memory_limit = 100 * MIB
    assert one.run("cuda.alloc(60 << 20)[0]") == 0
    assert two.run("cuda.alloc(41 << 20)[0]") == 2
    assert two.run("cuda.alloc(40 << 20)[0]") == 0
    assert one.run("cuda.info()[0]") == 0
    assert [slot.allocated for slot in first.client_page.view.slots[0:3]] == [60 * MIB, 40 * MIB, 0]
