"""Tests of memory that moves at a change of turns: eviction with the end of a turn, restore before the first call."""

from __future__ import annotations

import time

import pytest

from jupyter_gpushare.wire.page import LEAVING

from . import simlog
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_transfer_failures import faulty_driver, hold_next, release, wait_until_held

MIB = 1 << 20
GIB = 1 << 30
EVERYTHING = (1 << 64) - 1
PREFERRED_LOCATION, ACCESSED_BY = 2, 3
ARRAY = 64 * MIB
COUNT = ARRAY // 4

READ = """
def read(address, count):
    values = (c_float * count)()
    assert cuda.cuMemcpyDtoH_v2(values, c_uint64(address), c_size_t(4 * count)) == 0
    return [values[0], values[count // 2], values[count - 1]]
"""


def fill(client: CudaClient, arrays: int) -> None:
    client.run(READ)
    client.run(f"arrays = [cuda.alloc({ARRAY})[1] for _ in range({arrays})]")
    client.run(f"[cuda.launch('fill_f32', a, float(i), {COUNT}) for i, a in enumerate(arrays)]")
    assert client.run("cuda.cuCtxSynchronize()") == 0


def test_memory_beyond_the_target_leaves_with_the_turn_and_comes_back(
    client: CudaClient, process: ProcessConnection
) -> None:
    control, report = process.page.control, process.page.report
    process.open(1)
    fill(client, 3)
    assert report.resident == 3 * ARRAY
    control.resident_target[0] = ARRAY
    process.drain(1)
    assert (report.resident, report.evicted_bytes) == (ARRAY, 2 * ARRAY)
    assert report.evicted_ns > 0
    control.resident_target[0] = EVERYTHING
    process.open(2)
    assert client.run(f"[read(a, {COUNT}) for a in arrays]") == [[float(i)] * 3 for i in range(3)]
    assert (report.resident, report.restored_bytes) == (3 * ARRAY, 2 * ARRAY)
    process.drain(2)
    assert report.evicted_bytes == 2 * ARRAY  # everything fits now


