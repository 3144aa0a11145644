"""Facts about graphs: their launches and their memory (see test_facts.py)."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import pytest

from .harness import MIB, NON_BLOCKING, Cuda, on_driver
from .test_facts import INVALIDATED, THREAD_LOCAL, UNSUPPORTED
from .vmm import free_bytes

KERNEL, CHILD, ALLOC, FREE = 0, 4, 10, 11
INVALID_VALUE = 1
USED, RESERVED = 0, 2
SIZE = 64 * MIB


def begin(cuda: Cuda, stream: Any) -> None:
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(THREAD_LOCAL))


def types(cuda: Cuda, graph: Any) -> list[int]:
    _, count = cuda.cuGraphGetNodes(graph)
    nodes, count = cuda.cuGraphGetNodes(graph, count)
    return [int(cuda.cuGraphNodeGetType(node)) for node in nodes]


def figure(cuda: Cuda, number: int) -> int:
    return int(cuda.cuDeviceGetGraphMemAttribute(cuda.device, cuda.driver.CUgraphMem_attribute(number)))


@pytest.mark.whole_card
@on_driver()
def test_captured_allocations_take_memory_until_they_are_trimmed(cuda: Cuda) -> None:
    """A captured cuMemAllocAsync makes an allocation node. The first launch at the latest takes memory for it, which
    cuDeviceGraphMemTrim gives back. (So the shim counts the memory.) Memory that the graph has freed counts as used
    until then.

    Source: CUDA programming guide, "Graph memory nodes" (physical memory footprint: memory counts as used while a graph
    maps it); graphMemoryFootprint of NVIDIA/cuda-samples (a trim helps while the executable graph exists). Seen on an
    H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    begin(cuda, stream)
    memory = cuda.cuMemAllocAsync(SIZE, stream)
    cuda.launch("fill_f32", memory, 1.0, SIZE // 4, stream=stream)
    cuda.cuMemFreeAsync(memory, stream)
    graph = cuda.cuStreamEndCapture(stream)
    assert sorted(types(cuda, graph)) == [KERNEL, ALLOC, FREE]
    run = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    before = free_bytes(cuda)
    assert figure(cuda, RESERVED) >= SIZE and figure(cuda, USED) >= SIZE
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, RESERVED) < SIZE and figure(cuda, USED) < SIZE
    assert free_bytes(cuda) > before + SIZE // 2


