"""Facts about captures: calls meanwhile, and the memory of captured work (see test_facts.py)."""

from __future__ import annotations

from typing import Any

from .harness import MIB, NON_BLOCKING, Cuda, on_driver
from .test_facts import (
    GLOBAL,
    IMPLICIT,
    INVALIDATED,
    RELAXED,
    THREAD_LOCAL,
    UNSUPPORTED,
    capturing,
    exchange_mode,
    in_thread,
)
from .test_memory import location
from .vmm import GRANULE, create, map_at, mapped

CAPTURED_EVENT = 907


@on_driver()
def test_unsafe_calls_in_the_capturing_thread(cuda: Cuda) -> None:
    """cuMemAlloc and cuMemFree in the thread that captures are refused with 900 and end the capture, in global and
    thread-local mode; in relaxed mode they are allowed.

    Source: documentation of cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode. Seen on an H200.
    """
    memory = cuda.cuMemAlloc(4096)
    for call, argument in (("cuMemAlloc", 4096), ("cuMemFree", memory)):
        for mode in (GLOBAL, THREAD_LOCAL):
            with capturing(cuda, mode=mode) as (_, end):
                assert cuda.code(call, argument) == UNSUPPORTED
                assert end() == INVALIDATED
        with capturing(cuda, mode=RELAXED) as (_, end):
            assert cuda.code(call, argument) == 0
            assert end() == 0


@on_driver()
def test_unsafe_calls_in_another_thread(cuda: Cuda) -> None:
    """cuMemAlloc in another thread is refused with 900 only if the capture and the thread are both in global mode.

    Source: documentation of cuThreadExchangeStreamCaptureMode. Seen on an H200.
    """

    def allocate(mode: int) -> int:
        cuda.cuCtxSetCurrent(cuda.context)
        exchange_mode(cuda, mode)
        return cuda.code("cuMemAlloc", 4096)

    for own, other, expected in ((GLOBAL, GLOBAL, UNSUPPORTED), (GLOBAL, THREAD_LOCAL, 0), (THREAD_LOCAL, GLOBAL, 0)):
        with capturing(cuda, mode=own) as (_, end):
            assert in_thread(lambda other=other: allocate(other)) == expected
            assert end() == (INVALIDATED if expected else 0)


@on_driver()
def test_attributes_of_pools_are_unsafe(cuda: Cuda) -> None:
    """cuMemPoolGetAttribute in the thread that captures is refused with 900 and ends the capture.

    Source: NVIDIA/cccl #11360 (measured by others). Seen on an H200.
    """
    pool = cuda.cuDeviceGetDefaultMemPool(cuda.device)
    threshold = cuda.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    with capturing(cuda, mode=THREAD_LOCAL) as (_, end):
        assert cuda.code("cuMemPoolGetAttribute", pool, threshold) == UNSUPPORTED
        assert end() == INVALIDATED


@on_driver()
def test_a_query_of_a_captured_event_ends_the_capture(cuda: Cuda) -> None:
    """cuEventQuery and cuEventSynchronize of an event that a capture has recorded return 907, also in relaxed mode, and
    the capture is lost. (A later call returns another status on an H200 than on the simulated driver.)

    Source: CUDA programming guide, "Prohibited and unhandled operations" and "Invalidation"; documentation of
    CUDA_ERROR_CAPTURED_EVENT. Seen on an H200.
    """
    event = cuda.cuEventCreate(2)
    exchange_mode(cuda, RELAXED)
    for call in ("cuEventQuery", "cuEventSynchronize"):
        with capturing(cuda, mode=RELAXED) as (stream, end):
            cuda.cuEventRecord(event, stream)
            assert cuda.code(call, event) == CAPTURED_EVENT
            cuda.code(call, event)  # for the report
            assert end() == INVALIDATED


