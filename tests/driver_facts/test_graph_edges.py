"""Facts about the edges of graphs, and about captures whose edges a program changes (see test_facts.py)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from .harness import NON_BLOCKING, Cuda, on_driver
from .test_facts import THREAD_LOCAL
from .test_graphs import begin

SET_DEPENDENCIES = 1
INVALID_VALUE = 1
ILLEGAL_STATE = 401
UNJOINED = 904


def nodes(cuda: Cuda, graph: Any) -> list[int]:
    _, count = cuda.cuGraphGetNodes(graph)
    return [int(node) for node in cuda.cuGraphGetNodes(graph, count)[0]] if count else []


def dependencies(cuda: Cuda, node: int) -> list[int]:
    handle = cuda.driver.CUgraphNode(node)
    count = cuda.cuGraphNodeGetDependencies(handle)[2]
    return [int(each) for each in cuda.cuGraphNodeGetDependencies(handle, count)[0]] if count else []


def dependent_nodes(cuda: Cuda, node: Any) -> list[int]:
    count = cuda.cuGraphNodeGetDependentNodes(node)[2]
    return sorted(int(each) for each in cuda.cuGraphNodeGetDependentNodes(node, count)[0]) if count else []


def launch(cuda: Cuda, stream: Any) -> None:
    cuda.launch("spin", 0, stream=stream)


@on_driver()
def test_a_captured_node_depends_on_the_one_before(cuda: Cuda) -> None:
    """The dependencies of nodes of one stream are the order in which they were captured.

    Source: documentation of cuStreamBeginCapture and cuGraphNodeGetDependencies. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    begin(cuda, stream)
    for _ in range(3):
        launch(cuda, stream)
    graph = cuda.cuStreamEndCapture(stream)
    found = {node: dependencies(cuda, node) for node in nodes(cuda, graph)}
    (root,) = [node for node, before in found.items() if not before]
    (second,) = [node for node, before in found.items() if before == [root]]
    assert [before for node, before in found.items() if node not in (root, second)] == [[second]]


@on_driver()
def test_a_program_sets_the_dependencies_of_the_next_captured_node(cuda: Cuda) -> None:
    """cuStreamUpdateCaptureDependencies decides on which nodes the next captured node depends. Outside of a capture it
    returns 401.

    Source: documentation of cuStreamUpdateCaptureDependencies. Seen on an H200.
    """
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    assert cuda.code("cuStreamUpdateCaptureDependencies", stream, None, None, 0, 0) == ILLEGAL_STATE
    begin(cuda, stream)
    launch(cuda, stream)
    graph = cuda.cuStreamGetCaptureInfo(stream)[2]
    (first,) = nodes(cuda, graph)
    launch(cuda, stream)
    cuda.cuStreamUpdateCaptureDependencies(stream, [cuda.driver.CUgraphNode(first)], None, 1, SET_DEPENDENCIES)
    launch(cuda, stream)
    graph = cuda.cuStreamEndCapture(stream)
    assert sorted(dependencies(cuda, node) for node in nodes(cuda, graph)) == [[], [first], [first]]


