"""Tests of the host memory of mode `swap`: ordinary host memory is kept for the next eviction, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import NativeHost, StartedClient
from .fake_coordinator import ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, TOOLS

SIZES = (64, 20, 3)
ALL = sum(SIZES) + 1  # MiB; blocks have even sizes


class SwapClient:
    """Client of mode `swap` that is evicted and restored as a whole."""

    def __init__(self, started: StartedClient) -> None:
        self.program, self.process = started
        self.report, self.control = self.process.page.report, self.process.page.control
        self.turn = 1
        self.program.run(TOOLS)
        self.process.open(1)
        self.allocate(*SIZES)

    def allocate(self, *sizes: int) -> None:
        self.program.run(
            f"arrays = [(cuda.alloc(n << 20)[1], bytes([i, 3 * i, 5, 7]) * (n << 18)) for i, n in enumerate({sizes})]"
        )
        assert not any(self.program.run("[write(address, data) for address, data in arrays]"))

    def evict(self) -> None:
        self.control.resident_target = 0
        self.process.drain(self.turn)
        wait_until(lambda: self.report.resident == 0)

    def restore(self) -> None:
        self.control.resident_target = EVERYTHING
        self.turn += 1
        self.process.open(self.turn)
        assert self.program.run("all(has_data(address, data) for address, data in arrays)")

    @property
    def on_host(self) -> float:
        return float(self.report.host_pageable / MIB)

    def copy_threads(self) -> int:
        names = [path.read_text() for path in Path(f"/proc/{self.program.pid}/task").glob("*/comm")]
        return names.count("gpushare-copy\n")


@pytest.fixture
def client(machine: NativeHost, coordinator: ScriptedCoordinator) -> Iterator[SwapClient]:
    yield SwapClient(machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_PINNED="0"))


def test_host_memory_is_kept_for_the_next_eviction(client: SwapClient) -> None:
    for _ in range(3):
        client.evict()
        assert client.on_host == ALL
        client.restore()
        assert client.on_host == ALL


def test_no_host_memory_is_kept_under_a_limit_of_host_memory(client: SwapClient) -> None:
    client.control.evicted_limit = 200 * MIB
    client.evict()
    assert client.on_host == ALL
    client.restore()
    assert client.on_host == 0


def test_kept_host_memory_is_at_most_the_memory_of_the_program(client: SwapClient) -> None:
    client.evict()
    client.restore()
    assert client.program.run("cuda.free(arrays.pop(0)[0])") == 0
    assert client.on_host <= ALL - 64
    client.allocate(50, 10)
    client.evict()
    assert client.on_host == ALL - 64 + 60
    client.restore()


def test_threads_that_copy_end_without_work(client: SwapClient) -> None:
    client.evict()
    wait_until(lambda: client.copy_threads() == 0)
    client.restore()


@pytest.mark.nightly  # because it takes a minute
def test_kept_host_memory_returns_to_the_host(client: SwapClient) -> None:
    client.evict()
    client.restore()
    wait_until(lambda: client.on_host == 0, seconds=90)
