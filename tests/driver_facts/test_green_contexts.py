"""Facts about green contexts, and about calls without a current context (see test_facts.py)."""

from __future__ import annotations

import sys
from typing import Any

from .harness import CANNOT_RUN, MIB, NON_BLOCKING, Cuda, on_driver
from .test_facts import THREAD_LOCAL, in_thread

DEFAULT_STREAM = 1
IN_USE, INVALID_CONTEXT, INVALID_RESOURCE_TYPE, NOT_READY, UNSUPPORTED = 216, 201, 914, 600, 900
INVALID_CONFIGURATION, BACKFILL = 915, 1


def green_context(cuda: Cuda) -> tuple[Any, Any]:
    """Return a green context with a part of the device, and its context."""
    kind = cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    groups, _, _ = cuda.cuDevSmResourceSplitByCount(1, cuda.cuDeviceGetDevResource(cuda.device, kind), 0, 8)
    description = cuda.cuDevResourceGenerateDesc(groups, 1)
    green = cuda.cuGreenCtxCreate(description, cuda.device, DEFAULT_STREAM)
    return green, cuda.cuCtxFromGreenCtx(green)


@on_driver()
def test_a_green_context_becomes_current_once_no_other_thread_has_it(cuda: Cuda) -> None:
    """A thread can make a green context current that is current in no other thread. If another thread has the context,
    the call may be refused with 216. (So the shim makes no green context current.)

    Source: documentation of cuGreenCtxCreate ("can be current to only one thread at a time. There is no internal
    synchronization") and of CUDA_ERROR_CONTEXT_ALREADY_IN_USE. Seen on an H200, which
    does not return 216.
    """
    _, context = green_context(cuda)

    def push() -> int:
        status = cuda.code("cuCtxPushCurrent", context)
        if not status:
            cuda.cuCtxPopCurrent()
        return status

    cuda.cuCtxPushCurrent(context)
    assert in_thread(push) in (0, IN_USE)
    cuda.cuCtxPopCurrent()
    assert in_thread(push) == 0


@on_driver()
def test_a_stream_has_the_multiprocessors_of_its_context(cuda: Cuda) -> None:
    """A stream of a green context has the multiprocessors of that context, and any other stream those of the device.

    Source: documentation of cuStreamGetDevResource and cuGreenCtxStreamCreate. Not yet seen on a GPU.
    """
    kind = cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    green, _ = green_context(cuda)
    part, whole = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0), cuda.cuStreamCreate(NON_BLOCKING)
    try:
        cuda.driver.cuStreamGetDevResource(whole, kind)
    except RuntimeError:  # the driver is older than CUDA 13.1
        sys.exit(CANNOT_RUN)
    of_green = cuda.cuGreenCtxGetDevResource(green, kind).sm.smCount
    of_device = cuda.cuDeviceGetDevResource(cuda.device, kind).sm.smCount
    assert of_green < of_device
    counts = [cuda.cuStreamGetDevResource(stream, kind).sm.smCount for stream in (part, whole)]
    assert counts == [of_green, of_device]


@on_driver()
def test_a_made_stream_needs_no_current_context(cuda: Cuda) -> None:
    """A thread without a current context can query a stream that the program has made, and record events in it. A
    default stream needs a current context, which gives it its meaning.

    Source: NVIDIA/cccl, libcudacxx/include/cuda/__stream/stream_ref.h (is_done, event_ref::record) and #10889. Seen
    on an H200.
    """
    stream, event = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuEventCreate(2)
    word, flag = cuda.host_flag()
    cuda.launch("wait_flag", flag, 1, stream=stream)
    assert in_thread(lambda: cuda.code("cuStreamQuery", stream)) == NOT_READY
    assert in_thread(lambda: cuda.code("cuEventRecord", event, stream)) == 0
    assert in_thread(lambda: int(cuda.cuStreamIsCapturing(stream))) == 0
    assert in_thread(lambda: cuda.code("cuStreamQuery", cuda.driver.CUstream(1))) == INVALID_CONTEXT
    word.value = 1
    cuda.cuEventSynchronize(event)