def advise(cuda: Cuda, memory: Any) -> int:
    """Return the status of the advice that memory belongs on the device."""
    advice = cuda.driver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
    return cuda.code("cuMemAdvise", memory, MIB, advice, location(cuda, True))


@on_driver()
def test_advice_while_a_stream_captures(cuda: Cuda) -> None:
    """cuMemAdvise disturbs no capture of a non-blocking stream. While a blocking stream captures, the advice is either
    accepted, or is refused with 906 and ends the capture. (So the shim gives no advice then.)

    Source: documentation of cuMemAdvise ("uses standard default stream semantics") and CUDA programming guide,
    "Prohibited and unhandled operations", by which 906 would be right. Seen on an
    H200.
    """
    memory = cuda.cuMemAllocManaged(MIB, 1)
    exchange_mode(cuda, RELAXED)
    with capturing(cuda, mode=RELAXED) as (_, end):
        assert (advise(cuda, memory), end()) in ((0, 0), (IMPLICIT, INVALIDATED))
    with capturing(cuda, flags=NON_BLOCKING, mode=RELAXED) as (_, end):
        assert advise(cuda, memory) == 0
        assert end() == 0


@on_driver()
def test_advice_does_not_wait_for_work_of_blocking_streams(cuda: Cuda) -> None:
    """cuMemAdvise returns while work of a blocking stream is not complete. Later work may wait for the advice, and so
    for that work. (So the shim gives no advice while blocking streams are busy.)

    Source: documentation of cuMemAdvise ("uses standard default stream semantics", by which later work would wait).
    Seen on an H200.
    """
    early, late = cuda.cuStreamCreate(0), cuda.cuStreamCreate(0)
    memory = cuda.cuMemAllocManaged(MIB, 1)
    word, flag = cuda.host_flag()
    cuda.launch("wait_flag", flag, 1, stream=early)
    assert advise(cuda, memory) == 0
    assert not cuda.is_done(early)
    cuda.launch("spin", 1, stream=late)
    cuda.is_done(late)  # for the report
    word.value = 1
    cuda.cuStreamSynchronize(late)


@on_driver()
def test_a_captured_copy_of_unmapped_memory_is_refused(cuda: Cuda) -> None:
    """A copy from an address without mapping is refused with 1 when it is captured. (So memory stays meanwhile.)

    Source: documentation of cuMemcpyDtoDAsync (the addresses are looked up by the call). Seen on an H200.
    """
    address, _ = mapped(cuda)
    memory = cuda.cuMemAlloc(MIB)
    cuda.cuMemUnmap(address, GRANULE)
    with capturing(cuda, flags=NON_BLOCKING, mode=RELAXED) as (stream, end):
        assert cuda.code("cuMemcpyDtoDAsync", memory, address, MIB, stream) == 1
        end()


@on_driver()
def test_a_graph_uses_what_is_mapped_at_its_addresses(cuda: Cuda) -> None:
    """Copies, sets and launches of a graph use memory that was mapped at their addresses after the instantiation.

    Source: fzyzcjy/torch_memory_saver #22 (seen by others, for launches). Seen on an H200.
    """
    address, first = mapped(cuda)
    memory = cuda.cuMemAlloc(MIB)
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(RELAXED))
    cuda.launch("work_f32", address, 16, 0, 0, stream=stream)
    cuda.cuMemcpyDtoDAsync(memory, address, MIB, stream)
    cuda.cuMemsetD8Async(address + MIB, 0, 64, stream)
    run = cuda.cuGraphInstantiate(cuda.cuStreamEndCapture(stream), 0)
    cuda.cuMemUnmap(address, GRANULE)
    cuda.cuMemRelease(first)
    map_at(cuda, address, create(cuda, GRANULE))
    cuda.launch("fill_f32", address, 5.0, GRANULE // 4)
    cuda.cuCtxSynchronize()
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert [cuda.read_f32(memory, 15), cuda.read_f32(address, MIB // 4)] == [6.0, 0.0]
