"""Tests of the log of refused memory: errors, recoveries and reasons."""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

MIB = 1 << 20


def errors(machine: NativeHost) -> list[str]:
    return [line for line in machine.log_text().splitlines() if " error [" in line]


@pytest.fixture
def client(started: tuple[CudaClient, ProcessConnection]) -> CudaClient:
    """Return a client with 60 MiB of its limit of 100 MiB."""
    client, process = started
    process.page.control.memory_limit = 100 * MIB
    client.run("memory = cuda.alloc(60 << 20)[1]")
    return client


def test_a_refusal_that_the_program_recovers_from_is_no_error(machine: NativeHost, client: CudaClient) -> None:
    """Caching allocators free their caches and try again."""
    for _ in range(3):
        client.run("codes = [cuda.alloc(50 << 20)[0], cuda.free(memory)]; code, memory = cuda.alloc(60 << 20)")
        assert client.run("codes + [code]") == [2, 0, 0]
    assert "An allocation of 50 MiB was refused" in machine.log_text()
    assert client.end() == ""
    assert errors(machine) == []


def test_a_second_refusal_is_an_error_at_once(machine: NativeHost, client: CudaClient) -> None:
    assert client.run("[cuda.alloc(50 << 20)[0] for _ in range(3)]") == [2, 2, 2]
    assert len(errors(machine)) == 1 and "An allocation of 50 MiB was refused" in errors(machine)[0]
    assert client.run("cuda.free(memory), cuda.free(cuda.alloc(50 << 20)[1])") == [0, 0]
    assert client.run("cuda.alloc(60 << 20)[0], cuda.alloc(50 << 20)[0], cuda.alloc(50 << 20)[0]") == [0, 2, 2]
    assert len(errors(machine)) == 2


def test_a_program_that_does_not_try_again_has_an_error_soon(machine: NativeHost, client: CudaClient) -> None:
    assert client.run("cuda.alloc(50 << 20)[0], cuda.alloc(5 << 20)[0]") == [2, 0]
    wait_until(lambda: len(errors(machine)) == 1)
    assert "An allocation of 50 MiB was refused" in errors(machine)[0]


def test_a_program_that_ends_has_an_error_at_its_end(client: CudaClient) -> None:
    assert client.run("cuda.alloc(50 << 20)[0]") == 2
    assert "An allocation of 50 MiB was refused" in client.end()


def test_the_reason_corrects_the_advice_of_PyTorch(
    machine: NativeHost, client: CudaClient, coordinator: ScriptedCoordinator
) -> None:
    client.run("cuda.alloc(50 << 20)")
    assert "expandable_segments" in machine.log_text()
    machine.log.unlink()
    swapping, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.page.control.memory_limit = MIB
    assert swapping.run("cuda.alloc(50 << 20)[0]") == 2
    assert "An allocation of 50 MiB was refused" in machine.log_text()
    assert "expandable_segments" not in machine.log_text()


def test_a_full_device_is_a_reason(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_MEMORY="256MiB")
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda(); taken = cuda.alloc(150 << 20)")
    client.begin(process, 1)
    client.start("cuda.alloc(150 << 20)[0]")
    wait_until(lambda: process.page.report.unmet_bytes)
    process.page.control.refused_request_seq = process.page.report.unmet_request_seq
    assert client.result() == 2
    assert "An allocation was refused: the device has no room" in machine.log_text()
