"""Tests of prefetch, which restores memory before the turn while another client runs."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, scripted_coordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, TOOLS, device_used
from .test_shim_transfer_failures import faulty_driver, hold_next, release, wait_until_held

SIZES = [20 * MIB, 3 * MIB, 66 * MIB, 4 * MIB, 6 * MIB]
WHOLE = sum(SIZES)
MODES = {
    "pageable": {"GPUSHARE_MEMORY_MODE": "swap"},
    "pinned": {"GPUSHARE_MEMORY_MODE": "swap", "GPUSHARE_PINNED": str(1 << 30)},
    "unified": {"GPUSHARE_MEMORY_MODE": "unified"},
}
SLOW = "[device]\nname = slow link\nmemory = 1GiB\nh2d_bandwidth = 400MiB/s\n"


def start(
    machine: NativeHost, coordinator: ScriptedCoordinator, sizes: str = str(SIZES), **environment: str
) -> StartedClient:
    """Start a client with arrays of known contents, and end its turn, so that all arrays are off the device."""
    client, process = machine.new_client(coordinator, **environment)
    client.run(TOOLS)
    process.open(1)
    client.run(f"arrays = [(cuda.alloc(n)[1], bytes([i + 1, 3 * i + 3, 5]) * (n // 3)) for i, n in enumerate({sizes})]")
    assert not any(client.run("[write(address, data) for address, data in arrays]"))
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    process.page.control.resident_target[0] = EVERYTHING
    return client, process


@pytest.fixture(params=list(MODES))
def started(request: pytest.FixtureRequest, machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    return start(machine, coordinator, **MODES[request.param])


@pytest.fixture(params=list(MODES))
def slow(request: pytest.FixtureRequest, machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    (machine.root / "slow").write_text(SLOW)
    return start(machine, coordinator, GPUSHARE_SIM_CONFIG=str(machine.root / "slow"), **MODES[request.param])


def prefetch(process: Any, limit: int = EVERYTHING) -> None:
    process.page.control.prefetch_limit[0] = limit
    process.doorbell()


def wait_for_agent(process: Any) -> None:
    """Wait until the agent has gone through its loop once from the beginning to the end."""
    for _ in range(2):
        process.page.control.inspect_seq += 1
        process.doorbell()
        process.expect("details", seq=process.page.control.inspect_seq)


def check(client: CudaClient) -> None:
    assert client.run("cuda.spin(0.01)") == 0
    assert client.run("all(has_data(address, data) for address, data in arrays)", 60)


def test_prefetched_memory_is_resident_at_the_start_of_the_turn(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    report = process.page.report
    prefetch(process)
    wait_until(lambda: report.resident == WHOLE and report.restored_bytes >= WHOLE)
    assert report.missing_bytes == 0 and report.restored_ns > 0
    before, restored = device_used(machine), report.restored_bytes
    process.open(2)
    check(client)
    assert (report.restored_bytes, report.unmet_request_seq) == (restored, 0)
    assert device_used(machine) == before


def test_unmade_memory_is_made_with_the_turn(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = start(machine, coordinator, **MODES["pageable"])
    report = process.page.report
    client.run("new = cuda.alloc(50 << 20)[1]")
    prefetch(process)
    wait_until(lambda: report.resident == WHOLE)
    wait_for_agent(process)
    assert (report.resident, report.unmade) == (WHOLE, 50 * MIB)
    process.open(2)
    check(client)
    assert (report.unmade, report.restored) == (0, 0)


def test_no_more_than_is_allowed_and_the_rest_with_the_turn(client: CudaClient, process: ProcessConnection) -> None:
    report = process.page.report
    prefetch(process, 60 * MIB)
    wait_until(lambda: report.restored_bytes > 0)
    wait_for_agent(process)
    assert 0 < report.resident <= 60 * MIB
    process.page.control.resident_target[0] = 30 * MIB
    process.doorbell()
    wait_until(lambda: report.resident <= 30 * MIB)
    process.page.control.resident_target[0] = EVERYTHING
    process.open(2)
    check(client)
    assert report.resident == WHOLE


def test_a_turn_that_begins_during_a_prefetch_restores_the_rest(slow: StartedClient) -> None:
    client, process = slow
    prefetch(process)
    wait_until(lambda: process.page.report.resident > 0)
    process.open(2)
    check(client)
    assert process.page.report.resident == WHOLE
    assert process.page.report.restored_bytes == process.page.report.evicted_bytes


def test_prefetched_memory_is_evicted_on_request(slow: StartedClient) -> None:
    client, process = slow
    report = process.page.report
    prefetch(process)
    wait_until(lambda: report.resident > 0)
    process.page.control.resident_target[0] = 0
    process.doorbell()
    wait_until(lambda: report.resident == 0)
    prefetch(process, 0)
    process.page.control.resident_target[0] = EVERYTHING
    process.open(2)
    check(client)


def test_interrupted_prefetch_does_not_continue(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """The interrupt comes during the first batch, which the copy of one array makes as long as a batch may be."""
    client, process = start(
        machine,
        coordinator,
        LD_LIBRARY_PATH=str(faulty_driver().parent),
        **MODES["pinned"],
        sizes="[2 << 20] * 60",
    )
    hold_next(client, "cuMemcpyHtoDAsync_v2")
    prefetch(process)
    wait_until_held(client)
    process.page.interrupt()
    client.run("time.sleep(0.05)")
    release(client)
    wait_for_agent(process)
    stopped = process.page.report.resident
    assert 0 < stopped < 120 * MIB
    wait_for_agent(process)
    assert process.page.report.resident == stopped
    process.open(2)
    check(client)


@pytest.mark.parametrize("kind", list(MODES))
def test_prefetch_uses_free_memory_only(kind: str, machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """A prefetch evicts no memory and requests no room, and it uses memory that becomes free later."""
    size = {"GPUSHARE_SIM_MEMORY": "512MiB"}
    client, process = start(machine, coordinator, **size, **MODES[kind])
    report = process.page.report
    other = machine.client(GPUSHARE_DISABLE="1", **size)
    other.run("cuda = Cuda()")
    code, taken = other.run(f"cuda.alloc({other.run('cuda.info()')[0] - 96 * MIB})")
    assert code == 0
    prefetch(process)
    wait_until(lambda: report.restored_bytes > 0)
    wait_until(lambda: report.restored_bytes >= report.resident)
    assert 0 < report.resident <= 80 * MIB  # the prefetch leaves 1/32 of the device free
    assert other.run("cuda.alloc(8 << 20)[0]") == 0
    assert (report.unmet_bytes, report.unmet_request_seq) == (0, 0)
    assert other.run(f"cuda.free({taken})") == 0
    wait_until(lambda: report.resident == WHOLE)
    process.open(2)
    check(client)


def test_memory_returns_where_evicted_memory_does_not_count_as_free(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The driver keeps evicted unified memory as unused, so that cuMemGetInfo shows too little room for a prefetch."""
    (machine.root / "keeps").write_text("[device]\nmemory = 256MiB\nkeeps_unused = 1\n")
    config = {"GPUSHARE_SIM_CONFIG": str(machine.root / "keeps")}
    client, process = start(machine, coordinator, **config, **MODES["unified"])
    other = machine.client(GPUSHARE_DISABLE="1", **config)
    other.run("cuda = Cuda()")
    code, taken = other.run(f"cuda.alloc({200 * MIB})")
    assert code == 0, "unused memory is there for other programs"
    prefetch(process)
    wait_for_agent(process)
    assert other.run(f"cuda.free({taken})") == 0
    process.open(2)
    check(client)
    assert process.page.report.resident == WHOLE


def test_prefetch_ignores_memory_in_mode_plain(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="plain")
    prefetch(process)
    process.open(1)
    assert client.run("cuda.alloc(1 << 20)[0], cuda.spin(0.01)") == [0, 0]
    process.drain(1)
    assert process.page.report.restored_bytes == 0


def test_prefetch_limit_ends_with_its_coordinator(
    machine: NativeHost, coordinator: ScriptedCoordinator, process: ProcessConnection
) -> None:
    """The next coordinator may be of an older version that does not know the field."""
    prefetch(process, MIB)
    coordinator.crash()
    with scripted_coordinator(machine.socket) as later:
        assert later.accept().page.control.prefetch_limit[0] == 0
