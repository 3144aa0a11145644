"""Facts about nodes of graphs that copy and set memory (see test_facts.py)."""

from __future__ import annotations

import struct
from typing import Any

from .harness import NON_BLOCKING, Cuda, on_driver
from .test_graph_edges import nodes
from .test_graphs import begin, types

MEMCPY, MEMSET = 1, 2
INVALID_VALUE = 1
ROW, ROWS, LAYERS, PITCH = 8, 2, 2, 16  # bytes in a row, rows in a layer, layers, bytes from row to row


def run(cuda: Cuda, graph: Any) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuGraphLaunch(cuda.cuGraphInstantiate(graph, 0), stream)
    cuda.cuStreamSynchronize(stream)


def set_of(cuda: Cuda, address: Any, value: int, width: int) -> Any:
    parameters = cuda.driver.CUDA_MEMSET_NODE_PARAMS()
    parameters.dst, parameters.value, parameters.elementSize = address, value, 4
    parameters.width, parameters.height = width, 1
    return parameters


def layers(cuda: Cuda, target: Any, source: Any) -> Any:
    """Return a copy of dense layers of rows into layers whose rows and layers have gaps."""
    copy = cuda.driver.CUDA_MEMCPY3D()
    device = cuda.driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight = device, source, ROW, ROWS
    copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight = device, target, PITCH, ROWS + 1
    copy.WidthInBytes, copy.Height, copy.Depth = ROW, ROWS, LAYERS
    return copy


def memory(cuda: Cuda, content: bytes) -> Any:
    address = cuda.cuMemAlloc(4096)
    cuda.cuMemcpyHtoD(address, content.ljust(4096, b"\0"), 4096)
    return address


def expected(content: bytes) -> bytes:
    rows = [content[at : at + ROW].ljust(PITCH, b"\0") for at in range(0, len(content), ROW)]
    layer_bytes = PITCH * (ROWS + 1)
    return b"".join(b"".join(rows[at : at + ROWS]).ljust(layer_bytes, b"\0") for at in range(0, len(rows), ROWS))


@on_driver()
def test_a_node_sets_memory_at_each_launch(cuda: Cuda) -> None:
    """cuGraphAddMemsetNode adds a node that sets memory when the graph is launched. cuGraphMemsetNodeSetParams changes
    the node for later instantiations.

    Source: documentation of cuGraphAddMemsetNode, cuGraphMemsetNodeGetParams and cuGraphMemsetNodeSetParams. Seen
    on an H200.
    """
    address, graph = memory(cuda, b""), cuda.cuGraphCreate(0)
    node = cuda.cuGraphAddMemsetNode(graph, None, 0, set_of(cuda, address, 7, 3), cuda.context)
    assert types(cuda, graph) == [MEMSET]
    assert struct.unpack("4I", cuda.read(address, 16)) == (0, 0, 0, 0)
    run(cuda, graph)
    assert struct.unpack("4I", cuda.read(address, 16)) == (7, 7, 7, 0)
    found = cuda.cuGraphMemsetNodeGetParams(node)
    assert (int(found.dst), found.value, found.elementSize, found.width, found.height) == (int(address), 7, 4, 3, 1)
    cuda.cuGraphMemsetNodeSetParams(node, set_of(cuda, address, 9, 2))
    run(cuda, graph)
    assert struct.unpack("4I", cuda.read(address, 16)) == (9, 9, 7, 0)
    three = set_of(cuda, address, 1, 1)
    three.elementSize = 3
    assert cuda.code("cuGraphAddMemsetNode", graph, None, 0, three, cuda.context) == INVALID_VALUE


@on_driver()
def test_a_node_copies_layers_at_each_launch(cuda: Cuda) -> None:
    """cuGraphAddMemcpyNode adds one node that copies rows and layers when the graph is launched, and
    cuGraphMemcpyNodeSetParams changes the node. cuGraphAddNode adds such nodes as well.

    Source: documentation of cuGraphAddMemcpyNode, cuGraphMemcpyNodeSetParams and cuGraphAddNode. Seen on an H200.
    """
    content = bytes(range(1, ROW * ROWS * LAYERS + 1))
    source, target, graph = memory(cuda, content), memory(cuda, b""), cuda.cuGraphCreate(0)
    other = memory(cuda, content[::-1])
    node = cuda.cuGraphAddMemcpyNode(graph, None, 0, layers(cuda, target, source), cuda.context)
    assert types(cuda, graph) == [MEMCPY]
    run(cuda, graph)
    assert cuda.read(target, len(expected(content))) == expected(content)
    cuda.cuGraphMemcpyNodeSetParams(node, layers(cuda, target, other))
    parameters = cuda.driver.CUgraphNodeParams()
    parameters.type = cuda.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    zeros = cuda.driver.CUDA_MEMSET_NODE_PARAMS_v2()
    zeros.dst, zeros.elementSize, zeros.width, zeros.height = other, 1, len(content), 1
    zeros.ctx = cuda.context
    parameters.memset = zeros
    cuda.cuGraphAddNode(graph, [node], None, 1, parameters)
    assert sorted(types(cuda, graph)) == [MEMCPY, MEMSET]
    run(cuda, graph)
    assert cuda.read(target, len(expected(content))) == expected(content[::-1])
    assert cuda.read(other, len(content)) == bytes(len(content))


