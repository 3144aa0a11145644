"""Tests of stream capture: captured calls at a closed gate, and the shim's own calls during captures."""

from __future__ import annotations

import pytest

from ..support import tier
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_transfer_failures import faulty_driver

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
UNSUPPORTED, INVALIDATED, IMPLICIT = 900, 901, 906
CAPTURE = "cuda.cuStreamBeginCapture_v2(c_void_p(one), {})"
END = "cuda.cuStreamEndCapture(c_void_p(one), byref(graph))"
INSTANTIATE = "cuda.cuGraphInstantiateWithFlags(byref(graph_exec), graph, ctypes.c_ulonglong(0))"
SETUP = "one = cuda.stream(1); two = cuda.stream(1); graph = c_void_p(); graph_exec = c_void_p()"
MIB = 1 << 20
PREFERRED_LOCATION = 2
TOOLS = """
def in_other_thread(function, relaxed=False):
    found = []
    def run():
        cuda.make_current()
        if relaxed:
            cuda.cuThreadExchangeStreamCaptureMode(byref(c_int(2)))
        found.append(function())
    in_thread(run).join()
    return found[0]

def preferred_location(memory):
    place = c_int()
    size = c_size_t(1 << 20)
    return cuda.cuMemRangeGetAttribute(byref(place), c_size_t(4), 2, c_uint64(memory), size) or place.value
"""


def test_captured_calls_pass_and_the_graph_waits_at_the_gate(client: CudaClient, process: ProcessConnection) -> None:
    client.run(SETUP)
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        assert client.run(CAPTURE.format(mode)) == 0
        assert client.run("[cuda.spin(0, one) for _ in range(3)]") == [0, 0, 0]
        assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    assert client.run_at_the_gate(process, 1, "cuda.cuGraphLaunch(graph_exec, c_void_p(one))") == 0
    process.drain(1)


def test_a_graph_cannot_free_memory_that_no_graph_has_allocated(client: CudaClient, process: ProcessConnection) -> None:
    """The driver refuses the free, as it does for device memory, and the memory stays."""
    process.open(1)
    client.run(SETUP + "; memory = cuda.alloc(1 << 20)[1]")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one))") != 0
    assert client.run(END) == 0
    assert process.page.report.allocated == 1 << 20
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(memory), 1, c_size_t(1 << 20)), cuda.free(memory)") == [0, 0]
    assert process.page.report.allocated == 0


@pytest.mark.parametrize("mode", ["unified", "swap", "plain"])
def test_stream_ordered_memory_of_another_thread_leaves_a_global_capture_valid(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str
) -> None:
    """The second allocation finds the limit reached, so it waits for the stream that frees the first one."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    process.page.control.memory_limit = 3 * MIB
    process.open(1)
    client.run(SETUP + TOOLS)
    client.run(
        "allocate = lambda: cuda.alloc(2 << 20, 'cuMemAllocAsync', c_void_p(two))\n"
        "free = lambda: cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(two))"
    )
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    client.run("code, memory = in_other_thread(allocate)")
    assert client.run("code, cuda.spin(50, two), in_other_thread(free)") == [0, 0, 0]
    client.run("code, memory = in_other_thread(allocate)")
    assert client.run("code, in_other_thread(free)") == [0, 0]
    assert client.run(END) == 0
    client.run("cuda.cuStreamSynchronize(c_void_p(two))")
    wait_until(lambda: process.page.report.allocated == 0)


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize(("mode", "relaxed"), [(GLOBAL, True), (THREAD_LOCAL, False)], ids=["global", "thread-local"])
def test_a_release_in_mode_swap_leaves_captures_valid(
    machine: NativeHost, coordinator: ScriptedCoordinator, flags: int, mode: int, relaxed: bool
) -> None:
    """The release waits for work that may use the memory."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.open(1)
    client.run(SETUP + TOOLS)
    client.run(f"one = cuda.stream({flags}); memory = cuda.alloc(3 << 20)[1]")
    assert client.run("cuda.launch('work_f32', memory, 16, 100_000_000, 0, stream=two)") == 0
    assert client.run(CAPTURE.format(mode)) == 0
    assert client.run(f"in_other_thread(lambda: cuda.free(memory), relaxed={relaxed})") == 0
    assert machine.executions_are_over(1)
    assert client.run(END) == 0
    assert process.page.report.allocated == 0


