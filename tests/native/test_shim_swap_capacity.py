"""Tests of the most memory of mode "swap" on each device, and of calls for which the device lacks room."""

from __future__ import annotations

import time

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

from .conftest import NativeHost
from .fake_coordinator import WAIT_SECONDS, ScriptedCoordinator, wait_until

MIB = 1 << 20
OUT_OF_MEMORY = 2
DEVICE = {"GPUSHARE_MEMORY_MODE": "swap", "GPUSHARE_SIM_MEMORY": "256MiB"}


def test_context_memory_of_all_clients_stays_free(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, **DEVICE)
    process.page.control.context_bytes = 100 * MIB
    assert client.run("cuda.info()[0] >> 20") == 152  # and 4 MiB of 256 MiB for code that is loaded later
    assert client.run("cuda.alloc(154 << 20)[0]") == OUT_OF_MEMORY
    assert "at most 152 MiB of this device" in machine.log_text()
    assert client.run("cuda.alloc(152 << 20)[0]") == 0
    assert client.run("cuda.alloc(2 << 20)[0]") == OUT_OF_MEMORY


def test_a_sixteenth_stays_free_where_context_memory_is_unknown(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, _ = machine.new_client(coordinator, **DEVICE)
    assert client.run("cuda.alloc(242 << 20)[0], cuda.alloc(240 << 20)[0]") == [OUT_OF_MEMORY, 0]


def test_context_memory_above_the_size_of_the_device_leaves_no_room(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, process = machine.new_client(coordinator, **DEVICE)
    process.page.control.context_bytes = (1 << 64) - 1
    assert client.run("cuda.alloc(2 << 20)[0]") == OUT_OF_MEMORY


def test_a_process_may_fill_each_of_its_devices(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, **DEVICE, GPUSHARE_SIM_DEVICES="2")
    client.begin(process, 1)
    assert client.run("cuda.alloc(200 << 20)[0], cuda.alloc(100 << 20)[0]") == [0, OUT_OF_MEMORY]
    client.run("other = c_void_p(); cuda.cuDevicePrimaryCtxRetain(byref(other), 1); cuda.cuCtxSetCurrent(other)")
    client.run("status, array = cuda.alloc(200 << 20)")
    assert client.run("status, cuda.alloc(100 << 20)[0]") == [0, OUT_OF_MEMORY]
    assert client.run("cuda.free(array), cuda.alloc(210 << 20)[0]") == [0, 0]


@pytest.mark.nightly  # 15 s pass between the turns
def test_only_time_in_turns_counts_for_a_lack_of_room(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, **DEVICE)
    client.begin(process, 1)
    client.run("array = cuda.alloc(150 << 20)[1]")
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda(); taken = cuda.alloc(150 << 20)")
    process.open(2)
    client.start("cuda.spin()")
    wait_until(lambda: process.page.report.unmet_bytes)
    first = process.page.report.unmet_request_seq
    process.drain(2)
    end = time.monotonic() + 16
    wait_until(lambda: time.monotonic() > end, seconds=20)
    process.open(3)
    wait_until(lambda: process.page.report.unmet_bytes and process.page.report.unmet_request_seq > first + 1)
    process.page.control.refused_request_seq = process.page.report.unmet_request_seq
    assert client.is_running(1.0)
    other.end()
    assert client.result() == 0


@pytest.mark.nightly  # the program waits for 15 s before the call fails
def test_a_call_fails_whose_memory_has_no_room_for_long(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, **DEVICE)
    client.begin(process, 1)
    client.run("array = cuda.alloc(150 << 20)[1]; cuda.launch('fill_f32', array, 7.0, 1000); value = c_float()")
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda(); taken = cuda.alloc(150 << 20)")
    process.open(2)
    for _ in range(2):
        client.start("cuda.spin()")
        wait_until(lambda: process.page.report.unmet_bytes)
        assert client.is_running()
        process.page.control.refused_request_seq = process.page.report.unmet_request_seq
        assert client.result(2 * WAIT_SECONDS) == OUT_OF_MEMORY
        assert process.page.report.unmet_bytes == 0
    assert "of this program's memory have no room on the device" in machine.log_text()
    other.end()
    assert client.run("cuda.spin(), cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(array), c_size_t(4)), value.value") == [
        0,
        0,
        7.0,
    ]


def test_a_refusal_of_room_ends_a_wait_for_the_turn(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """The user gets the reason each time, and the next call waits for a turn again."""
    client, process = machine.new_client(coordinator, **DEVICE)
    reason = 'because 140 MiB of "plän\\" cannot leave the GPU'
    client.start("cuda.spin()")
    process.wait_for_waiting_thread()
    process.connection.sendall(encode(messages.RoomRefused(reason=reason)))
    assert client.result() == OUT_OF_MEMORY
    assert machine.log_text().count(reason) == 1
    client.start("cuda.spin()")
    process.wait_for_waiting_thread()
    assert client.is_running()
    client.begin(process, 1)
    assert client.result() == 0
    process.connection.sendall(encode(messages.RoomRefused(reason="after the wait")))
    assert client.run("cuda.spin()") == 0
    assert "after the wait" not in machine.log_text()
    assert client.end().count(reason) == 1
