"""Tests of green contexts: their work holds the turn, their memory is evicted, and captures stay valid.

A green context can be current in one thread only, so the agent never makes one current.
"""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire.page import CLOSING

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

MIB = 1 << 20

TOOLS = """
resource, groups = (c_uint32 * 36)(), (c_uint32 * 36)()
assert cuda.cuDeviceGetDevResource(0, resource, 1) == 0
assert cuda.cuDevSmResourceSplitByCount(groups, byref(c_uint32(1)), resource, None, 0, 8) == 0
description, green, context = c_void_p(), c_void_p(), c_void_p()
assert cuda.cuDevResourceGenerateDesc(byref(description), groups, 1) == 0
assert cuda.cuGreenCtxCreate(byref(green), description, 0, 1) == 0
assert cuda.cuCtxFromGreenCtx(byref(context), green) == 0

def stream():
    made = c_void_p()
    assert cuda.cuGreenCtxStreamCreate(byref(made), green, 1, 0) == 0
    return made.value

def word():
    memory = c_uint64()
    assert cuda.cuMemHostAlloc(byref(memory), c_size_t(4), 0) == 0
    found = c_uint32.from_address(memory.value)
    found.value = 0
    return found

flag = word()

def wait_for_flag(stream):
    return cuda.launch('wait_flag', ctypes.addressof(flag), 1, stream=stream)
"""


@pytest.fixture
def green(client: CudaClient) -> CudaClient:
    """Return the client, whose main thread has made a green context current."""
    client.run(TOOLS)
    assert client.run("cuda.cuCtxPushCurrent_v2(context)") == 0
    return client


@pytest.mark.parametrize("stream", ["0", "2", "stream()"])
def test_unfinished_work_of_a_green_context_holds_the_turn(
    green: CudaClient, process: ProcessConnection, stream: str
) -> None:
    """The work is in the default stream, in that of the thread, or in a stream of the green context."""
    green.begin(process, 1)
    green.run(f"used = {stream}")
    assert green.run("wait_for_flag(used)") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    green.run("flag.value = 1")
    process.wait_until_left(1)


def test_a_drain_ends_no_capture_of_a_green_context(green: CudaClient, process: ProcessConnection) -> None:
    green.begin(process, 1)
    green.run("captured = stream(); graph = c_void_p()")
    assert green.run("wait_for_flag(0), cuda.cuStreamBeginCapture_v2(c_void_p(captured), 1)") == [0, 0]
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    assert green.run("cuda.spin(0, captured), cuda.cuStreamEndCapture(c_void_p(captured), byref(graph))") == [0, 0]
    green.run("flag.value = 1")
    process.wait_until_left(1)


def test_work_after_a_sample_holds_the_turn_during_a_capture(green: CudaClient, process: ProcessConnection) -> None:
    """The event of the sample covers the earlier work only."""
    process.open(1)
    green.run("captured = stream(); graph = c_void_p()")
    assert green.run("wait_for_flag(0)") == 0
    wait_until(lambda: process.page.report.gpu_ns > 0, what="a sample of the busy time")
    green.run("flag.value = 1; cuda.cuCtxSynchronize(); flag.value = 0")
    assert green.run("wait_for_flag(0), cuda.cuStreamBeginCapture_v2(c_void_p(captured), 1)") == [0, 0]
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    assert green.run("cuda.cuStreamEndCapture(c_void_p(captured), byref(graph))") == 0
    green.run("flag.value = 1")
    process.wait_until_left(1)


def test_work_of_a_destroyed_stream_of_a_green_context_holds_the_turn(
    green: CudaClient, process: ProcessConnection
) -> None:
    green.begin(process, 1)
    green.run("used = stream()")
    assert green.run("wait_for_flag(used), cuda.cuStreamDestroy_v2(c_void_p(used))") == [0, 0]
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    green.run("flag.value = 1")
    process.wait_until_left(1)


def test_work_of_a_destroyed_stream_holds_the_turn_during_a_capture(
    green: CudaClient, process: ProcessConnection
) -> None:
    """While the green context captures, no event can stand for the work of the stream, which is the only one."""
    process.open(1)
    green.run("used, captured, graph = stream(), stream(), c_void_p()")
    assert green.run("wait_for_flag(used), cuda.cuStreamBeginCapture_v2(c_void_p(captured), 1)") == [0, 0]
    assert green.run("cuda.cuStreamDestroy_v2(c_void_p(used))") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    assert green.run("cuda.spin(0, captured), cuda.cuStreamEndCapture(c_void_p(captured), byref(graph))") == [0, 0]
    assert process.stays_in(CLOSING)
    green.run("flag.value = 1")
    process.wait_until_left(1)


def test_a_release_in_mode_swap_waits_for_work_of_a_green_context(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """Each release waits for work that came after the release before."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    client.run(TOOLS)
    process.open(1)
    client.run("cuda.cuCtxPushCurrent_v2(context)")
    for count in (1, 2):
        client.run("code, memory = cuda.alloc(3 << 20)")
        assert client.run("code, cuda.launch('work_f32', memory, 16, 100_000_000, 0)") == [0, 0]
        assert client.run("cuda.free(memory)") == 0
        assert machine.executions_are_over(count)


def test_the_end_of_a_green_context_ends_no_work_of_others(green: CudaClient, process: ProcessConnection) -> None:
    green.begin(process, 1)
    assert green.run("cuda.cuCtxPopCurrent_v2(byref(context)), wait_for_flag(0)") == [0, 0]
    assert green.run("cuda.cuGreenCtxDestroy(green)") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    green.run("flag.value = 1")
    process.wait_until_left(1)


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_memory_of_a_green_context_is_evicted(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    client.run(TOOLS)
    process.open(1)
    client.run("cuda.cuCtxPushCurrent_v2(context)")
    assert client.run(f"memory = cuda.alloc({4 * MIB})[1]") is None
    assert client.run("cuda.cuMemsetD32_v2(c_uint64(memory), 7, c_size_t(1 << 20))") == 0
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.evicted_bytes >= 4 * MIB, what="the eviction")
    process.open(2)
    client.run("found = c_uint32()")
    assert client.run("cuda.cuMemcpyDtoH_v2(byref(found), c_uint64(memory), c_size_t(4))") == 0
    assert client.run("found.value") == 7


def test_a_release_behind_the_work_of_a_stream_of_a_green_context(
    client: CudaClient, process: ProcessConnection
) -> None:
    """The green context is current in another thread, so that this thread can make no event in it."""
    client.run(TOOLS)
    client.begin(process, 1)
    client.run("used = stream(); memory = cuda.alloc(1 << 20)[1]; taken, leave = threading.Event(), threading.Event()")
    client.run(
        """
def other():
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    taken.set()
    leave.wait()
thread = in_thread(other)
taken.wait()
"""
    )
    assert client.run("cuda.spin(20, used), cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(used))") == [0, 0]
    client.run("leave.set()")
    process.drain(1)
