"""Facts about streams: value waits, host functions, default streams of threads, and captures (see test_facts.py)."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from .harness import MIB, NON_BLOCKING, Cuda, on_driver
from .test_facts import RELAXED, THREAD_LOCAL, capturing, in_thread

AT_LEAST, EQUAL = 0, 1


@on_driver()
def test_a_value_wait_holds_its_stream_until_another_stream_writes(cuda: Cuda) -> None:
    """cuStreamWaitValue32 holds back what comes after it in its stream, not the stream that will write the value.
    (Closing the gate between the two would wait for ever.)

    Source: documentation of cuStreamWaitValue32. Seen on an H200.
    """
    first, second = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    memory = cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8(memory, 0, 4096)
    cuda.cuCtxSynchronize()
    cuda.cuStreamWaitValue32(first, memory, 5, AT_LEAST)
    cuda.cuStreamWriteValue32(second, memory, 4, 0)
    cuda.cuStreamSynchronize(second)
    assert not cuda.is_done(first)
    cuda.cuStreamWriteValue32(second, memory, 6, 0)
    cuda.cuStreamSynchronize(first)


@on_driver()
def test_a_value_wait_sees_what_the_host_writes(cuda: Cuda) -> None:
    """A value wait on pinned memory ends when the host writes the value.

    Source: documentation of cuStreamWaitValue32 and cuMemHostAlloc. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    cuda.cuStreamWaitValue32(stream, flag, 9, EQUAL)
    assert not cuda.is_done(stream)
    word.value = 9
    cuda.cuStreamSynchronize(stream)


@on_driver()
def test_host_functions_hold_back_their_stream_and_may_not_call_the_driver(cuda: Cuda) -> None:
    """A host function runs after the work before it and before the work behind it, in another thread, and its calls of
    the driver fail with 800.

    Source: documentation of cuLaunchHostFunc. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    memory = cuda.cuMemAlloc(4096)
    library = ctypes.CDLL("libcuda.so.1")
    entered, leave = threading.Event(), threading.Event()
    seen: list[Any] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(_: int) -> None:
        seen.append((library.cuCtxSynchronize(), threading.get_ident() != threading.main_thread().ident))
        entered.set()
        leave.wait(30)

    cuda.cuLaunchHostFunc(stream, cuda.driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value), 0)
    cuda.launch("fill_f32", memory, 1.0, 16, stream=stream)
    assert entered.wait(30)
    assert not cuda.is_done(stream)
    leave.set()
    cuda.cuStreamSynchronize(stream)
    assert seen == [(800, True)]


@on_driver(CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1")
def test_default_streams_of_threads_are_independent(cuda: Cuda) -> None:
    """With per-thread default streams (the _ptsz entry points), stream 0 of one thread doesn't wait for that of
    another, but both keep order with the legacy stream.

    Source: CUDA programming guide, "Per-thread default stream". Seen on an H200.
    """
    word, flag = cuda.host_flag()
    legacy = cuda.driver.CUstream(1)
    memory = cuda.cuMemAlloc(4096)
    cuda.launch("wait_flag", flag, 1)

    def other() -> float:
        cuda.cuCtxSetCurrent(cuda.context)
        cuda.launch("fill_f32", memory, 6.0, 1)
        cuda.cuStreamSynchronize(0)
        return cuda.read_f32(memory, 0)

    assert in_thread(other) == 6.0
    cuda.launch("fill_f32", memory, 7.0, 1, stream=legacy)
    assert not cuda.is_done(legacy)
    word.value = 1
    cuda.cuStreamSynchronize(legacy)
    assert cuda.read_f32(memory, 0) == 7.0


@on_driver()
def test_an_event_recorded_again_outside_its_capture_is_an_event_again(cuda: Cuda) -> None:
    """Once recorded in a stream that doesn't capture, an event can be queried as ever.

    Source: documentation of cuEventRecord (the last record counts). Seen on an H200.
    """
    event, other = cuda.cuEventCreate(2), cuda.cuStreamCreate(NON_BLOCKING)
    with capturing(cuda, mode=RELAXED) as (stream, end):
        cuda.cuEventRecord(event, stream)
        end()
    cuda.cuEventRecord(event, other)
    cuda.cuEventSynchronize(event)
    assert cuda.code("cuEventQuery", event) == 0


@on_driver()
def test_captured_work_does_not_run(cuda: Cuda) -> None:
    """Captured work runs at each launch of the graph, and not before.

    Source: documentation of cuStreamBeginCapture. Seen on an H200.
    """
    stream, memory = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuMemAlloc(MIB)
    cuda.cuMemsetD8(memory, 0, MIB)
    cuda.cuCtxSynchronize()
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(THREAD_LOCAL))
    cuda.launch("work_f32", memory, 16, 0, 0, stream=stream)
    graph = cuda.cuStreamEndCapture(stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 0) == 0.0
    executable = cuda.cuGraphInstantiate(graph, 0)
    for _ in range(3):
        cuda.cuGraphLaunch(executable, stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 15) == 3.0