@pytest.mark.parametrize("is_evicted", [False, *tier.nightly([True])])  # an eviction waits for a capture for 10 s
def test_a_release_in_mode_swap_outside_of_a_turn_leaves_captures_valid(
    machine: NativeHost, coordinator: ScriptedCoordinator, is_evicted: bool
) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    client.begin(process, 1)
    client.run(SETUP + TOOLS)
    client.run("memory = [cuda.alloc(3 << 20)[1] for _ in range(3)]")
    assert client.run(CAPTURE.format(THREAD_LOCAL)) == 0
    process.page.control.resident_target[0] = 0 if is_evicted else 9 * MIB
    process.drain(1)
    wait_until(lambda: process.page.report.resident == (0 if is_evicted else 9 * MIB))
    assert client.run("in_other_thread(lambda: cuda.free(memory.pop()))") == 0
    assert client.run("cuda.cuThreadExchangeStreamCaptureMode(byref(c_int(2))), cuda.free(memory.pop())") == [0, 0]
    assert client.run(END) == 0
    assert process.page.report.allocated == 3 * MIB


@pytest.mark.parametrize("form", ["", "_ptsz"], ids=["legacy", "per-thread"])
def test_a_release_in_mode_swap_spares_work_that_no_query_may_name(
    machine: NativeHost, coordinator: ScriptedCoordinator, form: str
) -> None:
    """While a blocking stream captures, no call may find out whether the default streams have finished.

    So the memory is released after the turn.
    """
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.open(1)
    client.run(SETUP)
    client.run("one = cuda.stream(0); memory = cuda.alloc(3 << 20)[1]")
    launch = f"cuda.launch('work_f32', memory, 16, 100_000_000, 0, call=cuda.cuLaunchKernel{form})"
    assert client.run(launch) == 0
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.free(memory)") == 0
    assert client.run(END) == 0
    assert client.run("cuda.cuCtxSynchronize()") == 0  # the work has found its memory
    process.drain(1)
    wait_until(lambda: process.page.report.allocated == 0)


UNSAFE = {
    "alloc": "cuda.alloc(4096)[0]",
    "pitch": "cuda.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(64), c_size_t(64), 4)",
    "free": "cuda.free(memory)",
}


@pytest.mark.parametrize("mode", ["unified", "swap", "plain", None])
@pytest.mark.parametrize("call", UNSAFE)
def test_an_unsafe_call_ends_the_captures_that_the_driver_names(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str | None, call: str
) -> None:
    """The shim makes these calls by other means in mode swap. Without mode, the program runs without the shim."""
    if mode:
        client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
        process.open(1)
    else:
        client = machine.client(LD_PRELOAD="")
        client.run("cuda = Cuda()")
    client.run(SETUP + TOOLS)
    client.run("memory = cuda.alloc(3 << 20)[1]")
    for capture_mode, here, elsewhere in ((GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, 0)):
        for code, expected in ((UNSAFE[call], here), (f"in_other_thread(lambda: {UNSAFE[call]})", elsewhere)):
            assert client.run(CAPTURE.format(capture_mode)) == 0
            assert client.run(code) == expected
            assert client.run(END) == (INVALIDATED if expected else 0)
    if call == "free":
        client.run("memory = cuda.alloc(3 << 20)[1]")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run(UNSAFE[call]) == 0
    assert client.run(END) == 0


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non-blocking"])
def test_an_allocation_in_a_relaxed_capture_leaves_the_capture_valid(
    client: CudaClient, process: ProcessConnection, flags: int
) -> None:
    """The driver gets its advice about the place of the memory with the end of the turn at the latest."""
    process.open(1)
    client.run(SETUP + TOOLS)
    client.run(f"one = cuda.stream({flags}); cuda.spin()")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    client.run("code, memory = cuda.alloc(1 << 20)")
    assert client.run("code") == 0
    assert client.run(END) == 0
    process.drain(1)
    wait_until(lambda: client.run("preferred_location(memory)") == 0)


