"""Tests of stream capture: captured calls pass a closed gate, and a drain leaves captures valid."""

from __future__ import annotations

from jupyter_gpushare.wire.page import CLOSING, CONTENDED

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, wait_until

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
CAPTURE = "cuda.cuStreamBeginCapture_v2(c_void_p(one), {})"
END = "cuda.cuStreamEndCapture(c_void_p(one), byref(graph))"
INSTANTIATE = "cuda.cuGraphInstantiateWithFlags(byref(graph_exec), graph, ctypes.c_ulonglong(0))"
SETUP = "one = cuda.stream(1); two = cuda.stream(1); graph = c_void_p(); graph_exec = c_void_p()"


def test_captured_calls_pass_and_the_graph_waits_at_the_gate(client: CudaClient, process: ProcessConnection) -> None:
    client.run(SETUP)
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        assert client.run(CAPTURE.format(mode)) == 0
        assert client.run("[cuda.spin(0, one) for _ in range(3)]", 2) == [0, 0, 0]
        assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    assert client.run_at_the_gate(process, 1, "cuda.cuGraphLaunch(graph_exec, c_void_p(one))") == 0
    process.drain(1)


def test_draining_leaves_a_capture_valid(machine: NativeHost, client: CudaClient, process: ProcessConnection) -> None:
    """A stream carries work when its capture begins. The drain waits for that work and not for the capture."""
    process.open(1)
    client.run(SETUP)
    client.run("cuda.spin(); cuda.spin(150, one); cuda.spin(50, two)")
    assert client.run(CAPTURE.format(THREAD_LOCAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    process.drain(1, 2)
    assert machine.executions_are_over(3)
    assert client.run("cuda.spin(0, one)", 2) == 0  # still capturing, the gate closed
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    process.open(2)
    assert client.run("cuda.cuGraphLaunch(graph_exec, c_void_p(one))") == 0
    process.drain(2)


def test_a_capture_that_the_default_stream_would_break_delays_the_drain(
    client: CudaClient, process: ProcessConnection
) -> None:
    """An event on the legacy stream would end a capture on a blocking stream, so the drain waits for the capture."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p(); graph_exec = c_void_p(); cuda.spin()")
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING, 0.3)
    assert client.run(END) == 0
    process.wait_until_left(1)
    assert client.run(INSTANTIATE) == 0


def test_a_stream_that_joins_a_capture_delays_the_drain(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The drain waits for work that a stream had before the stream joined the capture of another stream."""
    process.open(1)
    client.run(SETUP + "; event = c_void_p(); cuda.cuEventCreate(byref(event), 2)")
    client.run("cuda.spin(200, two)")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.cuEventRecord(event, c_void_p(one))") == 0
    assert client.run("cuda.cuStreamWaitEvent(c_void_p(two), event, 0)") == 0
    assert client.run("[cuda.spin(0, two), cuda.cuEventRecord(event, c_void_p(two))]") == [0, 0]
    assert client.run("cuda.cuStreamWaitEvent(c_void_p(one), event, 0)") == 0
    process.close_gate(1)
    wait_until(lambda: process.phase == CLOSING)
    assert client.run(END) == 0
    process.wait_until_left(1)
    assert machine.executions_are_over(1)


def test_idle_probe_leaves_captures_valid(client: CudaClient, process: ProcessConnection) -> None:
    process.page.control.idle_release_ns = 20_000_000
    process.open(1, CONTENDED)
    client.run(SETUP)
    assert client.run("cuda.spin(0, one)") == 0
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    wait_until(lambda: process.page.report.idle)
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0


def test_drain_waits_for_other_contexts_after_one_was_destroyed(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The drain waits for the default stream of a context although another context was destroyed with work in it."""
    process.open(1)
    client.run("other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)")
    client.run("mine = cuda.module, cuda.functions")
    client.run("cuda.module = c_void_p(); cuda.functions = {}")
    client.run("cuda.cuModuleLoadData(byref(cuda.module), Path(os.environ['TEST_PTX']).read_bytes())")
    assert client.run("cuda.spin(100)") == 0
    assert client.run("cuda.cuCtxPopCurrent_v2(byref(c_void_p()))") == 0
    client.run("theirs = cuda.module, cuda.functions; cuda.module, cuda.functions = mine")
    assert client.run("cuda.spin(200)") == 0
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    process.drain(1)
    assert machine.executions_are_over(2)
    assert client.run_at_the_gate(process, 2) == 0
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    process.drain(2)


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
