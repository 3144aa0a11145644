"""Facts about conditional nodes of graphs (see test_facts.py). The default value of a handle decides what runs."""

from __future__ import annotations

from typing import Any

from .harness import NON_BLOCKING, Cuda, on_driver
from .test_graphs import types
from .test_transfer_nodes import memory, run, set_of

CONDITIONAL, MEMSET = 13, 2
ASSIGN_DEFAULT = 1
IF, WHILE, SWITCH = 0, 1, 2
INVALID_VALUE, NOT_SUPPORTED = 1, 801


def handle_of(cuda: Cuda, graph: Any, value: int) -> Any:
    return cuda.cuGraphConditionalHandleCreate(graph, cuda.context, value, ASSIGN_DEFAULT)


def parameters(cuda: Cuda, handle: Any, kind: int, size: int) -> Any:
    made = cuda.driver.CUgraphNodeParams()
    made.type = cuda.driver.CUgraphNodeType(CONDITIONAL)
    made.conditional.handle, made.conditional.size, made.conditional.ctx = handle, size, cuda.context
    made.conditional.type = cuda.driver.CUgraphConditionalNodeType(kind)
    return made


def add_node(cuda: Cuda, graph: Any, node: Any) -> Any:
    """Add a node without dependencies."""
    return cuda.cuGraphAddNode(graph, None, None, 0, node)


def add_conditional(cuda: Cuda, graph: Any, value: int, kind: int, size: int = 1) -> list[Any]:
    """Add a conditional node whose condition has the value at each launch, and return its bodies."""
    node = parameters(cuda, handle_of(cuda, graph, value), kind, size)
    add_node(cuda, graph, node)
    return list(node.conditional.phGraph_out[:size])


def numbers_after(cuda: Cuda, value: int, kind: int, size: int) -> list[int]:
    """Run a node whose body i writes i + 1 to the word i, and return the words."""
    address, graph = memory(cuda, b""), cuda.cuGraphCreate(0)
    for index, body in enumerate(add_conditional(cuda, graph, value, kind, size)):
        cuda.cuGraphAddMemsetNode(body, None, 0, set_of(cuda, int(address) + 4 * index, index + 1, 1), cuda.context)
    run(cuda, graph)
    data = cuda.read(address, 4 * size)
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


@on_driver()
def test_the_value_of_the_condition_chooses_the_body(cuda: Cuda) -> None:
    """An if node runs body 0 for any value but 0, and body 1, if there is one, for 0. A switch node runs the body of
    the value, or none. A while node runs its body as long as the value is not 0.

    Source: documentation of CUDA_CONDITIONAL_NODE_PARAMS. Seen on an H200.
    """
    assert [numbers_after(cuda, value, IF, 1) for value in (0, 1, 7)] == [[0], [1], [1]]
    assert [numbers_after(cuda, value, IF, 2) for value in (0, 7)] == [[0, 2], [1, 0]]
    assert [numbers_after(cuda, value, SWITCH, 3) for value in (0, 2, 3)] == [[1, 0, 0], [0, 0, 3], [0, 0, 0]]
    assert numbers_after(cuda, 0, WHILE, 1) == [0]


@on_driver()
def test_bodies_hold_conditionals_and_captures(cuda: Cuda) -> None:
    """A body may contain a conditional node, with a handle of the graph, and work that is captured into the body.

    Source: documentation of CUDA_CONDITIONAL_NODE_PARAMS and cuGraphConditionalHandleCreate. Seen on an H200.
    """
    address, graph, stream = memory(cuda, b""), cuda.cuGraphCreate(0), cuda.cuStreamCreate(NON_BLOCKING)
    (outer,) = add_conditional(cuda, graph, 1, IF)
    node = parameters(cuda, handle_of(cuda, graph, 1), IF, 1)
    add_node(cuda, outer, node)
    (inner,) = node.conditional.phGraph_out[:1]
    mode = cuda.driver.CUstreamCaptureMode(1)
    cuda.cuStreamBeginCaptureToGraph(stream, inner, None, None, 0, mode)
    cuda.launch("work_f32", address, 1, 0, 0, stream=stream)
    cuda.cuStreamEndCapture(stream)
    assert types(cuda, graph) == types(cuda, outer) == [CONDITIONAL]
    run(cuda, graph)
    assert cuda.read_f32(address, 0) == 1.0


@on_driver()
def test_invalid_conditional_nodes_are_refused(cuda: Cuda) -> None:
    """A while node has one body, an if node one or two. A graph with a conditional node is no child of another graph
    and has no clone.

    Source: documentation of CUDA_CONDITIONAL_NODE_PARAMS, cuGraphAddChildGraphNode and cuGraphClone. Seen on an
    H200.
    """
    graph = cuda.cuGraphCreate(0)
    handle = handle_of(cuda, graph, 1)
    for kind, size in ((IF, 0), (IF, 3), (WHILE, 2), (SWITCH, 0)):
        made = parameters(cuda, handle, kind, size)
        assert cuda.code("cuGraphAddNode", graph, None, None, 0, made) == INVALID_VALUE, (kind, size)
    assert cuda.code("cuGraphConditionalHandleCreate", graph, cuda.context, 0, 2) == INVALID_VALUE
    add_conditional(cuda, graph, 1, IF)
    codes = [
        cuda.code("cuGraphAddChildGraphNode", cuda.cuGraphCreate(0), None, 0, graph),
        cuda.code("cuGraphClone", graph),
    ]
    assert codes == [NOT_SUPPORTED, NOT_SUPPORTED]


@on_driver()
def test_an_update_changes_a_body(cuda: Cuda) -> None:
    """cuGraphExecUpdate changes parameters in bodies and the default value of a handle.

    Source: documentation of cuGraphExecUpdate. Seen on an H200.
    """
    address, stream = memory(cuda, b""), cuda.cuStreamCreate(NON_BLOCKING)

    def graph_with(default: int, number: int) -> Any:
        graph = cuda.cuGraphCreate(0)
        (body,) = add_conditional(cuda, graph, default, IF)
        cuda.cuGraphAddMemsetNode(body, None, 0, set_of(cuda, address, number, 1), cuda.context)
        return graph

    executable, numbers = None, []
    for default, number in ((0, 1), (1, 2), (1, 3), (0, 4)):
        graph = graph_with(default, number)
        if executable is None:
            executable = cuda.cuGraphInstantiate(graph, 0)
        else:
            assert int(cuda.cuGraphExecUpdate(executable, graph).result) == 0
        cuda.cuGraphLaunch(executable, stream)
        cuda.cuStreamSynchronize(stream)
        numbers.append(int.from_bytes(cuda.read(address, 4), "little"))
    assert numbers == [0, 2, 3, 3]
