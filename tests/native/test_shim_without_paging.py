"""Tests on a device without concurrent managed access, such as a virtual GPU, whose memory bounds unified memory."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import page as pages

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ScriptedCoordinator, wait_until

MIB = 1 << 20


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    config = machine.root / "devices.conf"
    config.write_text("[device]\nconcurrent_managed_access = 0\n")
    return machine.new_client(coordinator, GPUSHARE_SIM_CONFIG=str(config))


def fill(client: CudaClient, *call: object) -> None:
    """Allocate memory, with `cuMemAlloc` or by `call`, and write to it."""
    more = "".join(f", {word!r}" for word in call)
    client.run(f"status, memory = cuda.alloc({8 * MIB}{more})")
    assert client.run("status") == 0
    assert client.run("cuda.cuMemsetD32_v2(c_uint64(memory), 7, c_size_t(2 << 20))") == 0


def test_mode_swap_takes_the_place_of_mode_unified(machine: NativeHost, started: StartedClient) -> None:
    client, process = started
    assert pages.memory_mode(process.page.report.memory_mode) == "swap"
    assert "memory mode swap instead of unified" in machine.log_text()
    process.open(1)
    fill(client)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0, what="the eviction")
    process.open(2)
    client.run("found = c_uint32()")
    assert client.run("cuda.cuMemcpyDtoH_v2(byref(found), c_uint64(memory), c_size_t(4)), found.value") == [0, 7]


def test_unified_memory_of_the_program_stays_on_the_device(started: StartedClient) -> None:
    client, process = started
    process.open(1)
    fill(client, "cuMemAllocManaged", 1)
    report = process.page.report
    assert (report.allocated, report.unmovable, report.resident) == (8 * MIB, 8 * MIB, 8 * MIB)
    assert client.run("cuda.free(memory)") == 0
    assert (report.allocated, report.unmovable) == (0, 0)
