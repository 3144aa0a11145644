"""Tests of graphs: their memory, and the counting of their launches."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.wire.page import CLOSING

from .conftest import CudaClient
from .fake_coordinator import ProcessConnection, wait_until

MIB = 1 << 20
OUT_OF_MEMORY = 2

# A graph that allocates 12 MiB, launches functions of 6 and 12 blocks, and contains a graph with a launch of 18 blocks.
CAPTURED = """
one, memory, exec_, node = c_void_p(cuda.stream(1)), c_uint64(), c_void_p(), c_void_p()
def captured(*calls):
    graph = c_void_p()
    assert cuda.cuStreamBeginCapture_v2(one, 2) == 0
    assert not any([call() for call in calls])
    assert cuda.cuStreamEndCapture(one, byref(graph)) == 0
    return graph
def kernel(depth):
    return lambda: cuda.launch("spin", 0, stream=one.value, call=lambda f, *rest: launch(f, 2, 3, depth, *rest[3:]))
launch = cuda.cuLaunchKernel
inner = captured(kernel(3))
graph = captured(
    lambda: cuda.cuMemAllocAsync(byref(memory), c_size_t(12 << 20), one),
    kernel(1),
    kernel(2),
    lambda: cuda.cuMemFreeAsync(memory, one),
)
assert cuda.cuGraphAddChildGraphNode(byref(node), graph, None, c_size_t(0), inner) == 0
def instantiate(flags=0):
    return cuda.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(flags))
def instantiate_with(flags):
    return cuda.cuGraphInstantiateWithParams(byref(exec_), graph, (c_uint64 * 4)(flags, one.value, 0, 0))
def destroy():
    return cuda.cuGraphExecDestroy(exec_)
def trim():
    return cuda.cuDeviceGraphMemTrim(0)
def graph_mib():
    bytes = c_uint64()
    assert cuda.cuDeviceGetGraphMemAttribute(0, 2, byref(bytes)) == 0
    return bytes.value / (1 << 20)
"""


@pytest.fixture
def graph(client: CudaClient) -> None:
    client.run(CAPTURED)


def counted(process: ProcessConnection) -> tuple[float, float]:
    return process.page.report.allocated / MIB, process.page.report.unmovable / MIB


@pytest.mark.usefixtures("graph")
def test_memory_of_a_graph_is_counted_while_the_driver_may_keep_it(
    client: CudaClient, process: ProcessConnection
) -> None:
    """The report never has less than the driver keeps, and in the end both are 0."""
    assert (counted(process), client.run("graph_mib()")) == ((0, 0), 0)
    assert client.run("instantiate()") == 0
    assert (counted(process), client.run("graph_mib()")) == ((12, 12), 0)
    assert client.run("destroy()") == 0
    assert counted(process) == (0, 0), "the graph was never launched, so the driver keeps nothing"
    process.open(1)
    assert client.run("instantiate(), cuda.cuGraphLaunch(exec_, one), cuda.cuStreamSynchronize(one)") == [0, 0, 0]
    assert (counted(process), client.run("graph_mib()")) == ((12, 12), 12)
    assert client.run("destroy()") == 0
    assert (counted(process), client.run("graph_mib()")) == ((12, 12), 12), "the driver keeps the memory"
    assert client.run("instantiate()") == 0
    assert counted(process) == (12, 12), "the driver uses the memory again"
    assert client.run("trim()") == 0
    assert counted(process) == (12, 12)
    assert client.run("destroy(), trim()") == [0, 0]
    assert (counted(process), client.run("graph_mib()")) == ((0, 0), 0)


@pytest.mark.usefixtures("graph")
def test_a_graph_beyond_the_limit_is_not_instantiated(client: CudaClient, process: ProcessConnection) -> None:
    process.page.control.memory_limit = 11 * MIB
    assert client.run("instantiate(), exec_.value") == [OUT_OF_MEMORY, None]
    assert counted(process) == (0, 0)
    assert process.page.report.refused_allocations == 1
    process.page.control.memory_limit = 12 * MIB
    assert client.run("instantiate(99)") == 1
    assert counted(process) == (0, 0), "the driver refused it"
    assert client.run("instantiate()") == 0
    assert counted(process) == (12, 12)


@pytest.mark.usefixtures("graph")
def test_graph_launch_counts_the_launches_in_the_graph(client: CudaClient, process: ProcessConnection) -> None:
    report = process.page.report
    client.begin(process, 1)
    process.drain(1)
    wait_until(
        lambda: (report.launches, report.blocks) == (4, 6 * (3 + 1 + 2) + 1),
        what="the captured launches and one more",
    )
    assert client.run("instantiate()") == 0
    assert client.run_at_the_gate(process, 2, "cuda.cuGraphLaunch(exec_, one)") == 0
    client.run("cuda.cuGraphLaunch(c_void_p(0xDEAD), one)")  # a graph without an entry in the shim
    process.close_gate(2)
    wait_until(lambda: (report.launches, report.blocks) == (4 + 3 + 1, 6 * (6 + 1 + 2 + 3) + 1))


@pytest.mark.usefixtures("graph")
def test_instantiation_with_an_upload_waits_at_the_gate(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("instantiate_with(0), destroy()") == [0, 0]
    assert client.run_at_the_gate(process, 1, "instantiate_with(2)") == 0
    assert counted(process) == (12, 12)


def test_the_end_of_a_green_context_ends_the_work_of_its_streams(stub: Any) -> None:
    client, process = stub()
    process.open(1)
    client.run("lists, one = [(c_uint64 * 1)(8) for _ in range(3)], c_size_t(1)")
    assert client.run("cuda.cuMemcpyBatchAsync_v2(*lists, one, None, None, one, c_void_p(0x900))") == 0
    process.close_gate(1)
    assert process.stays_in(CLOSING), "the process has drained although a stream is busy"
    assert client.run("cuda.cuGreenCtxDestroy(c_void_p(0x20))") == 0
    process.wait_until_left(1)


@pytest.mark.usefixtures("graph")
def test_memory_of_graphs_ends_with_their_context(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    assert client.run("instantiate(), cuda.cuDevicePrimaryCtxReset_v2(0)") == [0, 0]
    assert counted(process) == (0, 0)


@pytest.mark.usefixtures("graph")
def test_update_or_upload_of_a_graph_leaves_its_memory_counted(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    assert client.run("instantiate(), cuda.cuGraphUpload(exec_, one), cuda.cuStreamSynchronize(one)") == [0, 0, 0]
    client.run("info = (c_uint64 * 4)(); cuda.cuGraphExecUpdate_v2(exec_, graph, info)")
    assert (counted(process), client.run("graph_mib()")) == ((12, 12), 12)
    assert client.run("destroy(), trim()") == [0, 0]
    assert counted(process) == (0, 0)
