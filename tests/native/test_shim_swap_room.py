"""Tests of mode "swap" on a full device: waits for room, and the figures of memory that waits."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from jupyter_gpushare.wire.page import OUT

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, swapping

Crowded = tuple[CudaClient, Any, CudaClient]


def test_memory_shortage_is_requested_and_met(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    one, first = swapping(machine, coordinator, GPUSHARE_SIM_MEMORY="256MiB")
    two, second = swapping(machine, coordinator, GPUSHARE_SIM_MEMORY="256MiB")
    first.open(1)
    one.run("array = cuda.alloc(150 << 20)[1]; cuda.launch('fill_f32', array, 7.0, 1000)")
    first.drain(1)
    two.begin(second, 2)
    two.start("cuda.alloc(150 << 20)[0]")
    wait_until(lambda: second.page.report.unmet_bytes > 0)
    second.wait_for_doorbell()
    first.page.control.resident_target[0] = 0
    first.doorbell()
    assert two.result() == 0
    wait_until(lambda: second.page.report.unmet_bytes == 0)
    second.page.control.resident_target[0] = 0
    second.drain(2)
    first.page.control.resident_target[0] = EVERYTHING
    first.open(3)
    assert one.run("read(array, 1000)") == [7.0] * 3


@pytest.fixture
def crowded(machine: NativeHost, coordinator: ScriptedCoordinator) -> Crowded:
    """Return a client in its turn, on a device of 256 MiB of which a foreign process has 150 MiB."""
    client, process = swapping(machine, coordinator, GPUSHARE_SIM_MEMORY="256MiB")
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda(); taken = cuda.alloc(150 << 20)")
    client.begin(process, 1)
    return client, process, other


@pytest.mark.parametrize("size", [150 << 20, 1000])
def test_an_allocation_that_waits_for_the_next_turn_has_no_resident_memory(crowded: Crowded, size: int) -> None:
    client, process, other = crowded
    report = process.page.report
    assert other.run("cuda.alloc(cuda.info()[0])[0]") == 0
    client.start(f"cuda.alloc({size})[0]")
    wait_until(lambda: report.unmet_bytes)
    assert (report.allocated, report.resident) == (size, size)
    process.drain(1)
    wait_until(lambda: (report.unmet_bytes, report.resident) == (0, 0))
    assert (report.allocated, report.unmade) == (size, size)
    other.run("cuda.free(taken[1])")
    process.open(2)
    assert client.result() == 0
    assert (report.allocated, report.resident, report.unmade) == (size, size, 0)
    assert report.restored == 0  # no memory was evicted


def test_no_other_client_finds_waiting_bytes_after_a_turn(crowded: Crowded) -> None:
    """The page shows the end of a turn only without the bytes of an allocation that goes on waiting."""
    client, process, other = crowded
    report = process.page.report
    assert other.run("cuda.alloc(cuda.info()[0])[0]") == 0
    client.start("cuda.alloc(150 << 20)[0]")
    for epoch in range(1, 20):
        process.wait_until_entered(epoch)
        wait_until(lambda: report.unmet_bytes and report.resident == 150 * MIB)
        process.close_gate(epoch)
        while process.phase != OUT:
            pass
        assert report.resident == 0
        wait_until(lambda: report.unmet_bytes == 0)
        process.open(epoch + 1)
    other.run("cuda.free(taken[1])")
    assert client.result() == 0


def test_an_allocation_that_waits_does_not_use_up_the_limit_of_evicted_memory(crowded: Crowded) -> None:
    client, process, _ = crowded
    report = process.page.report
    process.page.control.evicted_limit = 64 * MIB
    client.run("cuda.alloc(64 << 20)")
    client.start("cuda.alloc(150 << 20)[0]")
    wait_until(lambda: report.unmet_bytes)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: (report.unmet_bytes, report.resident, report.unmade) == (0, 0, 150 * MIB))
    assert report.allocated - report.resident - report.unmade == 64 * MIB
    os.kill(client.pid, signal.SIGINT)
    assert client.raw()["error"] == "KeyboardInterrupt"
    wait_until(lambda: (report.allocated, report.resident, report.unmade) == (64 * MIB, 0, 0))


def test_allocation_fails_if_no_memory_can_be_evicted(crowded: Crowded) -> None:
    client, process, _ = crowded
    client.start("cuda.alloc(150 << 20)[0]")
    wait_until(lambda: process.page.report.unmet_bytes)
    process.page.control.refused_request_seq = process.page.report.unmet_request_seq
    assert client.result() == 2
    assert client.run("cuda.alloc(245 << 20)[0]") == 2  # larger than the device can ever have free
    assert process.page.report.allocated == 0


def test_a_refusal_of_an_earlier_request_does_not_count(crowded: Crowded) -> None:
    client, process, other = crowded
    for _ in range(2):
        client.start("cuda.alloc(150 << 20)[0]")
        wait_until(lambda: process.page.report.unmet_bytes)
        refused = process.page.report.unmet_request_seq
        process.page.control.refused_request_seq = refused
        assert client.result() == 2
        wait_until(lambda: process.page.report.unmet_bytes == 0)
    assert process.page.report.unmet_bytes == 0
    client.start("cuda.alloc(150 << 20)[0]")
    wait_until(lambda: process.page.report.unmet_bytes)
    assert process.page.control.refused_request_seq == refused != process.page.report.unmet_request_seq
    assert client.is_running()
    other.run("cuda.free(taken[1])")
    assert client.result() == 0


def test_an_allocation_that_waits_for_room_can_be_interrupted(crowded: Crowded) -> None:
    client, process, _ = crowded
    client.run("found = []")
    client.start("found.append(cuda.alloc(150 << 20)[0])")
    wait_until(lambda: process.page.report.unmet_bytes)
    os.kill(client.pid, signal.SIGINT)
    assert client.raw()["error"] == "KeyboardInterrupt"
    wait_until(lambda: process.page.report.unmet_bytes == 0)
    assert process.page.report.unmet_bytes == process.page.report.allocated == 0
    assert client.run("cuda.alloc(50 << 20)[0]") == 0
    process.drain(1)
    assert process.page.report.resident == 50 * MIB


def test_threads_that_need_room_at_the_same_time_request_it_in_turn(crowded: Crowded) -> None:
    client, process, other = crowded
    other.run("more = cuda.alloc(90 << 20)[1]")
    client.run("import threading; found = []")
    client.run("query = lambda: cuda.make_current() or found.append(cuda.alloc(50 << 20)[0])")
    client.run("threads = [threading.Thread(target=query) for _ in range(3)]; [thread.start() for thread in threads]")
    wait_until(lambda: process.page.report.unmet_bytes)
    wait_until(lambda: process.page.report.allocated == 150 << 20)  # all three threads are allocating
    assert process.page.report.unmet_bytes == 50 << 20
    other.run("cuda.free(taken[1]), cuda.free(more)")
    client.run("[thread.join() for thread in threads]")
    assert client.run("found") == [0] * 3
    assert process.page.report.unmet_bytes == 0


def test_waiting_for_room_can_be_interrupted(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = swapping(machine, coordinator, GPUSHARE_SIM_MEMORY="256MiB")
    assert client.run("cuda.alloc(150 << 20)[0]") == 0
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda(); taken = cuda.alloc(150 << 20)[1]")
    process.open(1)
    client.start("cuda.spin(1)")
    wait_until(lambda: process.page.report.unmet_bytes)
    os.kill(client.pid, signal.SIGINT)
    assert client.raw()["error"] == "KeyboardInterrupt"
    client.start("cuda.spin(1) or cuda.cuCtxSynchronize()")
    assert client.is_running()
    other.run("cuda.free(taken)")
    assert client.result() == 0