@on_driver()
def test_streams_have_a_green_context_and_a_primary_context(cuda: Cuda) -> None:
    """cuStreamGetCtx_v2 returns the primary context and the green context of a made stream and of a default stream.

    Source: documentation of cuStreamGetCtx_v2. Seen on an H200.
    """
    green, context = green_context(cuda)
    stream = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0)
    plain = cuda.cuStreamCreate(NON_BLOCKING)
    found = [cuda.cuStreamGetCtx_v2(stream), cuda.cuStreamGetCtx_v2(plain)]
    cuda.cuCtxPushCurrent(context)
    found.append(cuda.cuStreamGetCtx_v2(0))
    cuda.cuCtxPopCurrent()
    home = int(cuda.context)
    assert [(int(one), int(other)) for one, other in found] == [(home, int(green)), (home, 0), (home, int(green))]


@on_driver()
def test_an_event_of_the_primary_context_covers_a_green_context(cuda: Cuda) -> None:
    """cuGreenCtxRecordEvent records an event of the primary context behind all work of the green context, its default
    stream included, from a thread in which the green context is not current.

    Source: documentation of cuGreenCtxRecordEvent ("from the same primary context"). Seen on an H200.
    """
    green, context = green_context(cuda)
    word, flag = cuda.host_flag()
    event = cuda.cuEventCreate(2)
    cuda.cuCtxPushCurrent(context)
    cuda.launch("wait_flag", flag, 1)
    assert in_thread(lambda: cuda.code("cuGreenCtxRecordEvent", green, event)) == 0
    assert cuda.code("cuEventQuery", event) == NOT_READY
    word.value = 1
    cuda.cuEventSynchronize(event)
    cuda.cuCtxPopCurrent()


@on_driver()
def test_an_event_of_a_green_context_disturbs_its_captures(cuda: Cuda) -> None:
    """cuGreenCtxRecordEvent returns 900 while a stream of the green context captures, and the capture is lost.

    Source: documentation of cuGreenCtxRecordEvent. Seen on an H200.
    """
    green, _ = green_context(cuda)
    stream, event = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0), cuda.cuEventCreate(2)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(THREAD_LOCAL))
    assert cuda.code("cuGreenCtxRecordEvent", green, event) == UNSUPPORTED
    assert cuda.code("cuStreamEndCapture", stream) != 0


@on_driver()
def test_memory_of_a_green_context_is_that_of_the_primary_context(cuda: Cuda) -> None:
    """Memory that is allocated while a green context is current outlives the green context.

    Source: documentation of cuCtxFromGreenCtx ("does not create a new independent context"). Seen on an H200.
    """
    green, context = green_context(cuda)
    cuda.cuCtxPushCurrent(context)
    memory = cuda.cuMemAlloc(MIB)
    cuda.launch("fill_f32", memory, 5.0, 16)
    cuda.cuCtxSynchronize()
    cuda.cuCtxPopCurrent()
    cuda.cuGreenCtxDestroy(green)
    assert cuda.read_f32(memory, 15) == 5.0
    cuda.cuMemFree(memory)


@on_driver()
def test_a_green_context_has_its_part_of_the_device(cuda: Cuda) -> None:
    """cuGreenCtxGetDevResource and cuCtxGetDevResource return the multiprocessors of a green context, and the latter
    returns those of the whole device for its primary context. A type that does not exist returns 914.

    Source: documentation of cuGreenCtxGetDevResource and cuCtxGetDevResource. Seen on an H200.
    """
    kind = cuda.driver.CUdevResourceType
    device = cuda.cuDeviceGetDevResource(cuda.device, kind.CU_DEV_RESOURCE_TYPE_SM)
    green, context = green_context(cuda)
    found = [
        cuda.cuGreenCtxGetDevResource(green, kind.CU_DEV_RESOURCE_TYPE_SM),
        cuda.cuCtxGetDevResource(context, kind.CU_DEV_RESOURCE_TYPE_SM),
        cuda.cuCtxGetDevResource(cuda.context, kind.CU_DEV_RESOURCE_TYPE_SM),
    ]
    part, same, whole = (resource.sm.smCount for resource in found)
    assert 8 <= part == same < whole == device.sm.smCount
    invalid = kind.CU_DEV_RESOURCE_TYPE_INVALID
    assert cuda.code("cuGreenCtxGetDevResource", green, invalid) == INVALID_RESOURCE_TYPE


