"""Tests of drains during captures: a drain waits for work, and as far as possible not for the end of a capture."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire.page import CLOSING, CONTENDED

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_capture import CAPTURE, END, GLOBAL, IMPLICIT, INSTANTIATE, INVALIDATED, RELAXED, SETUP, THREAD_LOCAL
from .test_shim_transfer_failures import faulty_driver


def test_draining_leaves_a_capture_valid(machine: NativeHost, client: CudaClient, process: ProcessConnection) -> None:
    """A stream carries work when its capture begins. The drain waits for that work and not for the capture."""
    process.open(1)
    client.run(SETUP)
    client.run("cuda.spin(); cuda.spin(50, two); cuda.hold(one)")
    assert client.run(CAPTURE.format(THREAD_LOCAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    client.run("cuda.release()")
    process.wait_until_left(1)
    assert machine.executions_are_over(3)
    assert client.run("cuda.spin(0, one)") == 0  # still capturing, the gate closed
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    process.open(2)
    assert client.run("cuda.cuGraphLaunch(graph_exec, c_void_p(one))") == 0
    process.drain(2)


def test_a_capture_that_stays_open_does_not_keep_the_turn(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """Work of the default stream has finished before the capture, during which no query may name that stream."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p(); graph_exec = c_void_p(); cuda.spin()")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    process.drain(1)
    assert machine.executions_are_over(1)
    assert client.run("cuda.spin(0, one)") == 0
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    assert client.run_at_the_gate(process, 2, "cuda.cuGraphLaunch(graph_exec, c_void_p(one))") == 0
    process.drain(2)


def test_a_drain_waits_for_a_capture_that_has_begun_during_work_of_the_default_stream(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """No call can find out whether that work has finished, and an event would let all later work wait for it."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p(); graph_exec = c_void_p(); cuda.hold()")
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    process.close_gate(1)
    client.run("cuda.release()")
    wait_until(lambda: machine.executions_are_over(1))
    assert process.stays_in(CLOSING, 0.5)
    assert client.run(END) == 0
    process.wait_until_left(1)
    assert client.run(INSTANTIATE) == 0


def test_refused_work_of_a_later_capture_does_not_keep_the_turn(client: CudaClient, process: ProcessConnection) -> None:
    """An earlier capture has begun during work of the default stream, which has finished since."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p(); cuda.hold()")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run(END) == 0
    client.run("cuda.release()")
    process.drain(1)
    process.open(2)
    client.run("cuda.spin(0, one)")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.spin()") == IMPLICIT
    process.drain(2)
    assert client.run(END) == INVALIDATED


def test_refused_work_of_the_default_stream_does_not_keep_the_turn(
    client: CudaClient, process: ProcessConnection
) -> None:
    """The refusal ends the capture, which stays open until the program closes it."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p()")
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.spin()") == IMPLICIT
    process.drain(1)
    assert client.run(END) == INVALIDATED
    assert client.run_at_the_gate(process, 2) == 0
    process.drain(2)


PER_THREAD_SPIN = "cuda.launch('spin', 0, call=cuda.cuLaunchKernel_ptsz)"


@pytest.mark.parametrize("begun", ["before", "during"])
def test_the_drain_of_per_thread_default_streams_waits_for_the_end_of_a_capture(
    client: CudaClient, process: ProcessConnection, begun: str
) -> None:
    """No call of the agent can name the stream, and a query of the legacy stream would end the capture."""
    process.open(1)
    client.run("one = cuda.stream(0); graph = c_void_p(); graph_exec = c_void_p()")
    if begun == "before":
        assert client.run(PER_THREAD_SPIN) == 0
    assert client.run(CAPTURE.format(GLOBAL)) == 0
    assert client.run("cuda.spin(0, one)") == 0
    if begun == "during":
        assert client.run(PER_THREAD_SPIN) == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING, 0.3)
    assert client.run(END) == 0
    process.wait_until_left(1)
    assert client.run(INSTANTIATE) == 0


JOIN = "cuda.cuStreamWaitEvent(c_void_p(two), event, 0)"
JOIN_BACK = "cuda.cuEventRecord(event, c_void_p(two)), cuda.cuStreamWaitEvent(c_void_p(one), event, 0)"


def begin_with_an_event(client: CudaClient) -> None:
    """Begin a capture that a stream with work can join by waiting for an event."""
    client.run(SETUP + "; event = c_void_p(); cuda.cuEventCreate(byref(event), 2)")
    assert client.run("cuda.hold(two)") == 0
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.cuEventRecord(event, c_void_p(one))") == 0


def test_a_drain_waits_for_work_of_a_stream_before_it_has_joined_a_capture(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The drain waits for that work and not for the capture."""
    process.open(1)
    begin_with_an_event(client)
    assert client.run(f"{JOIN}, cuda.spin(0, two)") == [0, 0]
    process.close_gate(1)
    assert process.stays_in(CLOSING)
    client.run("cuda.release()")
    process.wait_until_left(1)
    assert machine.executions_are_over(1)
    assert client.run(JOIN_BACK) == [0, 0]
    assert client.run(END) == 0