@pytest.mark.whole_card
@on_driver()
def test_memory_of_an_ended_graph_is_trimmed(cuda: Cuda) -> None:
    """cuDeviceGraphMemTrim gives back the memory of a graph that has ended, if the driver has kept the memory.

    Source: documentation of cuDeviceGraphMemTrim; graphMemoryFootprint of NVIDIA/cuda-samples. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    begin(cuda, stream)
    cuda.cuMemFreeAsync(cuda.cuMemAllocAsync(SIZE, stream), stream)
    graph = cuda.cuStreamEndCapture(stream)
    run = cuda.cuGraphInstantiate(graph, 0)
    before = free_bytes(cuda)
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert free_bytes(cuda) <= before - SIZE
    cuda.cuGraphExecDestroy(run)
    cuda.cuGraphDestroy(graph)
    figure(cuda, RESERVED), free_bytes(cuda)  # for the report: the driver may keep the memory
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, RESERVED) < SIZE and free_bytes(cuda) > before - SIZE // 2


@on_driver()
def test_a_graph_and_its_copies_own_user_objects(cuda: Cuda) -> None:
    """An object is destroyed when the program, the graph and its executable graph have released it, in another thread
    that may not call the driver.

    Source: CUDA programming guide, "CUDA User Objects"; documentation of cuUserObjectCreate. Seen on an H200.
    """
    library, destroyed, seen = ctypes.CDLL("libcuda.so.1"), threading.Event(), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def destroy(data: int) -> None:
        seen.append((data, library.cuCtxSynchronize(), threading.get_ident() == threading.main_thread().ident))
        destroyed.set()

    function = cuda.driver.CUhostFn(ctypes.cast(destroy, ctypes.c_void_p).value)
    made = cuda.cuUserObjectCreate(0x1234, function, 1, 1)
    graph = cuda.cuGraphCreate(0)
    cuda.cuGraphAddEmptyNode(graph, None, 0)
    cuda.cuGraphRetainUserObject(graph, made, 1, 0)
    run = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuUserObjectRelease(made, 1)
    cuda.cuGraphDestroy(graph)
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert not destroyed.is_set()
    cuda.cuGraphExecDestroy(run)
    assert destroyed.wait(30)
    assert seen == [(0x1234, 800, False)]


@on_driver()
def test_what_a_graph_does_not_free_is_freed_as_other_memory(cuda: Cuda) -> None:
    """Memory of an allocation node without a free node can be used after the launch, and cuMemFree frees it. A trim
    gives it back after the free only.

    Source: CUDA programming guide, "Graph memory nodes" (accessing and freeing graph memory outside of the allocating
    graph); graphMemoryFootprint of NVIDIA/cuda-samples. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    begin(cuda, stream)
    memory = cuda.cuMemAllocAsync(SIZE, stream)
    graph = cuda.cuStreamEndCapture(stream)
    run = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphLaunch(run, stream)
    cuda.launch("fill_f32", memory, 2.0, 16, stream=stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 15) == 2.0
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, USED) >= SIZE and figure(cuda, RESERVED) >= SIZE
    cuda.cuMemFree(memory)
    assert figure(cuda, USED) >= SIZE
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, USED) < SIZE and figure(cuda, RESERVED) < SIZE


@on_driver()
def test_a_launch_of_a_graph_is_refused_in_a_capture(cuda: Cuda) -> None:
    """cuGraphLaunch in a capturing stream returns 900, and the capture is lost. (So each launch of a graph is counted
    when its executable graph is launched.)

    Source: microsoft/onnxruntime pull request 32081 (measured by others on an H200 with driver 580); CUDA programming
    guide, "Invalidation" (the lost capture). Seen on an H200.
    """
    stream, memory = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuMemAlloc(4096)
    begin(cuda, stream)
    cuda.launch("work_f32", memory, 1, 0, 0, stream=stream)
    inner = cuda.cuGraphInstantiate(cuda.cuStreamEndCapture(stream), 0)
    begin(cuda, stream)
    assert cuda.code("cuGraphLaunch", inner, stream) == UNSUPPORTED
    assert cuda.code("cuStreamEndCapture", stream) == INVALIDATED


@on_driver()
def test_a_child_graph_has_its_launches(cuda: Cuda) -> None:
    """A child graph node has a copy of a graph, in which the launches can be counted.

    Source: documentation of cuGraphAddChildGraphNode and cuGraphChildGraphNodeGetGraph. Seen on an H200.
    """
    stream, memory = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8(memory, 0, 4096)
    cuda.cuCtxSynchronize()
    begin(cuda, stream)
    cuda.launch("work_f32", memory, 1, 0, 0, stream=stream)
    outer = cuda.cuGraphCreate(0)
    node = cuda.cuGraphAddChildGraphNode(outer, None, 0, cuda.cuStreamEndCapture(stream))
    assert types(cuda, outer) == [CHILD]
    assert types(cuda, cuda.cuGraphChildGraphNodeGetGraph(node)) == [KERNEL]
    cuda.cuGraphLaunch(cuda.cuGraphInstantiate(outer, 0), stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 0) == 1.0


