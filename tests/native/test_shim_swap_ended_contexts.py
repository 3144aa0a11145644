"""Tests of mode "swap" with mappings of the program that outlive their context: another context moves them."""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import MIB, swapping

SIZE = 4 * MIB
MAKE_CONTEXT = "other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)"


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Start a program with a mapping that was made in the context `other`."""
    client, process = swapping(machine, coordinator)
    process.open(1)
    client.run(f"import os; data = os.urandom({SIZE}); {MAKE_CONTEXT}")
    client.run(f"address = reserve({SIZE}); _, handle = create({SIZE})")
    assert client.run(f"map_at(address, {SIZE}, handle), write(address, data)") == [0, 0]
    return client, process


def assert_leaves_and_returns(client: CudaClient, process: ProcessConnection) -> None:
    report = process.page.report
    assert (report.resident, report.unmovable) == (SIZE, 0)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: report.resident == 0)
    process.open(2)
    assert client.run("has_data(address, data)")
    assert (report.resident, report.unmovable) == (SIZE, 0)


def test_the_primary_context_moves_the_mapping(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    client.run("cuda.make_current()")
    assert_leaves_and_returns(client, process)


def test_a_context_with_other_memory_moves_the_mapping(client: CudaClient, process: ProcessConnection) -> None:
    client.run("first = other")
    client.run(f"{MAKE_CONTEXT}; array = cuda.alloc(3 << 20)[1]; popped = c_void_p()")
    assert client.run("cuda.cuCtxPopCurrent_v2(byref(popped)), cuda.cuCtxDestroy_v2(first)") == [0, 0]
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    assert process.page.report.unmovable == 0
    assert client.run("cuda.cuCtxSetCurrent(other), cuda.free(array)") == [0, 0]
    assert_leaves_and_returns(client, process)


def test_a_mapping_is_unmovable_until_its_device_has_a_context(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0), cuda.cuCtxDestroy_v2(other)") == [0, 0]
    assert process.page.report.unmovable == SIZE
    client.run(MAKE_CONTEXT)
    assert_leaves_and_returns(client, process)


def test_an_unmovable_mapping_ends(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0), cuda.cuCtxDestroy_v2(other)") == [0, 0]
    assert client.run(f"unmap(address, {SIZE}), release(handle)") == [0, 0]
    report = process.page.report
    assert (report.allocated, report.resident, report.unmovable) == (0, 0, 0)
