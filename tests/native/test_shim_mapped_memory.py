"""Tests in mode "swap" of captured and other calls that need mapped memory."""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_capture import CAPTURE, END, INSTANTIATE, RELAXED, SETUP, THREAD_LOCAL
from .test_shim_swap import EVERYTHING, MIB, swapping

CAPTURED = "cuda.cuMemcpyDtoDAsync_v2(c_uint64(copy), c_uint64(array), c_size_t(3 << 20), c_void_p(one))"
SET = "cuda.cuMemsetD8Async(c_uint64(array), 7, c_size_t(1000), c_void_p(one))"
LAUNCH = "cuda.cuGraphLaunch(graph_exec, c_void_p(one)), cuda.cuStreamSynchronize(c_void_p(one))"


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Return a client with two arrays of 3 MiB, in its first turn."""
    client, process = swapping(machine, coordinator)
    process.open(1)
    client.run(f"{SETUP}; import os; data = os.urandom(3 << 20)")
    client.run("array, copy = cuda.alloc(3 << 20)[1], cuda.alloc(3 << 20)[1]")
    assert client.run("write(array, data)") == 0
    return client, process


def end_turn(process: ProcessConnection, epoch: int) -> None:
    """End the turn, after which all memory must leave the device."""
    process.page.control.resident_target[0] = 0
    process.drain(epoch)


def wait_until_evicted(process: ProcessConnection) -> None:
    wait_until(lambda: process.page.report.resident == 0, what="the eviction of all memory")


def test_a_capture_begins_with_its_memory_on_the_device(client: CudaClient, process: ProcessConnection) -> None:
    end_turn(process, 1)
    wait_until_evicted(process)
    process.page.control.resident_target[0] = EVERYTHING
    assert client.run_at_the_gate(process, 2, CAPTURE.format(THREAD_LOCAL)) == 0
    assert process.page.report.resident == 6 * MIB
    assert client.run(f"{CAPTURED}, {SET}, {END}") == [0, 0, 0]
    assert client.run(INSTANTIATE) == 0
    assert client.run(LAUNCH) == [0, 0]
    assert client.run("has_data(copy, data)")


def test_memory_stays_until_a_capture_has_ended(client: CudaClient, process: ProcessConnection) -> None:
    """Captured calls need no turn meanwhile."""
    assert client.run(CAPTURE.format(RELAXED)) == 0
    end_turn(process, 1)
    assert client.run(f"[({CAPTURED}, {SET}) for _ in range(50)]") == [[0, 0]] * 50
    assert process.page.report.resident == 6 * MIB
    assert client.run(END) == 0
    wait_until_evicted(process)
    assert client.run_at_the_gate(process, 2, INSTANTIATE) == 0
    assert client.run(LAUNCH) == [0, 0]


def test_a_thread_at_the_gate_does_not_hold_memory_by_its_capture(
    client: CudaClient, process: ProcessConnection
) -> None:
    """Other clients have their turns before the thread goes on, and may need the room."""
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run(CAPTURED) == 0
    end_turn(process, 1)
    client.start("cuda.spin()")
    process.wait_for_waiting_thread()
    wait_until_evicted(process)
    process.page.control.resident_target[0] = EVERYTHING
    process.open(2)
    assert client.result() == 0
    assert client.run(f"{SET}, {END}") == [0, 0]
    assert client.run(INSTANTIATE) == 0
    assert client.run(LAUNCH) == [0, 0]


def test_an_allocation_in_a_capture_outside_of_the_turn(client: CudaClient, process: ProcessConnection) -> None:
    """The first captured call that could use the memory waits for the turn, which gives the memory its place."""
    process.drain(1)
    assert client.run(CAPTURE.format(RELAXED)) == 0
    client.run("code, copy = cuda.alloc(3 << 20)")
    assert client.run("code") == 0
    assert client.run_at_the_gate(process, 2, CAPTURED) == 0
    assert client.run(END) == 0


def test_instantiation_waits_for_evicted_memory(client: CudaClient, process: ProcessConnection) -> None:
    assert client.run(CAPTURE.format(RELAXED)) == 0
    assert client.run(f"{CAPTURED}, {END}") == [0, 0]
    end_turn(process, 1)
    wait_until_evicted(process)
    assert client.run_at_the_gate(process, 2, INSTANTIATE) == 0
