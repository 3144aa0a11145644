"""Tests of memory that the program has freed in a stream: reuse by the pool, release thresholds, and its release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_pools import RESERVED, SETUP, USED
from .test_shim_residency import NOWHERE, placement

MIB = 1 << 20
THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
REUSE = f"""
one, two = cuda.stream(1), cuda.stream(1)
flag = c_void_p()
assert cuda.cuMemHostAlloc(byref(flag), c_size_t(4), 0) == 0
flag = ctypes.c_uint32.from_address(flag.value)
def keep(pool, mib=1 << 40):
    assert cuda.cuMemPoolSetAttribute(pool, {THRESHOLD}, byref(c_uint64(mib << 20))) == 0
def take(mib, stream, pool=None):
    status, address = cuda.alloc(mib << 20, 'cuMemAllocFromPoolAsync', pool or default_pool(), c_void_p(stream))
    assert status == 0, status
    return address
def give(address, stream):
    assert cuda.cuMemFreeAsync(c_uint64(address), c_void_p(stream)) == 0
def first(address):
    'The first element after the work of all streams.'
    assert cuda.cuCtxSynchronize() == 0
    values = (ctypes.c_float * 1)()
    assert cuda.cuMemcpyDtoH_v2(values, c_uint64(address), c_size_t(4)) == 0
    return values[0]
def block(stream):
    'Keep the stream busy until unblock().'
    flag.value = 0
    assert cuda.cuStreamWaitValue32_v2(c_void_p(stream), c_uint64(ctypes.addressof(flag)), 1, 0) == 0
def unblock(stream):
    flag.value = 1
    assert cuda.cuStreamSynchronize(c_void_p(stream)) == 0