@on_driver()
def test_a_node_without_a_context_runs_in_the_current_one(cuda: Cuda) -> None:
    """cuGraphAddNode adds a set node whose parameters name no context.

    Source: NVIDIA/cuda-python, test_graph_poly of cuda.bindings, which passes on cards (not measured here). Not yet
    seen on a card.
    """
    address, graph = memory(cuda, b""), cuda.cuGraphCreate(0)
    parameters, bytes_of_one = cuda.driver.CUgraphNodeParams(), cuda.driver.CUDA_MEMSET_NODE_PARAMS_v2()
    parameters.type = cuda.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    bytes_of_one.dst, bytes_of_one.elementSize, bytes_of_one.value = address, 1, 1
    bytes_of_one.width, bytes_of_one.height = 4, 1
    parameters.memset = bytes_of_one
    cuda.cuGraphAddNode(graph, None, None, 0, parameters)
    run(cuda, graph)
    assert cuda.read(address, 4) == b"\1" * 4


def linear(cuda: Cuda, target: Any, source: Any, size: int) -> Any:
    copy = layers(cuda, target, source)
    copy.WidthInBytes, copy.Height, copy.Depth = size, 1, 1
    copy.srcPitch = copy.srcHeight = copy.dstPitch = copy.dstHeight = 0
    return copy


@on_driver()
def test_the_parameters_of_a_copy_node_are_returned(cuda: Cuda) -> None:
    """cuGraphMemcpyNodeGetParams returns parameters with which another node copies the same.

    Source: documentation of cuGraphMemcpyNodeGetParams. Seen on an H200.
    """
    content = bytes(range(1, ROW * ROWS * LAYERS + 1))
    source, target, graph = memory(cuda, content), memory(cuda, b""), cuda.cuGraphCreate(0)
    node = cuda.cuGraphAddMemcpyNode(graph, None, 0, layers(cuda, target, source), cuda.context)
    found = cuda.cuGraphMemcpyNodeGetParams(node)
    assert (int(found.srcDevice), int(found.dstDevice)) == (int(source), int(target))
    assert (found.WidthInBytes, found.Height, found.Depth) == (ROW, ROWS, LAYERS)
    second = cuda.cuGraphCreate(0)
    again = cuda.cuGraphAddMemcpyNode(second, None, 0, found, cuda.context)
    run(cuda, second)
    assert cuda.read(target, len(expected(content))) == expected(content)
    other = set_of(cuda, target, 0, 1)
    assert cuda.code("cuGraphMemcpyNodeGetParams", cuda.cuGraphAddEmptyNode(second, [again], 1)) == INVALID_VALUE
    assert cuda.code("cuGraphMemsetNodeSetParams", again, other) == INVALID_VALUE


@on_driver()
def test_nodes_of_an_executable_graph_change(cuda: Cuda) -> None:
    """cuGraphExecMemcpyNodeSetParams and cuGraphExecMemsetNodeSetParams change later launches of an executable graph,
    and leave the graph alone. A copy of several rows cannot change.

    Source: documentation of these functions. Seen on an H200.
    """
    source, target, graph = memory(cuda, b"before"), memory(cuda, b""), cuda.cuGraphCreate(0)
    other, stream = memory(cuda, b"after!"), cuda.cuStreamCreate(NON_BLOCKING)
    copy = cuda.cuGraphAddMemcpyNode(graph, None, 0, linear(cuda, target, source, 8), cuda.context)
    fill = cuda.cuGraphAddMemsetNode(graph, [copy], 1, set_of(cuda, int(target) + 8, 1, 1), cuda.context)
    rows = cuda.cuGraphAddMemcpyNode(graph, [fill], 1, layers(cuda, int(target) + 1024, source), cuda.context)
    executable = cuda.cuGraphInstantiate(graph, 0)

    def launched(made: Any) -> tuple[bytes, int]:
        cuda.cuGraphLaunch(made, stream)
        cuda.cuStreamSynchronize(stream)
        return cuda.read(target, 6), cuda.read(target, 9)[8]

    assert launched(executable) == (b"before", 1)
    cuda.cuGraphExecMemcpyNodeSetParams(executable, copy, linear(cuda, target, other, 8), cuda.context)
    cuda.cuGraphExecMemsetNodeSetParams(executable, fill, set_of(cuda, int(target) + 8, 2, 1), cuda.context)
    assert launched(executable) == (b"after!", 2)
    assert launched(cuda.cuGraphInstantiate(graph, 0)) == (b"before", 1)
    name = "cuGraphExecMemcpyNodeSetParams"
    assert cuda.code(name, executable, rows, linear(cuda, target, other, 8), cuda.context) == INVALID_VALUE
    assert cuda.code(name, executable, copy, layers(cuda, target, other), cuda.context) == INVALID_VALUE
    assert cuda.code(name, executable, fill, linear(cuda, target, other, 8), cuda.context) == INVALID_VALUE


@on_driver()
def test_a_captured_copy_of_layers_is_one_node(cuda: Cuda) -> None:
    """cuMemcpy3DAsync in a capture makes one copy node, whatever the number of layers.

    Source: documentation of cuStreamBeginCapture and cuGraphAddMemcpyNode. Seen on an H200.
    """
    content = bytes(range(1, ROW * ROWS * LAYERS + 1))
    source, target, stream = memory(cuda, content), memory(cuda, b""), cuda.cuStreamCreate(NON_BLOCKING)
    begin(cuda, stream)
    cuda.cuMemcpy3DAsync(layers(cuda, target, source), stream)
    graph = cuda.cuStreamEndCapture(stream)
    assert len(nodes(cuda, graph)) == 1 and types(cuda, graph) == [MEMCPY]
    run(cuda, graph)
    assert cuda.read(target, len(expected(content))) == expected(content)
