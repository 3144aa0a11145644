"""Tests of graphs in mode "swap": the memory of their nodes leaves between launches and comes back before the next."""

from __future__ import annotations

import pytest

from .conftest import CudaClient
from .fake_coordinator import ProcessConnection, wait_until
from .test_shim_swap import EVERYTHING, MIB, started

__all__ = ["started"]

# Two pieces of memory of 8 MiB each, and graphs of nodes that write them.
TOOLS = """
COUNT = 2 << 20
device = [cuda.alloc(COUNT * 4)[1] for _ in range(2)]
source, target = device
work = cuda.stream(1)

def struct_of(kinds, *values):
    made = type("Struct", (ctypes.Structure,), {"_fields_": [(f"f{i}", kind) for i, kind in enumerate(kinds)]})
    return made(*values)

def set_params(address, value, count):
    return struct_of([c_uint64, ctypes.c_size_t, c_uint32, c_uint32, ctypes.c_size_t, ctypes.c_size_t],
                     address, 0, value, 4, count, 1)

def copy_params(target, source, size):
    half = lambda address: (0, 0, 0, 0, 2, 0, address, 0, 0, 0, 0)
    kinds = [c_uint64] * 4 + [c_uint32] + [c_uint64] * 6
    return struct_of(kinds * 2 + [c_uint64] * 3, *half(source), *half(target), size, 1, 1)

def graph_of():
    graph = c_void_p()
    assert cuda.cuGraphCreate(byref(graph), 0) == 0
    return graph

def add_set(graph, *params, after=()):
    node = c_void_p()
    behind = (c_void_p * len(after))(*after)
    status = cuda.cuGraphAddMemsetNode(byref(node), graph, behind, c_size_t(len(after)), byref(set_params(*params)),
                                       cuda.context)
    assert status == 0, status
    return node

def add_copy(graph, *params, after=()):
    node = c_void_p()
    behind = (c_void_p * len(after))(*after)
    status = cuda.cuGraphAddMemcpyNode(byref(node), graph, behind, c_size_t(len(after)), byref(copy_params(*params)),
                                       cuda.context)
    assert status == 0, status
    return node

def instantiate(graph):
    made = c_void_p()
    assert cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)) == 0
    return made

def launch(made):
    return cuda.cuGraphLaunch(made, c_void_p(work)) or cuda.cuStreamSynchronize(c_void_p(work))

def words(address, *indices):
    value, found = c_uint32(), []
    for index in indices:
        assert cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(address + 4 * index), c_size_t(4)) == 0
        found.append(value.value)
    return found

def clear():
    assert cuda.cuMemsetD32_v2(c_uint64(target), 0, c_size_t(COUNT)) == 0 == cuda.cuCtxSynchronize()

class Conditional(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("reserved", c_uint32 * 3), ("handle", c_uint64), ("kind", c_uint32),
                ("size", c_uint32), ("bodies", ctypes.POINTER(c_void_p)), ("context", c_void_p),
                ("room", c_uint64 * 25)]

def add_conditional(graph, value):
    handle, node = c_uint64(), c_void_p()
    assert cuda.cuGraphConditionalHandleCreate(byref(handle), graph, cuda.context, value, 1) == 0
    params = Conditional(type=13, handle=handle.value, kind=0, size=1, context=cuda.context)
    assert cuda.cuGraphAddNode(byref(node), graph, None, c_size_t(0), byref(params)) == 0
    return c_void_p(params.bodies[0])
"""


@pytest.fixture
def swap(client: CudaClient, process: ProcessConnection) -> tuple[CudaClient, ProcessConnection]:
    process.open(1)
    client.run(TOOLS)
    return client, process


def evict(process: ProcessConnection, turn: int) -> None:
    """End the turn, and wait until all memory of the process has left the device."""
    process.page.control.resident_target[0] = 0
    process.drain(turn)
    wait_until(lambda: process.page.report.resident == 0)
    process.page.control.resident_target[0] = EVERYTHING