def test_eviction_moves_only_the_required_bytes(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    client.run("arrays = [cuda.alloc(n << 20)[1] for n in (64, 10, 30, 20)]")
    client.run("[cuda.launch('fill_f32', a, 1.0, 1000) for a in arrays]")
    process.page.control.resident_target[0] = (124 - 15) * MIB
    process.drain(1)
    assert process.page.report.resident == (124 - 20) * MIB


def test_memory_that_was_never_used_is_not_moved(client: CudaClient, process: ProcessConnection) -> None:
    client.run(f"cuda.alloc({ARRAY})")
    process.page.control.resident_target[0] = 0
    process.doorbell()
    process.open(1)
    client.run("cuda.spin(1)")
    assert process.page.report.evicted_bytes == 0


def test_a_preallocation_is_left_to_the_driver(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """No call reports how much of a preallocation is touched, and a prefetch would create the other pages."""
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_MEMORY="4GiB")
    process.open(1)
    client.run(f"large = cuda.alloc({GIB + MIB})[1]; small = cuda.alloc({ARRAY})[1]")
    client.run("[cuda.launch('fill_f32', a, 1.0, 1000) for a in (large, small)]")
    process.page.control.resident_target[0] = 0
    process.drain(1)
    assert process.page.report.evicted_bytes == ARRAY


def test_evicted_memory_ends_with_its_context(client: CudaClient, process: ProcessConnection) -> None:
    control, report = process.page.control, process.page.report
    process.open(1)
    client.run("other = c_void_p(); cuda.cuCtxCreate_v2(byref(other), 0, 0)")
    client.run(f"array = cuda.alloc({ARRAY})[1]; cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({ARRAY}))")
    control.resident_target[0] = 0
    process.drain(1)
    assert (report.allocated, report.resident) == (ARRAY, 0)
    assert client.run("cuda.cuCtxDestroy_v2(other)") == 0
    assert (report.allocated, report.resident) == (0, 0)
    process.open(2)
    client.run("cuda.make_current()")
    fill(client, 1)
    process.drain(2)
    assert report.resident == 0


def hold_third_part(client: CudaClient, process: ProcessConnection) -> None:
    """Let the memory leave after the turn, and hold the agent before the third part. The first part takes 50 ms."""
    process.page.control.resident_target[0] = 0
    hold_next(client, "before_cuMemPrefetchAsync")
    process.close_gate(1)
    wait_until_held(client)
    client.run("time.sleep(0.05)")
    for _ in range(2):
        hold_next(client, "before_cuMemPrefetchAsync")
        wait_until_held(client)


def test_a_process_reports_that_only_its_memory_is_leaving(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The agent moves one part after the other, because the driver blocks the agent while a part moves."""
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent))
    process.open(1)
    fill(client, 3)
    hold_third_part(client, process)
    assert process.page.report.evicting and process.phase == LEAVING
    release(client)
    process.wait_until_left(1)


def test_a_large_allocation_leaves_in_parts_before_the_next_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The driver blocks the agent while a part moves. A turn that is permitted meanwhile begins after the last part."""
    client, process = machine.new_client(
        coordinator, GPUSHARE_SIM_MEMORY="512MiB", LD_LIBRARY_PATH=str(faulty_driver().parent)
    )
    process.open(1)
    client.run(
        f"array = cuda.alloc({300 * MIB})[1]; cuda.launch('fill_f32', array, 1.0, 1000); cuda.cuCtxSynchronize()"
    )
    hold_third_part(client, process)
    assert process.page.report.evicting and process.phase == LEAVING
    process.open(2)
    release(client)
    assert client.run("cuda.spin(1), cuda.cuCtxSynchronize()") == [0, 0]
    (executions,) = simlog.read_all(machine.simlog).values()
    parts = [each for each in executions if each.kind == "prefetch to host"]
    assert sum(part.bytes for part in parts) == 300 * MIB
    assert max(part.bytes for part in parts) <= 256 * MIB
    assert max(part.end_ns for part in parts) <= executions[-1].begin_ns


NOWHERE = -2  # no device, as the driver reports it


def placement(client: CudaClient) -> tuple[int, int]:
    """Return the preferred location of `array`, and the device for which `array` is mapped."""
    query = "cuda.cuMemRangeGetAttribute(byref(place), c_size_t(4), {}, c_uint64(array), c_size_t(1 << 20))"
    client.run("place = c_int(7)")
    preferred, accessed = (client.run(f"{query.format(one)}, place.value") for one in (PREFERRED_LOCATION, ACCESSED_BY))
    assert preferred[0] == accessed[0] == 0
    return preferred[1], accessed[1]


OFFLINE, GUEST = 4, 64  # flags of the quota


@pytest.mark.parametrize(
    ("bits", "expected"), [(1, (0, NOWHERE)), (1 | OFFLINE, (NOWHERE, 0)), (1 | GUEST, (NOWHERE, 0))]
)
def test_placement_by_service_class(
    client: CudaClient, process: ProcessConnection, bits: int, expected: tuple[int, int]
) -> None:
    process.page.control.quota_flags = bits
    client.run("array = cuda.alloc(1 << 20)[1]")
    assert placement(client) == expected


@pytest.mark.parametrize("offline", [OFFLINE, GUEST])
def test_placement_changes_with_the_service_class_after_the_turn(
    client: CudaClient, process: ProcessConnection, offline: int
) -> None:
    control = process.page.control
    client.begin(process, 1)
    client.run("cuda.cuCtxSynchronize()")  # advice waits for work in the default stream
    client.run("array = cuda.alloc(1 << 20)[1]; cuda.launch('fill_f32', array, 2.0, 1000); cuda.cuCtxSynchronize()")
    control.quota_flags = 1 | offline
    process.doorbell()
    client.run("cuda.spin(1), cuda.cuCtxSynchronize()")
    assert placement(client) == (0, NOWHERE), "a turn goes on with the placement that it began with"
    process.drain(1)
    wait_until(lambda: placement(client) == (NOWHERE, 0), what="the placement of an offline client")
    control.quota_flags = 1
    process.doorbell()
    wait_until(lambda: placement(client) == (0, NOWHERE), what="the placement of an online client")


def test_placement_of_memory_that_was_never_used_changes_with_the_service_class(
    client: CudaClient, process: ProcessConnection
) -> None:
    client.run("array = cuda.alloc(1 << 20)[1]")
    process.page.control.quota_flags = 1 | OFFLINE
    process.doorbell()
    wait_until(lambda: placement(client) == (NOWHERE, 0), what="the placement of an offline client")


def test_unknown_memory_mode_is_logged(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = machine.client(GPUSHARE_MEMORY_MODE="tape")
    client.join(coordinator)
    assert "GPUSHARE_MEMORY_MODE=tape is unknown: allowed are unified, swap, plain" in machine.log_text()
    assert client.run("cuda.attribute(8, cuda.alloc(1 << 20)[1])") == [0, 0]


def test_memory_that_is_made_while_the_turn_ends_leaves_at_once(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """Without the wake-up, the agent finds the memory only when it polls, a second after its last poll.

    A busy machine makes some turns slower and none faster.
    """
    client, process = machine.new_client(
        coordinator, GPUSHARE_MEMORY_MODE="swap", LD_LIBRARY_PATH=str(faulty_driver().parent)
    )
    report, seconds = process.page.report, [1.0]
    for epoch in range(1, 10):
        client.begin(process, epoch)
        process.page.control.resident_target[0] = 0
        hold_next(client, "cuMemCreate")
        client.run("made = []; thread = in_thread(lambda: made.append(cuda.make_current() or cuda.alloc(2 << 20)[1]))")
        wait_until_held(client)
        process.drain(epoch)
        left, released = report.evicted_bytes, time.monotonic()
        release(client)
        wait_until(lambda left=left: report.resident == 0 and report.evicted_bytes >= left + 2 * MIB)
        seconds.append(time.monotonic() - released)
        if seconds[-1] < 0.5:
            break
        client.run("thread.join(); cuda.free(made[0])")
    assert min(seconds) < 0.5