"""


@pytest.fixture(params=["unified", "swap"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def process_and_program(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str
) -> Iterator[tuple[ProcessConnection, CudaClient]]:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode, GPUSHARE_PINNED="0")
    process.open(1)
    client.run("import ctypes")
    client.run(SETUP)
    client.run(REUSE)
    yield process, client


@pytest.fixture
def process(process_and_program: tuple[ProcessConnection, CudaClient]) -> ProcessConnection:
    return process_and_program[0]


@pytest.fixture
def program(process_and_program: tuple[ProcessConnection, CudaClient]) -> CudaClient:
    """Return a program whose default pool keeps all freed memory."""
    client = process_and_program[1]
    client.run("keep(default_pool())")
    return client


def test_stream_reuses_its_memory_at_once(program: CudaClient, process: ProcessConnection) -> None:
    program.run("memory = take(10, one); block(one); give(memory, one)")
    assert program.run("take(10, one) == memory")
    assert process.page.report.allocated == 10 * MIB
    program.run("unblock(one)")


def test_other_stream_reuses_memory_after_the_free(program: CudaClient) -> None:
    program.run("memory = take(10, one); block(one); give(memory, one); other = take(10, two)")
    assert program.run("other != memory")
    program.run("unblock(one)")
    assert program.run("take(10, two) == memory")


def test_stream_with_the_address_of_a_destroyed_stream_waits(program: CudaClient) -> None:
    program.run("memory = take(10, two); block(two); give(memory, two)")
    assert program.run("cuda.cuStreamDestroy_v2(c_void_p(two))") == 0
    program.run("streams = [cuda.stream(1) for _ in range(8)]")
    assert program.run("[take(10, stream) for stream in streams].count(memory)") == 0
    program.run("flag.value = 1")
    assert program.run("cuda.cuCtxSynchronize()") == 0
    assert program.run("take(10, one) == memory")


@pytest.mark.parametrize(("mib", "reused"), [(160, True), (150, True), (140, False), (161, False)])
def test_memory_that_is_slightly_larger_serves(program: CudaClient, mib: int, reused: bool) -> None:
    program.run("memory = take(160, one); give(memory, one)")
    assert program.run(f"take({mib}, one) == memory") is reused


def test_pools_share_no_memory(program: CudaClient) -> None:
    program.run("other = new_pool(); keep(other); give(take(10, one, other), one)")
    program.run("memory = take(10, one); give(memory, one)")
    assert program.run("[take(10, one) == memory, take(10, one) == memory]") == [True, False]


def test_reused_memory_is_evicted_and_restored(program: CudaClient, process: ProcessConnection) -> None:
    program.run("give(take(10, one), one); memory = take(10, one)")
    assert program.run("cuda.launch('fill_f32', memory, 3.0, 1000, stream=one)") == 0
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    process.open(2)
    assert program.run("first(memory)") == 3.0


@pytest.mark.parametrize("mode", ["unified"])
def test_memory_with_the_placement_of_another_service_class_is_not_reused(
    program: CudaClient, process: ProcessConnection
) -> None:
    program.begin(process, 1)
    program.run("array = take(10, one); give(take(20, one), one)")
    process.page.control.quota_flags = 1 | 4
    process.drain(1)
    wait_until(lambda: placement(program) == (NOWHERE, 0), what="the placement of an offline client")
    process.open(2)
    program.run("array = take(20, one)")
    assert placement(program)[0] == NOWHERE


@pytest.mark.parametrize("threshold", [0, 20])
def test_idle_memory_above_the_threshold_is_released(
    program: CudaClient, process: ProcessConnection, threshold: int
) -> None:
    program.run(f"keep(default_pool(), {threshold}); memory = [take(10, one) for _ in range(5)]")
    program.run("[give(address, one) for address in memory]")
    wait_until(lambda: process.page.report.allocated == threshold * MIB)
    assert program.run(f"figure(default_pool(), {USED}), figure(default_pool(), {RESERVED})") == [0, threshold]
    program.run("keep(default_pool(), 0)")
    wait_until(lambda: process.page.report.allocated == 0)


def test_trim_releases_memory_within_the_threshold(program: CudaClient, process: ProcessConnection) -> None:
    program.run("memory = [take(10, one) for _ in range(5)]; [give(address, one) for address in memory[1:]]")
    assert program.run("cuda.cuStreamSynchronize(c_void_p(one))") == 0
    assert program.run("cuda.cuMemPoolTrimTo(default_pool(), c_size_t(25 << 20))") == 0
    assert process.page.report.allocated == 20 * MIB


@pytest.mark.parametrize("call", ["cuda.cuMemPoolTrimTo(pool, c_size_t(0))", "cuda.cuMemPoolDestroy(pool)"])
def test_release_of_a_pool_does_not_wait_for_work(program: CudaClient, process: ProcessConnection, call: str) -> None:
    """The work may need the thread that calls."""
    program.run("pool = new_pool(); memory = [take(10, one, pool) for _ in range(2)]")
    program.run("give(memory[0], one); cuda.cuStreamSynchronize(c_void_p(one)); block(one); give(memory[1], one)")
    assert program.run(call) == 0
    program.run("unblock(one)")
    wait_until(lambda: process.page.report.allocated == 0)


def test_freed_memory_is_released_before_an_allocation_is_refused(
    program: CudaClient, process: ProcessConnection
) -> None:
    process.page.control.memory_limit = 100 * MIB
    program.run("give(take(80, one), one)")
    assert program.run("cuda.alloc(90 << 20)[0]") == 0
    assert process.page.report.allocated == 90 * MIB


def test_full_device_takes_memory_that_is_freed(program: CudaClient) -> None:
    program.run("give(take(700, one), one); memory = take(900, one)")
    assert program.run("cuda.launch('fill_f32', memory, 3.0, 1000, stream=one), first(memory)") == [0, 3.0]


def test_freed_memory_is_released_instead_of_evicted(program: CudaClient, process: ProcessConnection) -> None:
    program.run("used = take(10, one); memory = [take(5, one) for _ in range(40)]")
    program.run("[give(address, one) for address in memory]")
    assert program.run("cuda.spin(1, one)") == 0
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    assert (process.page.report.allocated, process.page.report.evicted_bytes) == (10 * MIB, 10 * MIB)


def test_memory_of_an_ended_context_is_not_reused(program: CudaClient) -> None:
    program.run("give(take(10, one), one)")
    assert program.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    program.run("context = c_void_p(); cuda.cuDevicePrimaryCtxRetain(byref(context), 0); cuda.cuCtxSetCurrent(context)")
    program.run("one = cuda.stream(1); memory = take(10, one)")
    assert program.run("cuda.cuMemsetD32_v2(c_uint64(memory), 0x40400000, c_size_t(10)), first(memory)") == [0, 3.0]


def test_trim_holds_while_another_stream_works(program: CudaClient, process: ProcessConnection) -> None:
    program.run("memory = [take(10, one) for _ in range(2)]; give(memory[0], one)")
    program.run("cuda.cuStreamSynchronize(c_void_p(one)); block(two)")
    assert program.run("cuda.cuMemPoolTrimTo(default_pool(), c_size_t(0))") == 0
    program.run("unblock(two)")
    wait_until(lambda: process.page.report.allocated == 10 * MIB)


@pytest.mark.parametrize("mode", ["swap"])
def test_memory_that_is_freed_during_a_capture_is_released(program: CudaClient, process: ProcessConnection) -> None:
    """The capture keeps cuMemFree from waiting, so no event marks the end of the work."""
    process.page.control.memory_limit = 100 * MIB
    program.run("blocking = cuda.stream(0); memory = take(80, one)")
    assert program.run("cuda.launch('work_f32', memory, 16, 100_000_000, 0)") == 0
    assert program.run("cuda.cuStreamBeginCapture_v2(c_void_p(blocking), 2), cuda.free(memory)") == [0, 0]
    assert program.run("cuda.cuStreamEndCapture(c_void_p(blocking), byref(c_void_p()))") == 0
    assert program.run("cuda.cuCtxSynchronize(), cuda.alloc(90 << 20)[0]") == [0, 0]
    assert process.page.report.allocated == 90 * MIB
