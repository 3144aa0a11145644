"""Tests of conditional nodes on the simulated driver: a function that sets a condition, and bodies that are refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from ..driver_facts.harness import NON_BLOCKING, Cuda, CudaError, on_driver
from ..driver_facts.test_conditional_nodes import ASSIGN_DEFAULT, IF, WHILE, add_conditional, add_node, parameters
from ..driver_facts.test_transfer_nodes import memory, run, set_of
from .test_simcuda_graphs import alloc_params

# On a card the function would call cudaGraphSetConditional; the simulated driver reads the parameters only.
COUNT_DOWN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count_down(.param .u64 condition, .param .u64 counter) { ret; }
\0"""
LAUNCH_FAILED, NOT_ALLOWED = 719, 1


def capture_into(cuda: Cuda, body: Any, *launches: tuple[Any, tuple[int, ...]]) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, cuda.driver.CUstreamCaptureMode(1))
    for function, values in launches:
        arguments = (values, (ctypes.c_uint64,) * len(values))
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
    cuda.cuStreamEndCapture(stream)


def count_down(cuda: Cuda) -> Any:
    return cuda.cuModuleGetFunction(cuda.cuModuleLoadData(COUNT_DOWN), b"count_down")


def loop(cuda: Cuda, address: int, condition: int | None = None) -> Any:
    """Return a graph that adds 1 to the number at `address` and counts the word after it down to 0."""
    graph = cuda.cuGraphCreate(0)
    handle = cuda.cuGraphConditionalHandleCreate(graph, cuda.context, 1, ASSIGN_DEFAULT)
    node = parameters(cuda, handle, WHILE, 1)
    add_node(cuda, graph, node)
    (body,) = node.conditional.phGraph_out[:1]
    work = cuda.functions["work_f32"], (address, 1, 0, 0)
    named = int(handle) if condition is None else condition
    capture_into(cuda, body, work, (count_down(cuda), (named, address + 4)))
    return graph


@on_driver()
def test_a_loop_runs_until_a_launch_clears_its_condition(cuda: Cuda) -> None:
    address = int(memory(cuda, bytes(4) + bytes([5])))
    graph = loop(cuda, address)
    run(cuda, graph)
    assert cuda.read_f32(address, 0) == 5.0
    cuda.cuMemcpyHtoD(address + 4, bytes([2, 0, 0, 0]), 4)
    run(cuda, graph)
    assert cuda.read_f32(address, 0) == 7.0


@on_driver()
def test_the_graph_may_end_before_its_executable_graph(cuda: Cuda) -> None:
    address, stream = int(memory(cuda, bytes(4) + bytes([3]))), cuda.cuStreamCreate(NON_BLOCKING)
    graph = loop(cuda, address)
    executable = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphDestroy(graph)
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuGraphExecDestroy(executable)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read_f32(address, 0) == 3.0


@on_driver()
def test_an_error_ends_a_loop(cuda: Cuda) -> None:
    with pytest.raises(CudaError) as error:
        run(cuda, loop(cuda, int(memory(cuda, bytes(4) + bytes([200]))), condition=8))
    assert error.value.code == LAUNCH_FAILED


@on_driver()
def test_memory_nodes_in_a_body_are_refused(cuda: Cuda) -> None:
    graph = cuda.cuGraphCreate(0)
    (body,) = add_conditional(cuda, graph, 1, IF)
    cuda.cuGraphAddMemAllocNode(body, None, 0, alloc_params(cuda, 1 << 20))
    assert cuda.code("cuGraphInstantiate", graph, 0) == NOT_ALLOWED


@on_driver()
def test_a_node_in_a_body_of_an_executable_graph_changes(cuda: Cuda) -> None:
    address, graph, stream = memory(cuda, b""), cuda.cuGraphCreate(0), cuda.cuStreamCreate(NON_BLOCKING)
    (body,) = add_conditional(cuda, graph, 1, IF)
    node = cuda.cuGraphAddMemsetNode(body, None, 0, set_of(cuda, address, 1, 1), cuda.context)
    executable = cuda.cuGraphInstantiate(graph, 0)
    cuda.cuGraphExecMemsetNodeSetParams(executable, node, set_of(cuda, address, 2, 1), cuda.context)
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuStreamSynchronize(stream)
    assert cuda.read(address, 1) == b"\x02"
