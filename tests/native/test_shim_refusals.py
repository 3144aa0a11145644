"""Tests of the log of refused memory: errors, recoveries and reasons."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

MIB = 1 << 20


def lines(machine: NativeHost, level: str) -> list[str]:
    """Return the lines of the log on refusals."""
    return [line for line in machine.log_text().splitlines() if f" {level} [" in line and "was refused" in line]


@pytest.fixture
def client(started: tuple[CudaClient, ProcessConnection]) -> CudaClient:
    """Return a client with 60 MiB of its limit of 100 MiB."""
    client, process = started
    process.page.control.memory_limit = 100 * MIB
    client.run("memory = cuda.alloc(60 << 20)[1]")
    return client


@pytest.mark.parametrize("attempts", [1, 3], ids=["PyTorch", "CuPy"])
def test_a_refusal_that_the_program_recovers_from_is_no_error(
    machine: NativeHost, client: CudaClient, attempts: int
) -> None:
    """Caching allocators free their caches and try again."""
    for _ in range(3):
        client.run(
            f"refused = [cuda.alloc(50 << 20)[0] for _ in range({attempts})]\n"
            "freed = cuda.free(memory); status, memory = cuda.alloc(60 << 20)"
        )
        assert client.run("refused") == [2] * attempts
        assert client.run("freed, status") == [0, 0]
    assert len(lines(machine, "info")) == 3 and "An allocation of 50 MiB was refused" in lines(machine, "info")[0]
    assert client.end() == ""
    assert lines(machine, "error") == []


def test_a_smaller_allocation_is_a_recovery(machine: NativeHost, client: CudaClient) -> None:
    """TensorFlow and JAX try nine tenths of the size again and again."""
    assert client.run("[cuda.alloc(int(80 * 0.9 ** i) << 20)[0] for i in range(8)]") == [2] * 7 + [0]
    assert len(lines(machine, "info")) == 1 and "An allocation of 80 MiB was refused" in lines(machine, "info")[0]
    assert client.end() == ""
    assert lines(machine, "error") == []


def test_refusals_without_a_recovery_are_one_error(machine: NativeHost, client: CudaClient) -> None:
    refused = "[cuda.alloc(size << 20)[0] for size in (80, 50, 50, 60)]"
    assert client.run(refused) == [2] * 4
    wait_until(lambda: len(lines(machine, "error")) == 1)
    assert "An allocation of 60 MiB was refused" in lines(machine, "error")[0]
    assert client.run(refused) == [2] * 4  # a second series
    assert "An allocation of 60 MiB was refused" in client.end()
    assert len(lines(machine, "error")) == 2 and len(lines(machine, "info")) == 2


@pytest.mark.nightly
def test_a_program_that_tries_for_long_has_an_error(machine: NativeHost, client: CudaClient) -> None:
    client.run("""
def retry():
    while cuda.alloc(50 << 20)[0] == 2:
        time.sleep(0.02)
in_thread(retry)
""")
    wait_until(lambda: lines(machine, "error"), 60)
    began, failed = (datetime.fromisoformat(lines(machine, level)[0].split()[0]) for level in ("info", "error"))
    assert failed - began >= timedelta(seconds=15)


def test_a_program_that_does_not_try_again_has_an_error_soon(machine: NativeHost, client: CudaClient) -> None:
    assert client.run("cuda.alloc(50 << 20)[0], cuda.alloc(5 << 20)[0]") == [2, 0]
    wait_until(lambda: len(lines(machine, "error")) == 1)
    assert "An allocation of 50 MiB was refused" in lines(machine, "error")[0]


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