@on_driver()
def test_a_capture_adds_to_a_graph_of_the_program(cuda: Cuda) -> None:
    """cuStreamBeginCaptureToGraph captures into the graph behind the given nodes, and cuStreamEndCapture returns that
    graph. cuGraphAddNode adds a node of any kind.

    Source: documentation of cuStreamBeginCaptureToGraph and cuGraphAddNode. Seen on an H200.
    """
    stream, graph = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuGraphCreate(0)
    parameters = cuda.driver.CUgraphNodeParams()
    parameters.type = cuda.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY
    first, other = (cuda.cuGraphAddNode(graph, None, None, 0, parameters) for _ in range(2))
    mode = cuda.driver.CUstreamCaptureMode(THREAD_LOCAL)
    cuda.cuStreamBeginCaptureToGraph(stream, graph, [first, other], None, 2, mode)
    launch(cuda, stream)
    assert int(cuda.cuStreamEndCapture(stream)) == int(graph)
    captured = [dependencies(cuda, node) for node in nodes(cuda, graph) if node not in (int(first), int(other))]
    assert [sorted(before) for before in captured] == [sorted((int(first), int(other)))]
    cuda.cuGraphLaunch(cuda.cuGraphInstantiate(graph, 0), stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_graph_lists_its_edges_with_their_data(cuda: Cuda) -> None:
    """cuGraphGetEdges returns the number of edges, or the edges with their data, which is zero for ordinary edges.
    Places beyond the edges become NULL.

    Source: documentation of cuGraphGetEdges and CUgraphEdgeData. Seen on an H200.
    """
    graph = cuda.cuGraphCreate(0)
    assert int(cuda.cuGraphGetEdges(graph)[3]) == 0
    first = cuda.cuGraphAddEmptyNode(graph, None, 0)
    second = cuda.cuGraphAddEmptyNode(graph, [first], 1)
    third = cuda.cuGraphAddEmptyNode(graph, [first, second], 2)
    assert int(cuda.cuGraphGetEdges(graph)[3]) == 3
    before, after, data, count = cuda.cuGraphGetEdges(graph, 4)
    expected = {(int(first), int(second)), (int(first), int(third)), (int(second), int(third))}
    assert int(count) == 3
    assert {(int(one), int(other)) for one, other in zip(before[:3], after[:3], strict=True)} == expected
    assert [(edge.from_port, edge.to_port, edge.type) for edge in data[:3]] == [(0, 0, 0)] * 3
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_graph_lists_its_roots(cuda: Cuda) -> None:
    """cuGraphGetRootNodes returns the nodes without dependencies, and NULL in places beyond those.

    Source: documentation of cuGraphGetRootNodes. Not yet seen on a card.
    """
    graph = cuda.cuGraphCreate(0)
    first, second = (cuda.cuGraphAddEmptyNode(graph, None, 0) for _ in range(2))
    cuda.cuGraphAddEmptyNode(graph, [first], 1)
    assert int(cuda.cuGraphGetRootNodes(graph)[1]) == 2
    found, count = cuda.cuGraphGetRootNodes(graph, 3)
    assert (int(count), sorted(map(int, found))) == (2, sorted((0, int(first), int(second))))
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_node_has_dependent_nodes(cuda: Cuda) -> None:
    """cuGraphNodeGetDependentNodes returns the nodes that depend on a node, and NULL in places beyond those.

    Source: documentation of cuGraphNodeGetDependentNodes. Not yet seen on a card.
    """
    graph = cuda.cuGraphCreate(0)
    first = cuda.cuGraphAddEmptyNode(graph, None, 0)
    second = cuda.cuGraphAddEmptyNode(graph, [first], 1)
    third = cuda.cuGraphAddEmptyNode(graph, [first, second], 2)
    assert [dependent_nodes(cuda, node) for node in (first, second, third)] == [
        sorted((int(second), int(third))),
        [int(third)],
        [],
    ]
    found, _, count = cuda.cuGraphNodeGetDependentNodes(second, 2)
    assert (int(count), [int(node) for node in found]) == (1, [int(third), 0])
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_destroyed_node_leaves_its_graph_with_its_edges(cuda: Cuda) -> None:
    """cuGraphDestroyNode removes a node and its edges, and an executable graph that was made before keeps the node.

    Source: documentation of cuGraphDestroyNode and cuGraphInstantiate. Not yet seen on a card.
    """
    stream, graph = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuGraphCreate(0)
    array = cuda.cuMemAlloc(4096)
    parameters = cuda.driver.CUDA_MEMSET_NODE_PARAMS()
    parameters.dst, parameters.value, parameters.elementSize = array, 7, 1
    parameters.width, parameters.height = 4096, 1
    first = cuda.cuGraphAddEmptyNode(graph, None, 0)
    second = cuda.cuGraphAddMemsetNode(graph, [first], 1, parameters, cuda.cuCtxGetCurrent())
    third = cuda.cuGraphAddEmptyNode(graph, [second], 1)
    executable = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphDestroyNode(second)
    assert nodes(cuda, graph) == [int(first), int(third)]
    assert dependencies(cuda, int(third)) == dependent_nodes(cuda, first) == []
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read(array, 4096) == b"\7" * 4096
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_graph_with_allocation_nodes_keeps_its_nodes(cuda: Cuda) -> None:
    """cuGraphDestroyNode returns an error for any node of a graph with allocation or free nodes.

    Source: documentation of cuGraphDestroyNode. Not yet seen on a card.
    """
    graph = cuda.cuGraphCreate(0)
    empty = cuda.cuGraphAddEmptyNode(graph, None, 0)
    parameters = cuda.driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    parameters.poolProps.allocType = cuda.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    parameters.poolProps.location.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    parameters.bytesize = 4096
    cuda.cuGraphAddMemAllocNode(graph, None, 0, parameters)
    assert cuda.code("cuGraphDestroyNode", empty) != 0
    assert int(empty) in nodes(cuda, graph)
    cuda.cuGraphDestroy(graph)


@on_driver()
def test_a_joined_stream_is_destroyed_during_its_capture(cuda: Cuda) -> None:
    """A capture goes on after a stream of it is destroyed, if another stream has waited for the last work of that
    stream.

    Source: NVIDIA/cuda-python, test_graph_fork_join of cuda.core, which passes on cards (not measured here). Not yet
    seen on a card.
    """
    origin, other = (cuda.cuStreamCreate(NON_BLOCKING) for _ in range(2))
    fork, join = (cuda.cuEventCreate(0) for _ in range(2))
    begin(cuda, origin)
    launch(cuda, origin)
    cuda.cuEventRecord(fork, origin)
    cuda.cuStreamWaitEvent(other, fork, 0)
    launch(cuda, other)
    cuda.cuEventRecord(join, other)
    cuda.cuStreamWaitEvent(origin, join, 0)
    cuda.cuStreamDestroy(other)
    launch(cuda, origin)
    graph = cuda.cuStreamEndCapture(origin)
    assert len(nodes(cuda, graph)) == 3


@on_driver()
def test_a_destroyed_stream_leaves_its_events_to_no_other_stream(cuda: Cuda) -> None:
    """A second wait for an event of a destroyed stream joins no later stream, so the capture is unjoined (904).

    Source: documentation of cuStreamEndCapture and cuStreamWaitEvent. Not yet seen on a card.
    """
    origin, other = (cuda.cuStreamCreate(NON_BLOCKING) for _ in range(2))
    fork, join = (cuda.cuEventCreate(0) for _ in range(2))
    begin(cuda, origin)
    cuda.cuEventRecord(fork, origin)
    cuda.cuStreamWaitEvent(other, fork, 0)
    launch(cuda, other)
    cuda.cuEventRecord(join, other)
    cuda.cuStreamWaitEvent(origin, join, 0)
    cuda.cuStreamDestroy(other)
    later = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuStreamWaitEvent(later, fork, 0)
    launch(cuda, later)
    cuda.cuStreamWaitEvent(origin, join, 0)
    assert cuda.code("cuStreamEndCapture", origin) == UNJOINED


@on_driver()
def test_a_destroyed_node_is_no_node(cuda: Cuda) -> None:
    """Calls for a node that has been destroyed, alone or with its graph, return an error.

    Source: documentation of cuGraphDestroyNode, which returns CUDA_ERROR_INVALID_VALUE. Not yet seen on a card.
    """
    graph = cuda.cuGraphCreate(0)
    first, second = (cuda.cuGraphAddEmptyNode(graph, None, 0) for _ in range(2))
    cuda.cuGraphDestroyNode(first)
    assert cuda.code("cuGraphDestroyNode", first) == INVALID_VALUE
    assert cuda.code("cuGraphNodeGetType", first) == INVALID_VALUE
    assert nodes(cuda, graph) == [int(second)]
    cuda.cuGraphDestroy(graph)
    assert cuda.code("cuGraphDestroyNode", second) == INVALID_VALUE


@on_driver()
def test_a_program_adds_edges_and_removes_them(cuda: Cuda) -> None:
    """An edge makes a node run after the other one. An edge that exists cannot be added, and no other can be removed.

    Source: documentation of cuGraphAddDependencies and cuGraphRemoveDependencies. Not yet seen on a card.
    """
    stream, graph, array = cuda.cuStreamCreate(NON_BLOCKING), cuda.cuGraphCreate(0), cuda.cuMemAlloc(4096)
    parameters = cuda.driver.CUDA_MEMSET_NODE_PARAMS()
    parameters.dst, parameters.elementSize, parameters.width, parameters.height = array, 1, 4096, 1
    context, sets = cuda.cuCtxGetCurrent(), []
    for value in (1, 2):
        parameters.value = value
        sets.append(cuda.cuGraphAddMemsetNode(graph, None, 0, parameters, context))
    first, second = sets
    cuda.cuGraphAddDependencies(graph, [second], [first], None, 1)
    assert dependencies(cuda, int(first)) == [int(second)]
    assert cuda.code("cuGraphAddDependencies", graph, [second], [first], None, 1) == INVALID_VALUE
    cuda.cuGraphLaunch(cuda.cuGraphInstantiate(graph, 0), stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read(array, 4096) == b"\1" * 4096
    cuda.cuGraphRemoveDependencies(graph, [second], [first], None, 1)
    assert dependencies(cuda, int(first)) == []
    assert cuda.code("cuGraphRemoveDependencies", graph, [second], [first], None, 1) == INVALID_VALUE


@on_driver()
def test_a_graph_is_described_in_a_file(cuda: Cuda) -> None:
    """cuGraphDebugDotPrint writes the graph in the language DOT.

    Source: documentation of cuGraphDebugDotPrint. Not yet seen on a card.
    """
    graph = cuda.cuGraphCreate(0)
    first = cuda.cuGraphAddEmptyNode(graph, None, 0)
    cuda.cuGraphAddEmptyNode(graph, [first], 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        cuda.cuGraphDebugDotPrint(graph, str(path).encode(), 0)
        text = path.read_text()
        assert cuda.code("cuGraphDebugDotPrint", graph, f"{folder}/absent/graph.dot".encode(), 0) != 0
    assert text.startswith("digraph") and text.count("->") == 1
