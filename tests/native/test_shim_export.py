"""Memory that is to go to another process: where the shim moves it, it cannot, and the log says what helps."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Client, Machine
from .fake_coordinator import FakeCoordinator


def start(machine: Machine, coordinator: FakeCoordinator, mode: str) -> Client:
    client = machine.client(GPUSHARE_MEMORY_MODE=mode)
    client.start("cuda = Cuda()")
    coordinator.accept().welcome().open(1)
    client.result()
    client.run("handle = (c_uint64 * 8)(); small, large = cuda.alloc(4096)[1], cuda.alloc(4 << 20)[1]")
    return client


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_what_moves_cannot_be_handed_on(machine: Machine, coordinator: FakeCoordinator, mode: str) -> None:
    client = start(machine, coordinator, mode)
    assert client.run("0 in [cuda.cuIpcGetMemHandle(handle, c_uint64(a)) for a in (small, large, small)]") is False
    lines = [line for line in machine.log_text().splitlines() if "cannot pass device memory on" in line]
    assert len(lines) == 1, "it is said once"
    assert "cuIpcGetMemHandle" in lines[0] and f"mode {mode} " in lines[0] and "GPUSHARE_MEMORY_MODE=plain" in lines[0]


def test_what_stays_can_be(machine: Machine, coordinator: FakeCoordinator) -> None:
    client = start(machine, coordinator, "plain")
    assert client.run("cuda.cuIpcGetMemHandle(handle, c_uint64(large))") == 0
    assert client.run("cuda.cuIpcGetMemHandle(handle, c_uint64(12345))") != 0
    assert "cannot pass device memory on" not in machine.log_text()


def test_other_ways_out(machine: Machine, stub: Any) -> None:
    client, _ = stub(STUB_MANAGED="1")
    client.run("address = c_uint64(); cuda.cuMemAlloc_v2(byref(address), c_size_t(4096))")
    assert client.run("cuda.cuMemPoolExportPointer((c_uint64 * 8)(), address)") == 801
    assert "cuMemPoolExportPointer cannot pass device memory on" in machine.log_text()
