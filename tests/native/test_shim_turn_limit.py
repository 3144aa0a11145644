"""Tests of the limit of what is resident in a turn, which may change while the work of the turn goes on."""

from __future__ import annotations

import pytest

from .conftest import NativeHost, StartedClient
from .fake_coordinator import IN, ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_residency import ARRAY, COUNT, fill
from .test_shim_swap import device_used
from .test_shim_without_coordinator import LOOP, finish

MIB = 1 << 20
OFFLINE = 4  # of quota_flags
NOT_READY = 600
VALUES = f"[read(a, {COUNT}) for a in arrays]"
EXPECTED = [[float(i)] * 3 for i in range(3)]
PLACE = """
def place(array):
    value = ctypes.c_int(7)
    preferred_location = cuda.cuMemRangeGetAttribute(byref(value), c_size_t(4), 2, c_uint64(array), c_size_t(1 << 20))
    assert preferred_location == 0
    return value.value
"""


def set_limit(process: ProcessConnection, limit: int) -> None:
    process.page.control.turn_limit = limit
    process.doorbell()


@pytest.fixture(params=[OFFLINE, 0], ids=["offline", "online"])
def filled(machine: NativeHost, coordinator: ScriptedCoordinator, request: pytest.FixtureRequest) -> StartedClient:
    """Return a client of one class in its turn, with three arrays on the device."""
    client, process = machine.new_client(coordinator)
    process.page.control.quota_flags |= request.param
    process.open(1)
    fill(client, 3)
    assert process.page.report.resident == 3 * ARRAY
    return client, process


def drain_count(process: ProcessConnection) -> int:
    return sum(process.page.report.drains)


def test_memory_above_a_lower_limit_leaves_within_the_turn(machine: NativeHost, filled: StartedClient) -> None:
    client, process = filled
    report, before = process.page.report, device_used(machine)
    set_limit(process, ARRAY)
    wait_until(lambda: report.resident == ARRAY and device_used(machine) <= before - 2 * ARRAY)
    wait_until(lambda: report.evicted_bytes == 2 * ARRAY)
    assert client.run(VALUES) == EXPECTED
    fills = [f"cuda.launch('fill_f32', arrays[{number}], {number}.0, {COUNT})" for number in range(3)]
    assert client.run(f"[{', '.join(fills)}, cuda.cuCtxSynchronize()]") == [0] * 4
    assert device_used(machine) <= before - 2 * ARRAY  # the work reached the memory on the host
    assert (process.phase, drain_count(process)) == (IN, 0)


def test_memory_leaves_while_work_uses_it(filled: StartedClient) -> None:
    client, process = filled
    client.run("one, two = cuda.stream(1), cuda.stream(1)")
    client.run("cuda.launch('wait_flag', arrays[2], 9, stream=one)")
    set_limit(process, ARRAY)
    wait_until(lambda: process.page.report.resident == ARRAY)
    assert client.run("cuda.cuStreamQuery(c_void_p(one))") == NOT_READY
    assert client.run("[cuda.launch('set_flag', arrays[2], 9, stream=two), cuda.cuCtxSynchronize()]") == [0, 0]
    assert client.run(f"read(arrays[2], {COUNT})[1:]") == [2.0] * 2
    assert drain_count(process) == 0


def test_memory_comes_back_within_the_turn_up_to_a_higher_limit(filled: StartedClient) -> None:
    client, process = filled
    report = process.page.report
    set_limit(process, ARRAY)
    wait_until(lambda: report.resident == ARRAY)
    set_limit(process, 2 * ARRAY + MIB)
    wait_until(lambda: report.resident == 2 * ARRAY)
    set_limit(process, 0)
    wait_until(lambda: report.resident == 3 * ARRAY and report.restored_bytes == 2 * ARRAY)
    assert client.run(VALUES) == EXPECTED
    assert drain_count(process) == 0


def test_a_turn_begins_with_no_more_than_its_limit(filled: StartedClient) -> None:
    client, process = filled
    report = process.page.report
    process.page.control.resident_target[0] = 0
    process.drain(1)
    process.page.control.resident_target[0] = (1 << 64) - 1
    process.page.control.turn_limit = 2 * ARRAY
    process.open(2)
    assert client.run(VALUES) == EXPECTED
    assert report.resident == 2 * ARRAY


def test_new_memory_above_the_limit_leaves(filled: StartedClient) -> None:
    client, process = filled
    set_limit(process, 3 * ARRAY)
    client.run(f"more = cuda.alloc({ARRAY})[1]; cuda.launch('fill_f32', more, 7.0, {COUNT})")
    wait_until(lambda: process.page.report.resident == 3 * ARRAY)
    assert client.run(f"read(more, {COUNT})") == [7.0] * 3


def test_prefetch_stops_at_the_limit(filled: StartedClient) -> None:
    _, process = filled
    control, report = process.page.control, process.page.report
    control.resident_target[0] = 0
    process.drain(1)
    control.resident_target[0] = (1 << 64) - 1
    control.turn_limit, control.prefetch_limit[0] = ARRAY, 3 * ARRAY
    process.doorbell()
    wait_until(lambda: report.restored_bytes == ARRAY)
    assert report.resident == ARRAY


def test_mode_swap_keeps_all_memory_mapped_in_a_turn(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.page.control.turn_limit = ARRAY
    process.open(1)
    fill(client, 3)
    set_limit(process, ARRAY // 2)
    assert client.run(VALUES) == EXPECTED
    assert process.page.report.resident == 3 * ARRAY


def test_a_turn_without_a_coordinator_has_no_limit(
    machine: NativeHost, coordinator: ScriptedCoordinator, filled: StartedClient
) -> None:
    client, process = filled
    before = device_used(machine)
    set_limit(process, ARRAY)
    wait_until(lambda: device_used(machine) <= before - 2 * ARRAY)
    coordinator.crash()
    client.run(LOOP)
    wait_until(lambda: device_used(machine) >= before)
    finish(client)


def test_many_allocations_leave_in_short_pauses_of_the_work(filled: StartedClient) -> None:
    """The program frees and makes memory while its memory is advised, and the limit changes."""
    client, process = filled
    client.run(PLACE)
    client.run(f"more = [cuda.alloc({MIB})[1] for _ in range(50)]")
    client.run(LOOP.replace("spin(0.2)", "spin(20)"))
    set_limit(process, ARRAY)
    client.run(f"more.append(cuda.alloc({MIB})[1])")
    assert client.run("cuda.cuMemFree_v2(c_uint64(more.pop(20)))") == 0
    set_limit(process, 0)
    set_limit(process, ARRAY)
    wait_until(lambda: process.page.report.resident <= ARRAY)
    assert client.run("{place(array) for array in arrays + more} == {-2}"), "some memory belongs on the device"
    assert (process.phase, drain_count(process)) == (IN, 0)
    finish(client)
