"""Facts about the driver (see test_facts.py): the calls that wait for running work of their context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .harness import MIB, PTX, Cuda, on_driver
from .test_memory import SHOULD_RETURN, SHOULD_WAIT, in_stream, location
from .vmm import GRANULE, allow, create, reserve

NON_BLOCKING = 1
Call = Callable[[], object]


def waits(cuda: Cuda, call: Call, seconds: float) -> bool:
    """Return whether a call waits for a kernel in another stream, which is not blocking."""
    return not in_stream(cuda, lambda memory, stream: call(), seconds)


@on_driver()
def test_memory_and_modules_that_end_wait_for_running_work(cuda: Cuda) -> None:
    """The calls that free memory wait, and so do the calls that load or unload a module.

    Source: documentation of cuMemFree ("implicit synchronization"); measured for the other calls. Seen on an H200.
    """
    memory, unified, host = cuda.cuMemAlloc(MIB), cuda.cuMemAllocManaged(MIB, 1), cuda.cuMemHostAlloc(MIB, 0)
    image = PTX.read_bytes() + b"\0"
    module = cuda.cuModuleLoadData(image)
    calls: dict[str, Call] = {
        "cuMemFree": lambda: cuda.cuMemFree(memory),
        "cuMemFree of unified memory": lambda: cuda.cuMemFree(unified),
        "cuMemFreeHost": lambda: cuda.cuMemFreeHost(host),
        "cuModuleLoadData": lambda: cuda.cuModuleLoadData(image),
        "cuModuleUnload": lambda: cuda.cuModuleUnload(module),
    }
    assert {name for name, call in calls.items() if not waits(cuda, call, SHOULD_WAIT)} == set()


@on_driver()
def test_memory_that_begins_or_is_mapped_does_not_wait_for_running_work(cuda: Cuda) -> None:
    """Allocation, advice, the functions of the virtual-memory interface, and a prefetch in a stream without work return
    while work is running.

    Source: none; measured. Seen on an H200.
    """
    stream, unified = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuMemAllocManaged(MIB, 1)
    address = reserve(cuda, GRANULE)
    made: dict[str, Any] = {}
    calls: dict[str, Call] = {
        "cuMemAlloc": lambda: cuda.cuMemAlloc(MIB),
        "cuMemAllocManaged": lambda: cuda.cuMemAllocManaged(MIB, 1),
        "cuMemHostAlloc": lambda: cuda.cuMemHostAlloc(MIB, 0),
        "cuMemCreate": lambda: made.update(handle=create(cuda, GRANULE)),
        "cuMemMap": lambda: cuda.cuMemMap(address, GRANULE, 0, made["handle"], 0),
        "cuMemSetAccess": lambda: allow(cuda, address, GRANULE),
        "cuMemUnmap": lambda: cuda.cuMemUnmap(address, GRANULE),
        "cuMemRelease": lambda: cuda.cuMemRelease(made["handle"]),
        "prefetch to the device": lambda: cuda.cuMemPrefetchAsync(unified, MIB, location(cuda, True), 0, stream),
        "prefetch to the host": lambda: cuda.cuMemPrefetchAsync(unified, MIB, location(cuda, False), 0, stream),
        "cuStreamCreate": lambda: cuda.cuStreamCreate(0),
        "cuEventCreate": lambda: cuda.cuEventCreate(0),
    }
    assert {name for name, call in calls.items() if waits(cuda, call, SHOULD_RETURN)} == set()
