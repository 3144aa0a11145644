"""Tests of the order and times of work on the simulated driver: streams, events, waits and captures."""

from __future__ import annotations

import struct
import threading
import time

from ..driver_facts.harness import MIB, MS, NON_BLOCKING, Cuda, on_driver
from .test_simcuda import elapsed, floats


@on_driver()
def test_stamps_are_the_times_of_the_work(cuda: Cuda) -> None:
    memory, stamps = cuda.cuMemAlloc(4096), cuda.cuMemAlloc(16)
    cuda.cuMemsetD8(stamps, 0, 16)
    cuda.cuMemsetD8(memory, 0, 4096)
    before = time.time_ns()
    cuda.launch("work_f32", memory, 1024, 30 * MS, stamps)
    begin, end = struct.unpack("QQ", cuda.read(stamps, 16))
    assert before <= begin <= end <= time.time_ns()
    assert end - begin >= 30 * MS
    assert cuda.read_f32(memory, 1023) == 1.0


@on_driver()
def test_submitting_is_asynchronous_and_ordered(cuda: Cuda) -> None:
    streams = [cuda.cuStreamCreate(NON_BLOCKING) for _ in range(3)]
    _, flag = cuda.host_flag()
    for stream in streams[:2]:
        cuda.launch("wait_flag", flag, 1, stream=stream)
    assert not any(cuda.is_done(stream) for stream in streams[:2])
    cuda.launch("set_flag", flag, 1, stream=streams[2])
    assert elapsed(cuda.cuCtxSynchronize) < 30  # the streams run at the same time, or the work would last a minute
    memory = cuda.cuMemAlloc(MIB)
    for value in range(3000):  # more than the queue has room for
        cuda.launch("fill_f32", memory, float(value), 4, stream=streams[0])
    cuda.cuStreamSynchronize(streams[0])
    assert cuda.read_f32(memory, 3) == 2999.0


@on_driver()
def test_a_full_queue_blocks_until_there_is_room(cuda: Cuda) -> None:
    word, flag = cuda.host_flag()
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    submitted = 0

    def submit() -> None:
        nonlocal submitted
        cuda.cuCtxSetCurrent(cuda.context)
        for _ in range(2000):
            cuda.launch("spin", 0, stream=stream)
            submitted += 1

    cuda.launch("wait_flag", flag, 1, stream=stream)
    thread = threading.Thread(target=submit)
    thread.start()
    while submitted < 1023:
        time.sleep(0.01)
    thread.join(0.1)
    assert thread.is_alive() and submitted == 1023
    word.value = 1
    thread.join(30)
    cuda.cuStreamSynchronize(stream)
    assert submitted == 2000


@on_driver()
def test_blocking_streams_and_the_legacy_stream_wait_for_each_other(cuda: Cuda) -> None:
    blocking, independent = cuda.cuStreamCreate(0), cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    memory = cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8(memory, 0, 4096)
    cuda.cuCtxSynchronize()
    cuda.launch("wait_flag", flag, 1)  # legacy
    cuda.launch("fill_f32", memory, 1.0, 1, stream=blocking)
    cuda.launch("fill_f32", int(memory) + 4, 1.0, 1, stream=independent)
    cuda.cuStreamSynchronize(independent)
    assert not cuda.is_done(blocking)
    word.value = 1
    cuda.cuStreamSynchronize(blocking)
    assert cuda.read(memory, 8) == floats([1.0, 1.0])


@on_driver()
def test_events_order_and_time(cuda: Cuda) -> None:
    first, second = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    begin, end = cuda.cuEventCreate(0), cuda.cuEventCreate(0)
    memory = cuda.cuMemAlloc(4096)
    word, flag = cuda.host_flag()
    before = time.monotonic()
    cuda.cuEventRecord(begin, first)
    cuda.launch("wait_flag", flag, 1, stream=first)
    cuda.launch("work_f32", memory, 1, 50 * MS, 0, stream=first)
    cuda.launch("fill_f32", memory, 1.0, 1, stream=first)
    cuda.cuEventRecord(end, first)
    cuda.cuStreamWaitEvent(second, end, 0)
    cuda.launch("work_f32", memory, 1, 0, 0, stream=second)
    assert cuda.code("cuEventQuery", end) == 600
    assert cuda.code("cuEventElapsedTime", begin, end) == 600
    word.value = 1
    cuda.cuStreamSynchronize(second)
    assert cuda.code("cuEventQuery", end) == 0
    assert 50 <= cuda.cuEventElapsedTime(begin, end) <= 1000 * (time.monotonic() - before)
    assert cuda.read_f32(memory, 0) == 2.0


@on_driver()
def test_graphs_replay_the_captured_work(cuda: Cuda) -> None:
    stream, side = cuda.cuStreamCreate(0), cuda.cuStreamCreate(0)
    event, joined = cuda.cuEventCreate(2), cuda.cuEventCreate(2)
    memory = cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8(memory, 0, 4096)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(1))
    cuda.launch("work_f32", memory, 1, 0, 0, stream=stream)
    cuda.cuEventRecord(event, stream)
    cuda.cuStreamWaitEvent(side, event, 0)
    cuda.launch("work_f32", memory, 2, 0, 0, stream=side)
    assert int(cuda.cuStreamIsCapturing(side)) == 1
    cuda.cuEventRecord(joined, side)
    cuda.cuStreamWaitEvent(stream, joined, 0)
    graph = cuda.cuStreamEndCapture(stream)
    assert cuda.read(memory, 8) == bytes(8)
    run = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphDestroy(graph)
    for _ in range(3):
        cuda.cuGraphLaunch(run, stream)
    cuda.cuGraphExecDestroy(run)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read(memory, 8) == floats([6.0, 3.0])


@on_driver()
def test_a_capture_must_be_joined_and_ended_by_its_own_thread(cuda: Cuda) -> None:
    stream, side = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    event, outside = cuda.cuEventCreate(2), cuda.cuEventCreate(2)
    mode = cuda.driver.CUstreamCaptureMode(1)
    cuda.cuStreamBeginCapture(stream, mode)
    cuda.cuEventRecord(event, stream)
    cuda.cuStreamWaitEvent(side, event, 0)
    assert cuda.code("cuStreamEndCapture", stream) == 904
    cuda.cuEventRecord(outside, side)
    cuda.cuStreamBeginCapture(stream, mode)
    assert cuda.code("cuStreamWaitEvent", stream, outside, 0) == 905
    assert cuda.code("cuStreamEndCapture", stream) == 901
    cuda.cuStreamBeginCapture(stream, mode)
    codes: list[int] = []

    def end() -> None:
        cuda.cuCtxSetCurrent(cuda.context)
        codes.append(cuda.code("cuStreamEndCapture", stream))

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert codes == [908]
    assert cuda.code("cuMemAlloc", 4096) == 900
    assert cuda.code("cuStreamEndCapture", stream) == 901
    assert cuda.code("cuStreamBeginCapture", 0, mode) == 900
