"""Facts about the driver that the shim relies on, with a test for each, on the simulated driver and on a GPU.

    pytest tests/driver_facts                 on the simulated driver
    DRIVER=gpu pytest tests/driver_facts      on a GPU

The simulated driver proves only that its author assumed the same.
The docstring of each fact therefore has its source, and whether it has been seen on a GPU.
"Seen on an H200" and "Not so on an H200" stand for a run on 2026-11-26 with driver 580.159.04 (CUDA 13.0).
This file has facts about capture, events, freeing and processes; the names of the other files are their topics.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..support.polling import wait_until
from .harness import MIB, MS, NON_BLOCKING, Cuda, environment, newest_observations, on_driver, running_process
from .vmm import free_bytes, mapped

HELD = 256 * MIB
UNSUPPORTED, INVALIDATED, IMPLICIT = 900, 901, 906
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in another thread, and return its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def exchange_mode(cuda: Cuda, mode: int) -> None:
    cuda.cuThreadExchangeStreamCaptureMode(cuda.driver.CUstreamCaptureMode(mode))


@contextmanager
def capturing(cuda: Cuda, flags: int = 0, mode: int = THREAD_LOCAL) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Return a stream in capture with one captured launch, and a function that ends the capture with its result."""
    stream = cuda.cuStreamCreate(flags)
    memory = cuda.cuMemAlloc(MIB)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(mode))
    cuda.launch("fill_f32", memory, 1.0, 16, stream=stream)
    yield stream, lambda: cuda.code("cuStreamEndCapture", stream)


@on_driver()
def test_unified_memory_has_no_legacy_ipc_handle(cuda: Cuda) -> None:
    """Ordinary memory has an IPC handle, unified memory has none.

    Source: CUDA programming guide, "Interprocess communication"; peers' issues. Seen on an H200.
    """
    plain, managed = cuda.cuMemAlloc(MIB), cuda.cuMemAllocManaged(MIB, 1)
    assert cuda.code("cuIpcGetMemHandle", plain) == 0
    assert cuda.code("cuIpcGetMemHandle", managed) != 0


@on_driver()
def test_synchronising_a_capturing_stream_invalidates(cuda: Cuda) -> None:
    """cuStreamSynchronize and cuStreamQuery on a capturing stream: 900, and the capture is lost (901).

    Source: documentation of CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and of cuStreamBeginCapture. Seen on an H200.
    """
    for call in ("cuStreamSynchronize", "cuStreamQuery"):
        with capturing(cuda) as (stream, end):
            assert cuda.code(call, stream) == UNSUPPORTED
            assert end() == INVALIDATED


@on_driver()
def test_legacy_stream_while_a_blocking_stream_captures(cuda: Cuda) -> None:
    """Use of the legacy stream, from whatever thread, while a blocking stream captures: 906, and the capture is lost.

    Source: documentation of cuStreamIsCapturing ("the legacy stream is in an unusable state"); measured by others on an
    RTX PRO 4000, global and thread-local mode, same thread and another (ROCm/rocm-systems #4508). Seen on an H200.
    """
    memory, data = cuda.cuMemAlloc(4096), bytes(4096)

    def copy() -> int:
        cuda.cuCtxSetCurrent(cuda.context)
        return cuda.code("cuMemcpyHtoD", memory, data, 4096)

    for mode in (GLOBAL, THREAD_LOCAL):
        for call in (copy, lambda: in_thread(copy)):
            with capturing(cuda, mode=mode) as (_, end):
                assert call() == IMPLICIT
                assert end() == INVALIDATED


@on_driver()
def test_legacy_stream_while_a_non_blocking_stream_captures(cuda: Cuda) -> None:
    """A capture on a non-blocking stream has nothing to do with the legacy stream.

    Source: CUDA programming guide, "Prohibited and unhandled operations". Seen on an H200.
    """
    memory = cuda.cuMemAlloc(MIB)
    with capturing(cuda, flags=NON_BLOCKING) as (_, end):
        cuda.launch("fill_f32", memory, 3.0, 16)
        assert end() == 0
    assert cuda.read_f32(memory, 15) == 3.0


@on_driver()
def test_context_synchronise_while_a_stream_captures(cuda: Cuda) -> None:
    """cuCtxSynchronize, from whatever thread: 900, and captures of that context are lost.

    Source: measured by others (ROCm/rocm-systems #4508, #8338; NVIDIA/TensorRT #2888). Seen on an H200.
    """

    def synchronise() -> int:
        cuda.cuCtxSetCurrent(cuda.context)
        return cuda.code("cuCtxSynchronize")

    for call in (synchronise, lambda: in_thread(synchronise)):
        with capturing(cuda, mode=GLOBAL) as (_, end):
            assert call() == UNSUPPORTED
            assert end() == INVALIDATED