def test_an_allocation_between_two_streams_that_need_each_other(client: CudaClient, process: ProcessConnection) -> None:
    """Work of one blocking stream waits for work that another blocking stream gets after an allocation."""
    process.open(1)
    client.run(SETUP + "; one = cuda.stream(0); two = cuda.stream(0); flag = cuda.alloc(1 << 20)[1]")
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(flag), 0, c_size_t(4)), cuda.cuCtxSynchronize()") == [0, 0]
    assert client.run("cuda.launch('wait_flag', flag, 1, stream=one)") == 0
    assert client.run("cuda.alloc(1 << 20)[0], cuda.launch('set_flag', flag, 1, stream=two)") == [0, 0]
    assert client.run("cuda.cuStreamSynchronize(c_void_p(one))") == 0


def test_a_capture_between_two_streams_that_need_each_other(client: CudaClient, process: ProcessConnection) -> None:
    """Work of one blocking stream waits for work that another blocking stream gets after a capture."""
    process.open(1)
    client.run("one, two, three = (cuda.stream(0) for _ in range(3))")
    client.run("graph = c_void_p(); flag = cuda.alloc(1 << 20)[1]")
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(flag), 0, c_size_t(4)), cuda.cuCtxSynchronize()") == [0, 0]
    assert client.run("cuda.launch('wait_flag', flag, 1, stream=three)") == 0
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run(END) == 0
    assert client.run("cuda.launch('set_flag', flag, 1, stream=two)") == 0
    assert client.run("cuda.cuStreamSynchronize(c_void_p(three))") == 0


def test_the_end_of_a_graph_leaves_captures_of_other_threads_valid(
    client: CudaClient, process: ProcessConnection
) -> None:
    """The shim asks how much memory the driver still keeps for graphs."""
    process.open(1)
    client.run(SETUP + TOOLS)
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.alloc(1 << 20, 'cuMemAllocAsync', c_void_p(one))[0]") == 0
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("in_other_thread(lambda: cuda.cuGraphExecDestroy(graph_exec))") == 0
    assert client.run(END) == 0


@pytest.mark.parametrize("mode", ["unified", "swap"])
@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord"])
def test_a_free_without_an_event_leaves_a_capture_valid_that_begins_meanwhile(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str, call: str
) -> None:
    """The capture begins before the driver would run a wait for the stream, and the memory is released after the turn.

    The work of the stream is unfinished until the free has returned.
    """
    library = str(faulty_driver().parent)
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode, LD_LIBRARY_PATH=library)
    process.open(1)
    client.run(SETUP + "; memory = cuda.alloc(3 << 20, 'cuMemAllocAsync', c_void_p(one))[1]; codes = []")
    client.run("cuda.hold(one)")
    client.run(
        f"cuda.library.faulty_next(b'{call}', 0, 1, 2); cuda.library.faulty_hold_in(b'before_cuStreamSynchronize')"
    )
    client.run(
        "thread = in_thread(lambda: codes.append((cuda.make_current(), "
        "cuda.cuMemFreeAsync(c_uint64(memory), c_void_p(one)))[1]))"
    )
    client.run("while not codes and cuda.library.faulty_hold(-1) == 1: pass")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    client.run("cuda.library.faulty_hold(0); thread.join()")
    assert client.run("codes") == [0]
    assert client.run(END) == 0
    client.run("cuda.release()")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    process.drain(1)
    wait_until(lambda: process.page.report.allocated == 0)