def test_a_drain_waits_for_a_capture_that_a_blocking_stream_has_joined_during_default_work(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The work of the default stream had not finished when the stream joined the capture."""
    process.open(1)
    begin_with_an_event(client)
    client.run("cuda.release(); two = cuda.stream(0); cuda.hold()")
    assert client.run(f"{JOIN}, cuda.spin(0, two)") == [0, 0]
    process.close_gate(1)
    client.run("cuda.release()")
    wait_until(lambda: machine.executions_are_over(2))
    assert process.stays_in(CLOSING, 0.5)
    assert client.run(JOIN_BACK) == [0, 0]
    assert client.run(END) == 0
    process.wait_until_left(1)
    assert machine.executions_are_over(2)


def test_a_blocking_stream_that_joins_a_capture_does_not_keep_the_turn(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    process.open(1)
    begin_with_an_event(client)
    client.run("two = cuda.stream(0); cuda.spin(); cuda.cuStreamSynchronize(None)")
    assert client.run(f"{JOIN}, cuda.spin(0, two)") == [0, 0]
    client.run("cuda.release()")
    process.drain(1)
    assert machine.executions_are_over(2)
    assert client.run(JOIN_BACK) == [0, 0]
    assert client.run(END) == 0


def test_a_stream_that_joins_a_capture_is_not_queried_meanwhile(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The drain has found that the stream does not capture, and would end the capture by its query."""
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent))
    process.open(1)
    begin_with_an_event(client)
    client.run("cuda.library.faulty_hold_in(b'cuStreamIsCapturing')")
    process.close_gate(1)
    client.run("while cuda.library.faulty_hold(-1) == 1: pass")
    assert client.run(f"{JOIN}, cuda.library.faulty_hold(0) and 0, cuda.release() or 0") == [0, 0, 0]
    process.wait_until_left(1)
    assert client.run(JOIN_BACK) == [0, 0]
    assert client.run(END) == 0


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


def test_a_stream_that_joins_a_capture_meanwhile_is_not_timed(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """After a launch a thread finds that the stream does not capture, and records an event that the capture takes.

    A query of that event would end the capture, and the launches of the other stream query all events.
    """
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent))
    process.page.control.exempt_ns, process.page.control.budget_rate = 10_000_000_000, 1000
    process.open(1)
    client.run(SETUP + "; event = c_void_p(); cuda.cuEventCreate(byref(event), 2); three = cuda.stream(1)")
    client.run(
        "marked, go, results = threading.Event(), threading.Event(), []\n"
        "def launch():\n"
        "    cuda.make_current()\n"
        "    results.append(cuda.spin(0, two))\n"
        "    marked.set()\n"
        "    go.wait()\n"
        "    results.append(cuda.spin(0, two))\n"
        "thread = in_thread(launch)\n"
        "marked.wait()"
    )
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run("cuda.cuEventRecord(event, c_void_p(one))") == 0
    client.run(  # in one step, because a hold ends by itself
        "cuda.library.faulty_hold_in(b'cuLaunchKernel'); go.set()\n"
        "while cuda.library.faulty_hold(-1) == 1: pass\n"
        "cuda.library.faulty_hold_in(b'before_cuEventRecord')\n"
        "while cuda.library.faulty_hold(-1) == 1: pass\n"
        f"results.append({JOIN})\n"
        "results.append(cuda.library.faulty_hold(0))"
    )
    client.run("thread.join()")
    assert client.run("results + [cuda.spin(0, three) for _ in range(20)]") == [0] * 24
    assert client.run(JOIN_BACK) == [0, 0]
    assert client.run(END) == 0