@on_driver()
def test_a_relaxed_thread_may_use_other_streams_and_events(cuda: Cuda) -> None:
    """A thread in relaxed mode records, queries and awaits events on non-capturing streams, allocates and frees, while
    another thread captures in global mode; the capture goes on. (How the agent drains.)

    Source: documentation of cuThreadExchangeStreamCaptureMode. Seen on an H200.
    """
    other = cuda.cuStreamCreate(NON_BLOCKING)

    def drain() -> list[int]:
        cuda.cuCtxSetCurrent(cuda.context)
        exchange_mode(cuda, RELAXED)
        event = cuda.cuEventCreate(2)
        codes = [cuda.code("cuEventRecord", event, other), cuda.code("cuEventSynchronize", event)]
        codes += [cuda.code("cuEventQuery", event)]
        return [*codes, cuda.code("cuMemFree", cuda.cuMemAlloc(4096))]

    with capturing(cuda, mode=GLOBAL) as (_, end):
        assert in_thread(drain) == [0, 0, 0, 0]
        assert end() == 0


@on_driver()
def test_event_query_in_global_capture_mode_is_refused(cuda: Cuda) -> None:
    """While another thread captures in global mode, cuEventQuery in a thread of global mode (the default) is refused
    with 900 and the capture is lost. (Why the agent must be in relaxed mode.)

    Source: documentation of cuThreadExchangeStreamCaptureMode; PyTorch's watchdog met it. Seen on an H200.
    """
    event = cuda.cuEventCreate(2)

    def query() -> int:
        cuda.cuCtxSetCurrent(cuda.context)
        return cuda.code("cuEventQuery", event)

    with capturing(cuda, mode=GLOBAL) as (_, end):
        assert in_thread(query) == UNSUPPORTED
        assert end() == INVALIDATED


@on_driver()
def test_is_capturing_never_disturbs(cuda: Cuda) -> None:
    """cuStreamIsCapturing answers for the capturing stream, others, and the legacy stream (906); the capture goes on.

    Source: documentation of cuStreamIsCapturing ("… capture is not invalidated"). Seen on an H200.
    """
    other = cuda.cuStreamCreate(0)
    with capturing(cuda, mode=GLOBAL) as (stream, end):
        assert int(cuda.cuStreamIsCapturing(stream)) == 1
        assert int(cuda.cuStreamIsCapturing(other)) == 0
        assert cuda.code("cuStreamIsCapturing", 0) == IMPLICIT
        assert in_thread(lambda: (cuda.cuCtxSetCurrent(cuda.context), int(cuda.cuStreamIsCapturing(stream)))[1]) == 1
        assert end() == 0


@on_driver()
def test_event_on_the_legacy_stream_follows_blocking_streams(cuda: Cuda) -> None:
    """An event recorded on the legacy stream completes after the work that blocking streams had before, and does not
    wait for non-blocking streams.

    Source: CUDA programming guide, "Legacy default stream". Seen on an H200.
    """
    blocking, independent = cuda.cuStreamCreate(0), cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    event = cuda.cuEventCreate(2)
    cuda.launch("wait_flag", flag, 1, stream=blocking)
    cuda.cuEventRecord(event, 0)
    time.sleep(0.1)
    assert cuda.code("cuEventQuery", event) == 600
    word.value = 1
    cuda.cuEventSynchronize(event)
    assert cuda.is_done(blocking)
    word.value = 0
    cuda.launch("wait_flag", flag, 1, stream=independent)
    cuda.cuEventRecord(event, 0)
    cuda.cuEventSynchronize(event)
    assert not cuda.is_done(independent)
    word.value = 1
    cuda.cuStreamSynchronize(independent)