@on_driver()
def test_an_update_changes_later_launches_only(cuda: Cuda) -> None:
    """cuGraphExecUpdate changes what later launches do, not what is submitted already.

    Source: documentation of cuGraphExecUpdate. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    one, two = cuda.cuMemAlloc(4096), cuda.cuMemAlloc(4096)
    graphs = []
    for memory in (one, two):
        cuda.cuMemsetD8(memory, 0, 4096)
        cuda.cuCtxSynchronize()
        begin(cuda, stream)
        cuda.launch("work_f32", memory, 1, 0, 0, stream=stream)
        graphs.append(cuda.cuStreamEndCapture(stream))
    run = cuda.cuGraphInstantiate(graphs[0], 0)
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.cuGraphLaunch(run, stream)
    assert int(cuda.cuGraphExecUpdate(run, graphs[1]).result) == 0
    cuda.cuGraphLaunch(run, stream)
    word.value = 1
    cuda.cuStreamSynchronize(stream)
    assert [cuda.read_f32(one, 0), cuda.read_f32(two, 0)] == [1.0, 1.0]


def fill_of(cuda: Cuda, memory: Any, value: float) -> Any:
    """Return the parameters of a node that fills 16 floats."""
    kernel = cuda.driver.CUDA_KERNEL_NODE_PARAMS()
    kernel.func = cuda.functions["fill_f32"]
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1
    kernel.blockDimX = 16
    kernel.kernelParams = ((int(memory), value, 16), (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64))
    return kernel


def filled(cuda: Cuda, run: Any, memory: Any) -> float:
    """Launch a graph, and return the last of the floats that it fills."""
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    return float(struct.unpack("16f", cuda.read(memory, 64))[-1])


@on_driver()
def test_the_kernel_of_an_executable_graph_changes(cuda: Cuda) -> None:
    """cuGraphExecKernelNodeSetParams changes later launches of an executable graph, and leaves the graph alone, whose
    node cuGraphKernelNodeSetParams changes.

    Source: documentation of these functions. Not yet seen on a card.
    """
    memory, graph = cuda.cuMemAlloc(64), cuda.cuGraphCreate(0)
    node = cuda.cuGraphAddKernelNode(graph, None, 0, fill_of(cuda, memory, 1))
    run = cuda.cuGraphInstantiate(graph, 0)
    assert filled(cuda, run, memory) == 1
    cuda.cuGraphExecKernelNodeSetParams(run, node, fill_of(cuda, memory, 2))
    assert filled(cuda, run, memory) == 2
    assert filled(cuda, cuda.cuGraphInstantiate(graph, 0), memory) == 1
    cuda.cuGraphKernelNodeSetParams(node, fill_of(cuda, memory, 3))
    assert filled(cuda, cuda.cuGraphInstantiate(graph, 0), memory) == 3
    empty = cuda.cuGraphAddEmptyNode(graph, None, 0)
    assert cuda.code("cuGraphExecKernelNodeSetParams", run, empty, fill_of(cuda, memory, 4)) == INVALID_VALUE
    assert cuda.code("cuGraphKernelNodeSetParams", empty, fill_of(cuda, memory, 4)) == INVALID_VALUE


@on_driver()
def test_the_child_of_an_executable_graph_changes(cuda: Cuda) -> None:
    """cuGraphExecChildGraphNodeSetParams gives a child graph of an executable graph the parameters of a graph with the
    same nodes. A graph with other nodes is refused.

    Source: documentation of cuGraphExecChildGraphNodeSetParams. Not yet seen on a card.
    """
    memory = cuda.cuMemAlloc(64)
    one, two, outer = (cuda.cuGraphCreate(0) for _ in range(3))
    cuda.cuGraphAddKernelNode(one, None, 0, fill_of(cuda, memory, 1))
    cuda.cuGraphAddKernelNode(two, None, 0, fill_of(cuda, memory, 2))
    node = cuda.cuGraphAddChildGraphNode(outer, None, 0, one)
    run = cuda.cuGraphInstantiate(outer, 0)
    assert filled(cuda, run, memory) == 1
    cuda.cuGraphExecChildGraphNodeSetParams(run, node, two)
    assert filled(cuda, run, memory) == 2
    cuda.cuGraphAddEmptyNode(two, None, 0)
    assert cuda.code("cuGraphExecChildGraphNodeSetParams", run, node, two) != 0
    assert filled(cuda, run, memory) == 2