@on_driver()
def test_a_green_context_waits_for_an_event(cuda: Cuda) -> None:
    """cuGreenCtxWaitEvent holds work that is submitted to the green context later, until work of the primary context
    has ended, and returns at once. Streams of the primary context do not wait.

    Source: documentation of cuGreenCtxWaitEvent ("will not block the calling CPU thread", "may be from a different
    context"). Not yet seen on a GPU.
    """
    green, _ = green_context(cuda)
    stream, event = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0), cuda.cuEventCreate(2)
    outside, other = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    memory, (word, flag) = cuda.cuMemAlloc(MIB), cuda.host_flag()
    cuda.launch("wait_flag", flag, 1, stream=outside)
    cuda.cuEventRecord(event, outside)
    cuda.cuGreenCtxWaitEvent(green, event)
    cuda.cuMemsetD8Async(memory, 1, 16, stream)
    cuda.cuMemsetD8Async(memory, 1, 16, other)
    cuda.cuStreamSynchronize(other)
    assert not cuda.is_done(stream)
    word.value = 1
    cuda.cuStreamSynchronize(stream)


@on_driver()
def test_a_wait_of_a_green_context_disturbs_its_captures(cuda: Cuda) -> None:
    """cuGreenCtxWaitEvent returns 900 while a stream of the green context captures, and the capture is lost.

    Source: documentation of cuGreenCtxWaitEvent. Not yet seen on a GPU.
    """
    green, _ = green_context(cuda)
    stream, event = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0), cuda.cuEventCreate(2)
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(THREAD_LOCAL))
    assert cuda.code("cuGreenCtxWaitEvent", green, event) == UNSUPPORTED
    assert cuda.code("cuStreamEndCapture", stream) != 0


@on_driver()
def test_a_context_event_covers_the_green_contexts(cuda: Cuda) -> None:
    """An event that cuCtxRecordEvent records for the primary context covers work of a green context. After
    cuCtxWaitEvent, work of the green context waits for the event of another stream.

    Source: documentation of cuCtxRecordEvent and cuCtxWaitEvent ("the primary context and its green contexts"). Not yet
    seen on a GPU.
    """
    green, _ = green_context(cuda)
    stream, event = cuda.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0), cuda.cuEventCreate(2)
    memory, (word, flag) = cuda.cuMemAlloc(MIB), cuda.host_flag()
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.cuCtxRecordEvent(cuda.context, event)
    assert cuda.code("cuEventQuery", event) == NOT_READY
    word.value = 1
    cuda.cuEventSynchronize(event)

    outside = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.launch("wait_flag", flag, 2, stream=outside)
    cuda.cuEventRecord(event, outside)
    cuda.cuCtxWaitEvent(cuda.context, event)
    cuda.cuMemsetD8Async(memory, 1, 16, stream)
    assert not cuda.is_done(stream)
    word.value = 2
    cuda.cuStreamSynchronize(stream)


@on_driver()
def test_green_contexts_have_ids_of_their_own(cuda: Cuda) -> None:
    """cuGreenCtxGetId returns different numbers for two green contexts. For NULL the number is that of the current
    green context, and without one the call fails.

    Source: documentation of cuGreenCtxGetId. Not yet seen on a GPU.
    """
    (first, context), (second, _) = green_context(cuda), green_context(cuda)
    assert int(cuda.cuGreenCtxGetId(first)) != int(cuda.cuGreenCtxGetId(second))
    assert cuda.code("cuGreenCtxGetId", 0) != 0
    cuda.cuCtxPushCurrent(context)
    assert int(cuda.cuGreenCtxGetId(0)) == int(cuda.cuGreenCtxGetId(first))
    cuda.cuCtxPopCurrent()