def launch_after_eviction(client: CudaClient, process: ProcessConnection, turn: int) -> None:
    evicted = process.page.report.evicted_bytes
    evict(process, turn - 1)
    wait_until(lambda: process.page.report.evicted_bytes - evicted >= 16 * MIB)  # counted after the last copy
    assert client.run_at_the_gate(process, turn, "launch(made)") == 0
    assert process.page.report.resident >= 16 * MIB


def test_set_and_copy_nodes_work_after_each_eviction(swap: tuple[CudaClient, ProcessConnection]) -> None:
    """The copy node reads what was on the device before the eviction, and the set node writes after the copy."""
    client, process = swap
    assert client.run("cuda.cuMemsetD32_v2(c_uint64(source), 5, c_size_t(COUNT))") == 0
    client.run("graph = graph_of()\ncopy = add_copy(graph, target, source, COUNT * 4)")
    client.run("set = add_set(graph, target + 4, 9, COUNT - 2, after=[copy])\nmade = instantiate(graph)")
    for turn in (2, 3):
        client.run("clear()")
        launch_after_eviction(client, process, turn)
        assert client.run("words(target, 0, 1, COUNT - 2, COUNT - 1)") == [5, 9, 9, 5]
        assert client.run("words(source, 0, COUNT - 1)") == [5, 5]
    assert client.run(f"cuda.cuMemsetD32_v2(c_uint64(source), {turn}, c_size_t(COUNT))") == 0
    launch_after_eviction(client, process, 4)
    assert client.run("words(target, 0, 1, COUNT - 2, COUNT - 1)") == [3, 9, 9, 3]


def test_nodes_are_added_and_changed_while_their_memory_is_away(
    swap: tuple[CudaClient, ProcessConnection],
) -> None:
    """A call that names memory of a node waits for the turn, in which the memory is mapped again."""
    client, process = swap
    client.run("graph = graph_of()\nset = add_set(graph, target, 1, COUNT)")
    evict(process, 1)
    client.run_at_the_gate(process, 2, "copy = add_copy(graph, target, source, 4, after=[set])")
    evict(process, 2)
    changed = "cuda.cuGraphMemsetNodeSetParams(set, byref(set_params(target, 7, COUNT)))"
    assert client.run_at_the_gate(process, 3, changed) == 0
    client.run("cuda.cuMemsetD32_v2(c_uint64(source), 6, c_size_t(COUNT)); made = instantiate(graph)")
    launch_after_eviction(client, process, 4)
    assert client.run("words(target, 0, 1, COUNT - 1)") == [6, 7, 7]
    evict(process, 4)
    changed = "cuda.cuGraphExecMemcpyNodeSetParams(made, copy, byref(copy_params(target, source, 8)), cuda.context)"
    assert client.run_at_the_gate(process, 5, changed) == 0
    launch_after_eviction(client, process, 6)
    assert client.run("words(target, 0, 1, 2)") == [6, 6, 7]


@pytest.mark.parametrize("value", [0, 1])
def test_memory_of_the_body_of_a_conditional_node(swap: tuple[CudaClient, ProcessConnection], value: int) -> None:
    """The body has a set node, a copy node and a captured launch, whose memory leaves and comes back."""
    client, process = swap
    client.run(f"graph = graph_of()\nbody = add_conditional(graph, {value})")
    client.run("set = add_set(body, target, 9, COUNT)\nadd_copy(body, target, source, 4, after=[set])")
    client.run("assert cuda.cuStreamBeginCaptureToGraph(c_void_p(work), body, None, None, c_size_t(0), 2) == 0")
    client.run("cuda.launch('work_f32', source, 1, 0, 0, stream=work)")
    client.run("assert cuda.cuStreamEndCapture(c_void_p(work), byref(c_void_p())) == 0\nmade = instantiate(graph)")
    client.run("assert cuda.cuMemsetD32_v2(c_uint64(source), 0, c_size_t(COUNT)) == 0")
    numbers = [0, 0x3F800000, 0x40000000]  # 0.0, 1.0 and 2.0
    for turn in (2, 3):
        client.run("clear()")
        launch_after_eviction(client, process, turn)
        before, after = numbers[turn - 2 : turn]
        expected = [before, 9, 9, after, 0] if value else [0] * 5
        assert client.run("words(target, 0, 1, COUNT - 1) + words(source, 0, 1)") == expected
