"""Tests of new unified memory: its pages come by a prefetch if the client may use the device, else by page faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator
from .test_shim_swap import device_used

MIB = 1 << 20
Measure = Callable[[str], float]
OFFLINE = 4  # of quota_flags


@pytest.fixture
def used_by(machine: NativeHost, client: CudaClient, process: ProcessConnection) -> Measure:
    """Return a function that runs code in a client in its turn, and returns the MiB that this adds on the device."""
    process.open(1)
    assert client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]  # the first call begins the turn
    before = device_used(machine)

    def measure(code: str) -> float:
        client.run(code)
        assert client.run("cuda.cuCtxSynchronize()") == 0
        return (device_used(machine) - before) / MIB

    return measure


def test_new_memory_gets_its_pages_in_the_turn(used_by: Measure) -> None:
    assert used_by("cuda.alloc(64 << 20)") == 64


def test_small_memory_gets_its_pages_at_the_first_use(used_by: Measure) -> None:
    assert used_by("cuda.alloc(1 << 20)") == 0


def test_memory_beyond_the_device_gets_no_pages(used_by: Measure) -> None:
    assert used_by("cuda.alloc(200 << 20)") == 200
    assert used_by("cuda.alloc(900 << 20)") == 200


def test_preallocation_of_a_framework_gets_no_pages(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_MEMORY="5GiB")
    process.open(1)
    assert client.run("cuda.cuCtxSynchronize()") == 0
    before = device_used(machine)
    assert client.run("cuda.alloc(3 << 30)[0]") == 0
    assert client.run("cuda.cuCtxSynchronize()") == 0
    assert device_used(machine) == before


def test_large_memory_below_a_quarter_of_the_device_gets_its_pages(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The pages come at once in the turn, and with the next turn for memory from outside of a turn.

    No page is written, so the memory takes nothing of the host.
    """
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_MEMORY="8GiB")
    client.run("context = cuda.cuCtxSynchronize(); early = cuda.alloc(1200 << 20)[1]")
    before = device_used(machine)
    process.open(1)
    assert client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]
    assert device_used(machine) - before == 1200 * MIB
    assert client.run("cuda.alloc(1536 << 20)[0], cuda.cuCtxSynchronize()") == [0, 0]
    assert device_used(machine) - before == (1200 + 1536) * MIB
    assert client.run("cuda.alloc(2050 << 20)[0], cuda.cuCtxSynchronize()") == [0, 0]
    assert device_used(machine) - before == (1200 + 1536) * MIB
    assert int(client.run("open('/proc/self/statm').read().split()[1]")) * 4096 < 1 << 30


def test_memory_of_an_offline_client_gets_its_pages_at_the_first_use(
    process: ProcessConnection, used_by: Measure
) -> None:
    process.page.control.quota_flags |= OFFLINE
    assert used_by("cuda.alloc(64 << 20)") == 0


def test_memory_of_a_client_that_becomes_offline_before_its_turn_gets_its_pages_at_the_first_use(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    client.run("context = cuda.cuCtxSynchronize(); array = cuda.alloc(64 << 20)[1]")
    process.page.control.quota_flags |= OFFLINE
    before = device_used(machine)
    process.open(1)
    assert client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]
    assert device_used(machine) == before


def test_memory_from_outside_of_a_turn_gets_its_pages_with_the_turn(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    client.run("context = cuda.cuCtxSynchronize(); kept, gone = [cuda.alloc(n << 20)[1] for n in (64, 32)]")
    assert client.run("cuda.free(gone)") == 0
    before = device_used(machine)
    process.open(1)
    assert client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]
    assert device_used(machine) - before == 64 * MIB