@on_driver()
def test_event_completes_after_earlier_work_only(cuda: Cuda) -> None:
    """An event completes when the work before it in its stream has; later work doesn't hold it back.

    Source: documentation of cuEventRecord. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    (first_word, first_flag), (word, flag) = cuda.host_flag(), cuda.host_flag()
    early, late = cuda.cuEventCreate(2), cuda.cuEventCreate(2)
    cuda.launch("wait_flag", first_flag, 1, stream=stream)
    cuda.cuEventRecord(early, stream)
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.cuEventRecord(late, stream)
    assert cuda.code("cuEventQuery", early) == 600
    first_word.value = 1
    cuda.cuEventSynchronize(early)
    assert cuda.code("cuEventQuery", late) == 600
    word.value = 1
    cuda.cuEventSynchronize(late)


@on_driver()
def test_freeing_memory_waits_for_pending_work(cuda: Cuda) -> None:
    """cuMemFree of unified and of ordinary memory returns only after submitted work is done.

    Source: documentation of cudaFree/cuMemFree ("may synchronise"); peers rely on it. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    for memory in (cuda.cuMemAllocManaged(MIB, 1), cuda.cuMemAlloc(MIB)):
        cuda.launch("work_f32", memory, 1024, 200 * MS, 0, stream=stream)
        cuda.cuMemFree(memory)
        assert cuda.is_done(stream)


@on_driver()
def test_a_running_launch_is_not_preempted_by_its_own_process(cuda: Cuda) -> None:
    """Work in the same stream starts after the running launch has ended, however long that takes; cuStreamDestroy does
    not end it either.

    Source: documentation of cuStreamDestroy; there is no call that ends a launch. Seen on an H200.
    """
    stream, other = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    memory = cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8Async(memory, 0, 4096, other)
    cuda.cuStreamSynchronize(other)
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.launch("fill_f32", memory, 5.0, 16, stream=stream)
    cuda.cuStreamDestroy(stream)
    data = bytearray(4)
    cuda.cuMemcpyDtoHAsync(data, memory, 4, other)
    cuda.cuStreamSynchronize(other)
    assert bytes(data) == bytes(4)
    word.value = 1
    cuda.cuCtxSynchronize()
    assert cuda.read_f32(memory, 0) == 5.0


def holder(cuda: Cuda, kind: str) -> None:
    """Allocate memory in a process that ends with its standard input."""
    if kind == "mapped":
        mapped(cuda, HELD)
    else:
        cuda.cuMemAlloc(HELD)
    print("holding", flush=True)
    input()


def occupant(cuda: Cuda) -> None:
    """Occupy the device by a launch until the first line of input, and report whether the launch still runs then."""
    (word, flag), (begun, begun_flag) = cuda.host_flag(), cuda.host_flag()
    cuda.launch("set_flag", begun_flag, 1)
    cuda.launch("wait_flag", flag, 1)
    wait_until(lambda: begun.value)
    print("running", flush=True)
    input()
    print("done" if cuda.is_done(0) else "running", flush=True)
    word.value = 1
    cuda.cuCtxSynchronize()


def with_holder(cuda: Cuda, state: str, kind: str) -> None:
    before = free_bytes(cuda)
    with running_process(holder, environment(Path(state)), kind) as other:
        assert other.stdout and other.stdout.readline() == "holding\n"
        assert free_bytes(cuda) <= before - HELD
        other.kill()
        wait_until(lambda: free_bytes(cuda) > before - HELD // 4)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # wait for the end of the process


def with_occupant(cuda: Cuda, state: str) -> None:
    cuda.launch("spin", MS)
    cuda.cuCtxSynchronize()
    with running_process(occupant, environment(Path(state))) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "running\n"
        cuda.launch("spin", MS)
        cuda.cuCtxSynchronize()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "running\n"


def run(test: Callable[..., Any], tmp_path: Path, *arguments: str) -> None:
    state = tmp_path / "state"
    with running_process(test, environment(state), str(state), *arguments) as process:
        process.wait(timeout=60)
        assert process.returncode == 0, newest_observations(tmp_path)


@pytest.mark.whole_card
@pytest.mark.parametrize("kind", ["ordinary", "mapped"])
def test_memory_of_a_killed_process_is_free_once_it_is_gone(tmp_path: Path, kind: str) -> None:
    """cuMemGetInfo shows other processes' memory as used, and free again when the process has ended (not at once).

    Source: documentation of cuMemGetInfo; driver behaviour met by peers. Seen on an H200.
    """
    run(with_holder, tmp_path, kind)


@pytest.mark.whole_card
def test_another_process_gets_time_slices_during_a_long_launch(tmp_path: Path) -> None:
    """A running launch can't be ended, but another process's work is time-sliced with it and doesn't wait for its end.

    Source: NVIDIA's description of time-slicing on Pascal and later (compute preemption). Seen on an H200.
    """
    run(with_occupant, tmp_path)
