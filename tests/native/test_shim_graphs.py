"""Graphs with allocations in them, and what a launch of a graph counts as, on a stub of the driver."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.wire.page import CLOSING

from .conftest import Client
from .fake_coordinator import Process, until

MIB = 1 << 20
OUT_OF_MEMORY = 2


@pytest.fixture
def graph(stub: Any) -> tuple[Client, Process]:
    """A program with a graph that allocates 4 + 2 + 1 MiB and runs three kernels."""
    client, process = stub()
    client.run(
        """
def instantiate(flags=0):
    return cuda.cuGraphInstantiateWithFlags(byref(exec_), c_void_p(0xA), c_uint64(flags))
def destroy():
    return cuda.cuGraphExecDestroy(exec_)
def trim():
    return cuda.cuDeviceGraphMemTrim(0)
"""
    )
    client.run("exec_ = c_void_p()")
    return client, process


def counted(process: Process) -> tuple[float, float]:
    return process.page.report.allocated / MIB, process.page.report.pinned / MIB


def test_memory_of_a_graph_is_counted_while_it_may_be_held(graph: tuple[Client, Process]) -> None:
    client, process = graph
    assert client.run("instantiate()") == 0
    assert counted(process) == (7, 7)
    assert client.run("destroy()") == 0
    assert counted(process) == (0, 0), "it was never launched, and the driver holds nothing"
    process.open(1)
    assert client.run("instantiate(), cuda.cuGraphLaunch(exec_, c_void_p(0x900)), destroy()") == [0, 0, 0]
    assert counted(process) == (7, 7), "the driver keeps it"
    assert client.run("instantiate()") == 0
    assert counted(process) == (7, 7), "and uses it again"
    assert client.run("trim()") == 0
    assert counted(process) == (7, 7)
    assert client.run("destroy(), trim()") == [0, 0]
    assert counted(process) == (0, 0)


def test_a_graph_beyond_the_limit_is_not_instantiated(graph: tuple[Client, Process]) -> None:
    client, process = graph
    process.page.orders.memory_limit = 6 * MIB
    assert client.run("instantiate(), exec_.value") == [OUT_OF_MEMORY, None]
    assert counted(process) == (0, 0)
    assert process.page.report.refused == 1
    process.page.orders.memory_limit = 7 * MIB
    assert client.run("instantiate(99)") == 999
    assert counted(process) == (0, 0), "the driver refused it"
    assert client.run("instantiate()") == 0
    assert counted(process) == (7, 7)


def test_a_launch_of_a_graph_counts_as_those_in_it(graph: tuple[Client, Process]) -> None:
    client, process = graph
    assert client.run("instantiate()") == 0
    assert client.run_at_the_gate(process, 1, "cuda.cuGraphLaunch(exec_, c_void_p(0))") == 0
    client.run("cuda.cuGraphLaunch(c_void_p(0xDEAD), c_void_p(0))")  # one that the shim has not seen
    process.close_gate(1)
    until(lambda: (process.page.report.launches, process.page.report.blocks) == (4, 2 * 3 * (1 + 2 + 3)))


def test_instantiation_with_an_upload_waits_at_the_gate(graph: tuple[Client, Process]) -> None:
    client, process = graph
    client.run("plain, upload = (c_uint64 * 4)(0, 0, 0, 0), (c_uint64 * 4)(2, 0, 0, 0)")
    assert client.run("cuda.cuGraphInstantiateWithParams(byref(exec_), c_void_p(0xB), plain), destroy()") == [0, 0]
    assert (
        client.run_at_the_gate(process, 1, "cuda.cuGraphInstantiateWithParams(byref(exec_), c_void_p(0xB), upload)")
        == 0
    )
    assert counted(process) == (1, 1)


def test_the_end_of_a_green_context_ends_the_work_of_its_streams(stub: Any) -> None:
    client, process = stub()
    process.open(1)
    client.run("exec_ = c_void_p(); cuda.cuGraphInstantiateWithFlags(byref(exec_), c_void_p(0xB), c_uint64(0))")
    assert client.run("cuda.cuGraphLaunch(exec_, c_void_p(0x900))") == 0
    process.close_gate(1)
    assert process.stays(CLOSING), "drained of a stream that is busy"
    assert client.run("cuda.cuGreenCtxDestroy(c_void_p(0x20))") == 0
    process.drained(1)


CAPTURED = """
one, memory, graph, exec_ = c_void_p(cuda.stream(1)), c_uint64(), c_void_p(), c_void_p()
assert cuda.cuStreamBeginCapture_v2(one, 2) == 0
assert cuda.cuMemAllocAsync(byref(memory), c_size_t(12 << 20), one) == 0
assert cuda.launch("fill_f32", memory.value, 1.0, 16, stream=one.value) == 0
assert cuda.launch("fill_f32", memory.value, 2.0, 16, stream=one.value) == 0
assert cuda.cuMemFreeAsync(memory, one) == 0
assert cuda.cuStreamEndCapture(one, byref(graph)) == 0
def instantiate():
    return cuda.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(0))
def held():
    bytes = c_uint64()
    assert cuda.cuDeviceGetGraphMemAttribute(0, 2, byref(bytes)) == 0
    return bytes.value / (1 << 20)
"""


def test_captured_allocations_against_the_driver_s_own_figure(client: Client, process: Process) -> None:
    """What is counted is never less than what the driver holds, and in the end neither is anything."""
    process.open(1)
    client.run(CAPTURED)
    assert (counted(process), client.run("held()")) == ((0, 0), 0)
    assert client.run("instantiate()") == 0
    assert counted(process) == (12, 12)
    process.close_gate(1)  # nothing of a capture waits at the gate, so the process has not entered
    until(lambda: process.page.report.launches == 2)
    process.open(2)
    assert client.run("cuda.cuGraphLaunch(exec_, one), cuda.cuStreamSynchronize(one)") == [0, 0]
    assert (counted(process), client.run("held()")) == ((12, 12), 12)
    assert client.run("cuda.cuGraphExecDestroy(exec_)") == 0
    assert (counted(process), client.run("held()")) == ((12, 12), 12), "the driver keeps it"
    process.drain(2)
    until(lambda: process.page.report.launches == 4)
    process.page.orders.memory_limit = 11 * MIB
    assert client.run("cuda.cuDeviceGraphMemTrim(0)") == 0
    assert (counted(process), client.run("held()")) == ((0, 0), 0)
    assert client.run("instantiate()") == OUT_OF_MEMORY
    assert counted(process) == (0, 0)


def test_memory_of_graphs_ends_with_their_context(client: Client, process: Process) -> None:
    process.open(1)
    client.run(CAPTURED)
    assert client.run("instantiate(), cuda.cuDevicePrimaryCtxReset_v2(0)") == [0, 0]
    assert counted(process) == (0, 0)


def test_a_graph_that_is_updated_or_uploaded_stays_as_it_is_counted(client: Client, process: Process) -> None:
    process.open(1)
    client.run(CAPTURED)
    assert client.run("instantiate(), cuda.cuGraphUpload(exec_, one), cuda.cuStreamSynchronize(one)") == [0, 0, 0]
    client.run("info = (c_uint64 * 4)(); cuda.cuGraphExecUpdate_v2(exec_, graph, info)")
    assert (counted(process), client.run("held()")) == ((12, 12), 12)
    assert client.run("cuda.cuGraphExecDestroy(exec_), cuda.cuDeviceGraphMemTrim(0)") == [0, 0]
    assert counted(process) == (0, 0)