def wanted_groups(cuda: Cuda, *groups: tuple[int, int, int]) -> list[Any]:
    """Return parameters of groups, each of a count, a coscheduled count and flags."""
    made = [cuda.driver.CU_DEV_SM_RESOURCE_GROUP_PARAMS() for _ in groups]
    for parameters, (count, coscheduled, flags) in zip(made, groups, strict=True):
        parameters.smCount, parameters.coscheduledSmCount, parameters.flags = count, coscheduled, flags
    return made


@on_driver()
def test_a_split_by_count_makes_equal_groups(cuda: Cuda) -> None:
    """Each group has a multiple of the alignment, at least the minimum, and all groups with the rest are the device. A
    minimum above the count is refused with 1.

    Source: documentation of cuDevSmResourceSplitByCount. Not yet seen on a GPU.
    """
    whole = cuda.cuDeviceGetDevResource(cuda.device, cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    total, alignment = whole.sm.smCount, whole.sm.smCoscheduledAlignment
    groups, count, rest = cuda.cuDevSmResourceSplitByCount(2, whole, 0, alignment - 1)
    sizes = [group.sm.smCount for group in groups[: int(count)]]
    assert sizes == [alignment] * 2
    assert sum(sizes) + rest.sm.smCount == total
    assert cuda.code("cuDevSmResourceSplitByCount", 1, whole, 0, total + 1) == 1


@on_driver()
def test_a_split_makes_groups_of_several_sizes(cuda: Cuda) -> None:
    """cuDevSmResourceSplit makes groups of the given sizes, and a group without a size gets what is left, or all of it
    with backfill. A group for which nothing is left, and a description of groups of two splits, are refused with 915.
    The parameters of an odd size are refused. A green context has the size of its group. (The shim leaves it alone.)

    Source: documentation of cuDevSmResourceSplit (its third example) and cuDevResourceGenerateDesc. Not yet seen on a
    GPU.
    """
    whole = cuda.cuDeviceGetDevResource(cuda.device, cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    total = whole.sm.smCount
    try:
        cuda.driver.cuDevSmResourceSplit(1, whole, 0, wanted_groups(cuda, (2, 2, 0)))
    except RuntimeError:  # the driver is older than CUDA 13.1
        sys.exit(CANNOT_RUN)
    groups, rest = cuda.cuDevSmResourceSplit(2, whole, 0, wanted_groups(cuda, (4, 2, 0), (0, 2, BACKFILL)))
    sizes = [group.sm.smCount for group in groups]
    assert sizes[0] == 4
    assert sum(sizes) + (rest.sm.smCount if int(rest.type) else 0) == total
    none_left = wanted_groups(cuda, (total // 2 * 2, 2, 0), (0, 2, 0))
    assert cuda.code("cuDevSmResourceSplit", 2, whole, 0, none_left) == INVALID_CONFIGURATION
    assert cuda.code("cuDevSmResourceSplit", 1, whole, 0, wanted_groups(cuda, (3, 2, 0))) != 0
    assert cuda.code("cuDevSmResourceSplit", 1, whole, 1, wanted_groups(cuda, (2, 2, 0))) == 1
    others, _ = cuda.cuDevSmResourceSplit(1, whole, 0, wanted_groups(cuda, (4, 2, 0)))
    assert cuda.code("cuDevResourceGenerateDesc", [groups[0], others[0]], 2) == INVALID_CONFIGURATION
    green = cuda.cuGreenCtxCreate(cuda.cuDevResourceGenerateDesc([groups[0]], 1), cuda.device, DEFAULT_STREAM)
    kind = cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    assert cuda.cuGreenCtxGetDevResource(green, kind).sm.smCount == 4
