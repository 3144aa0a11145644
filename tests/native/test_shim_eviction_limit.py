"""Tests of the limit of evicted memory, and of the host memory that a process reports for evicted memory.

The coordinator sets the limit, so that the host has enough memory.
"""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, scripted_coordinator, wait_until
from .test_shim_prefetch import wait_for_agent
from .test_shim_transfer_failures import faulty_driver, hold_next, wait_until_held
from .test_shim_without_coordinator import lock_is_free

MIB = 1 << 20
EVERYTHING = (1 << 64) - 1
MODES = pytest.mark.parametrize("mode", ["unified", "swap"])


def use(client: CudaClient, *mib: int) -> None:
    """Allocate arrays and use them."""
    client.run(f"arrays = [cuda.alloc(n << 20)[1] for n in {list(mib)}]")
    assert client.run("[cuda.launch('fill_f32', a, 1.0, 1000) for a in arrays]") == [0] * len(mib)
    assert client.run("cuda.cuCtxSynchronize()") == 0


def start(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> tuple[CudaClient, ProcessConnection]:
    return machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode, GPUSHARE_PINNED="0")


@MODES
def test_no_more_leaves_than_the_limit(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    """Memory leaves by whole arrays or blocks, so a larger one than the limit stays and a smaller one leaves."""
    client, process = start(machine, coordinator, mode)
    report, control = process.page.report, process.page.control
    process.open(1)
    use(client, 64, 30, 20)
    control.resident_target[0], control.evicted_limit = 0, 35 * MIB
    process.drain(1)
    wait_until(lambda: report.evicted_bytes in (20 * MIB, 30 * MIB))
    assert report.resident == 114 * MIB - report.evicted_bytes
    control.evicted_limit = EVERYTHING
    process.doorbell()
    wait_until(lambda: report.resident == 0)


@MODES
def test_evicted_memory_counts_towards_the_limit(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str
) -> None:
    client, process = start(machine, coordinator, mode)
    report, control = process.page.report, process.page.control
    process.open(1)
    use(client, 20, 20, 20)
    control.resident_target[0], control.evicted_limit = 40 * MIB, 45 * MIB
    process.drain(1)
    wait_until(lambda: report.resident == 40 * MIB)
    control.resident_target[0] = 0
    process.doorbell()
    wait_until(lambda: report.evicted_bytes == 40 * MIB)
    wait_for_agent(process)
    assert (report.resident, report.evicted_bytes) == (20 * MIB, 40 * MIB)
    assert client.run("[cuda.free(array) for array in arrays[:2]]") == [0, 0]  # one of them at least was evicted
    process.doorbell()
    wait_until(lambda: report.resident == 0)


def test_the_limit_holds_without_a_coordinator(machine: NativeHost) -> None:
    """In mode swap, all memory within the limit leaves after a turn without a coordinator."""
    with scripted_coordinator(machine.socket) as coordinator:
        client, process = start(machine, coordinator, "swap")
        process.open(1)
        use(client, 64, 20)
        process.page.control.evicted_limit, process.page.control.quantum_ns = 30 * MIB, 200_000_000
        process.drain(1)
        assert process.page.report.evicted_bytes == 0
    assert client.run("cuda.spin(1)") == 0  # in a turn without a coordinator
    wait_until(lambda: lock_is_free(machine), what="the end of the turn")
    with scripted_coordinator(machine.socket) as coordinator:
        report = coordinator.accept().page.report
        wait_until(lambda: report.evicted_bytes == 20 * MIB)
        assert report.resident == 64 * MIB


def test_unified_memory_keeps_its_host_memory_while_it_is_restored(
    client: CudaClient, process: ProcessConnection
) -> None:
    """Memory that has left before leaves first, because that memory needs no more host memory."""
    report, control = process.page.report, process.page.control
    process.open(1)
    use(client, 30)
    assert report.host_pageable == 0
    control.resident_target[0] = 0
    process.drain(1)
    assert report.host_pageable == 30 * MIB
    control.resident_target[0] = EVERYTHING
    process.open(2)
    client.run("more = cuda.alloc(40 << 20)[1]; cuda.launch('fill_f32', more, 1.0, 1000)")
    assert (report.resident, report.host_pageable) == (70 * MIB, 30 * MIB)
    control.resident_target[0] = 60 * MIB
    process.drain(2)
    assert (report.resident, report.host_pageable) == (40 * MIB, 30 * MIB)
    assert client.run("cuda.free(arrays[0])") == 0
    assert (report.allocated, report.host_pageable) == (40 * MIB, 0)


def test_host_memory_ends_with_the_context(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    client.run("other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)")
    use(client, 30)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    assert process.page.report.host_pageable == 30 * MIB
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    assert process.page.report.host_pageable == 0


def test_host_memory_of_an_allocation_that_leaves_in_parts(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The report grows with each part. The coordinator assumes that the cgroup already counts the reported memory."""
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent))
    report = process.page.report
    process.open(1)
    use(client, 200)
    process.page.control.resident_target[0] = 0
    hold_next(client, "before_cuMemPrefetchAsync")
    process.close_gate(1)
    for left in (0, 64, 128, 192):
        wait_until_held(client)
        assert report.host_pageable == left * MIB
        hold_next(client, "before_cuMemPrefetchAsync")
    wait_until(lambda: report.host_pageable == 200 * MIB)
