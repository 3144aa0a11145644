"""Tests of graphs on the simulated driver: nodes added by hand, child graphs, events, memory and updates."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from ..driver_facts.harness import MIB, NON_BLOCKING, Cuda, on_driver
from ..driver_facts.test_graphs import figure, types
from ..driver_facts.vmm import free_bytes, properties

THREAD_LOCAL = 1
EXTERNAL = 1
KERNEL, HOST, CHILD, EMPTY, WAIT_EVENT, RECORD_EVENT, ALLOC, FREE = 0, 3, 4, 5, 6, 7, 10, 11
USED, USED_HIGH, RESERVED, RESERVED_HIGH = range(4)


def capture(cuda: Cuda, stream: Any, *steps: Any) -> Any:
    cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(THREAD_LOCAL))
    for step in steps:
        step()
    return cuda.cuStreamEndCapture(stream)


def add_one(cuda: Cuda, memory: Any, stream: Any, count: int = 1) -> Any:
    return lambda: cuda.launch("work_f32", memory, count, 0, 0, stream=stream)


def zeroed(cuda: Cuda) -> Any:
    memory = cuda.cuMemAlloc(4096)
    cuda.cuMemsetD8(memory, 0, 4096)
    cuda.cuCtxSynchronize()
    return memory


def alloc_params(cuda: Cuda, size: int) -> Any:
    params = cuda.driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = cuda.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location = properties(cuda).location
    params.bytesize = size
    return params


@on_driver()
def test_nodes_added_by_hand(cuda: Cuda) -> None:
    memory, stream = zeroed(cuda), cuda.cuStreamCreate(NON_BLOCKING)
    values: list[float] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(_: int) -> None:
        values.append(ctypes.c_float.from_address(int(memory)).value)

    graph = cuda.cuGraphCreate(0)
    kernel = cuda.driver.CUDA_KERNEL_NODE_PARAMS()
    kernel.func = cuda.functions["work_f32"]
    kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ = 3, 1, 1
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1
    kernel.kernelParams = ((int(memory), 1, 0, 0), (ctypes.c_uint64,) * 4)
    first = cuda.cuGraphAddKernelNode(graph, None, 0, kernel)
    host = cuda.driver.CUDA_HOST_NODE_PARAMS()
    host.fn = cuda.driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    second = cuda.cuGraphAddHostNode(graph, [first], 1, host)
    cuda.cuGraphAddEmptyNode(graph, [second], 1)
    assert types(cuda, graph) == [KERNEL, HOST, EMPTY]
    assert int(cuda.cuGraphKernelNodeGetParams(first).gridDimX) == 3
    other = cuda.cuGraphCreate(0)
    assert cuda.code("cuGraphAddEmptyNode", other, [first], 1) == 1  # a node of another graph
    run = cuda.cuGraphInstantiate(graph, 0)
    for _ in range(2):
        cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert values == [1.0, 2.0]


@on_driver()
def test_child_graphs_are_copies(cuda: Cuda) -> None:
    memory, stream = zeroed(cuda), cuda.cuStreamCreate(NON_BLOCKING)
    inner = capture(cuda, stream, add_one(cuda, memory, stream))
    outer = cuda.cuGraphCreate(0)
    child = cuda.cuGraphAddChildGraphNode(outer, None, 0, inner)
    cuda.cuGraphAddChildGraphNode(outer, [child], 1, inner)
    assert types(cuda, outer) == [CHILD, CHILD]
    assert types(cuda, cuda.cuGraphChildGraphNodeGetGraph(child)) == [KERNEL]
    cuda.cuGraphDestroy(inner)
    run = cuda.cuGraphInstantiate(cuda.cuGraphClone(outer), 0)
    cuda.cuGraphDestroy(outer)
    cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 0) == 2.0


@on_driver()
def test_events_inside_graphs(cuda: Cuda) -> None:
    memory = zeroed(cuda)
    first, second = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    event, started = cuda.cuEventCreate(2), cuda.cuEventCreate(2)
    recording = capture(
        cuda,
        first,
        lambda: cuda.launch("wait_flag", flag, 1, stream=first),
        lambda: cuda.cuEventRecordWithFlags(event, first, EXTERNAL),
    )
    waiting = cuda.cuGraphCreate(0)
    cuda.cuGraphAddEventWaitNode(waiting, None, 0, event)
    cuda.cuGraphAddEventRecordNode(waiting, None, 0, started)
    assert types(cuda, recording) == [KERNEL, RECORD_EVENT] and types(cuda, waiting) == [WAIT_EVENT, RECORD_EVENT]
    runs = [cuda.cuGraphInstantiate(graph, 0) for graph in (recording, waiting)]
    cuda.cuGraphLaunch(runs[0], first)
    assert cuda.code("cuEventQuery", event) == 600
    cuda.cuGraphLaunch(runs[1], second)
    add_one(cuda, memory, second)()
    time.sleep(0.05)
    assert not cuda.is_done(second) and cuda.code("cuEventQuery", started) == 600
    cuda.cuEventDestroy(event)  # the graphs keep the event
    word.value = 1
    cuda.cuStreamSynchronize(second)
    assert cuda.code("cuEventQuery", started) == 0


@on_driver()
def test_memory_that_a_graph_does_not_free_outlives_the_graph(cuda: Cuda) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    before = free_bytes(cuda)
    graph = cuda.cuGraphCreate(0)
    params = alloc_params(cuda, 4 * MIB)
    node = cuda.cuGraphAddMemAllocNode(graph, None, 0, params)
    address = int(params.dptr)
    assert types(cuda, graph) == [ALLOC]
    assert int(cuda.cuGraphMemAllocNodeGetParams(node).bytesize) == 4 * MIB
    run = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphUpload(run, stream)
    assert figure(cuda, RESERVED) == 4 * MIB and figure(cuda, USED) == 0
    cuda.cuGraphLaunch(run, stream)
    cuda.launch("fill_f32", address, 6.0, MIB, stream=stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuGraphExecDestroy(run)
    cuda.cuGraphDestroy(graph)
    assert cuda.read_f32(address, MIB - 1) == 6.0
    assert figure(cuda, USED) == 4 * MIB
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert free_bytes(cuda) == before - 4 * MIB
    cuda.cuMemFree(address)
    assert cuda.code("cuMemFree", address) == 1
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert free_bytes(cuda) == before


@on_driver()
def test_a_free_node_of_another_graph_and_a_free_in_a_stream(cuda: Cuda) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    graphs = [cuda.cuGraphCreate(0) for _ in range(2)]
    params = alloc_params(cuda, 4 * MIB)
    cuda.cuGraphAddMemAllocNode(graphs[0], None, 0, params)
    free = cuda.cuGraphAddMemFreeNode(graphs[1], None, 0, params.dptr)
    assert int(cuda.cuGraphMemFreeNodeGetParams(free)) == int(params.dptr)
    runs = [cuda.cuGraphInstantiate(graph, 0) for graph in graphs]
    for _ in range(2):
        for run in runs:
            cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, USED) == figure(cuda, RESERVED) == 0
    cuda.cuGraphLaunch(runs[0], stream)
    cuda.cuMemFreeAsync(params.dptr, stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, USED) == figure(cuda, RESERVED) == 0
    assert cuda.code("cuGraphAddMemFreeNode", graphs[1], None, 0, 4096) == 1


@on_driver(GPUSHARE_SIM_MEMORY="64MiB")
def test_a_launch_without_room_for_its_memory_is_refused(cuda: Cuda) -> None:
    graph = cuda.cuGraphCreate(0)
    for size in (30 * MIB, 30 * MIB):
        cuda.cuGraphAddMemAllocNode(graph, None, 0, alloc_params(cuda, size))
    run = cuda.cuGraphInstantiate(graph, 0)
    assert cuda.code("cuGraphLaunch", run, 0) == 2
    cuda.cuDeviceGraphMemTrim(cuda.device)
    assert figure(cuda, RESERVED) == 0


@on_driver()
def test_an_update_to_another_shape_is_refused(cuda: Cuda) -> None:
    one, two = zeroed(cuda), zeroed(cuda)
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    run = cuda.cuGraphInstantiate(capture(cuda, stream, add_one(cuda, one, stream)), 0)
    longer = capture(cuda, stream, add_one(cuda, two, stream), add_one(cuda, two, stream))
    other_kind = capture(cuda, stream, lambda: cuda.cuMemsetD8Async(two, 0, 16, stream))
    library, outcome = ctypes.CDLL("libcuda.so.1"), (ctypes.c_uint64 * 3)()
    for graph, expected in ((longer, 2), (other_kind, 3)):
        handles = ctypes.c_void_p(int(run)), ctypes.c_void_p(int(graph))
        assert library.cuGraphExecUpdate_v2(*handles, outcome) == 910
        assert outcome[0] & 0xFFFFFFFF == expected


@on_driver()
def test_every_way_to_instantiate(cuda: Cuda) -> None:
    memory, stream = zeroed(cuda), cuda.cuStreamCreate(NON_BLOCKING)
    library = ctypes.CDLL("libcuda.so.1")
    graph = capture(cuda, stream, add_one(cuda, memory, stream))
    handle = ctypes.c_void_p(int(graph))
    runs = []
    for symbol, arguments in (
        ("cuGraphInstantiate", (None, None, ctypes.c_size_t(0))),
        ("cuGraphInstantiate_v2", (None, None, ctypes.c_size_t(0))),
        ("cuGraphInstantiateWithFlags", (ctypes.c_ulonglong(1),)),
    ):
        run = ctypes.c_void_p()
        assert getattr(library, symbol)(ctypes.byref(run), handle, *arguments) == 0
        runs.append(cuda.driver.CUgraphExec(run.value))
    params = cuda.driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    params.flags, params.hUploadStream = 2, stream
    runs.append(cuda.cuGraphInstantiateWithParams(graph, params))
    assert [int(cuda.cuGraphExecGetFlags(run)) for run in runs] == [0, 0, 1, 2]
    for run in runs:
        cuda.cuGraphLaunch(run, stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(memory, 0) == 4.0
