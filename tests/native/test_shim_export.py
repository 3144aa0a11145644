"""Tests of memory exports: memory that the shim moves cannot go to another process, and the log has the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ScriptedCoordinator
from .test_shim_swap import TOOLS


def start(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> CudaClient:
    client = machine.client(GPUSHARE_MEMORY_MODE=mode)
    client.start("cuda = Cuda()")
    coordinator.accept().welcome().open(1)
    client.result()
    client.run("handle = (c_uint64 * 8)(); small, large = cuda.alloc(4096)[1], cuda.alloc(4 << 20)[1]")
    return client


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_movable_memory_cannot_be_exported(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    client = start(machine, coordinator, mode)
    assert client.run("0 in [cuda.cuIpcGetMemHandle(handle, c_uint64(a)) for a in (small, large, small)]") is False
    lines = [line for line in machine.log_text().splitlines() if "cannot pass device memory on" in line]
    assert len(lines) == 1, "the log has the line once"
    assert "cuIpcGetMemHandle" in lines[0] and f"mode {mode} " in lines[0] and "GPUSHARE_MEMORY_MODE=plain" in lines[0]


def test_unmovable_memory_can_be_exported(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = start(machine, coordinator, "plain")
    assert client.run("cuda.cuIpcGetMemHandle(handle, c_uint64(large))") == 0
    assert client.run("cuda.cuIpcGetMemHandle(handle, c_uint64(12345))") != 0
    assert "cannot pass device memory on" not in machine.log_text()


def test_other_exports_of_movable_memory_are_refused(machine: NativeHost, stub: Any) -> None:
    client, _ = stub(STUB_MANAGED="1")
    client.run("address = c_uint64(); cuda.cuMemAlloc_v2(byref(address), c_size_t(4096))")
    assert client.run("cuda.cuMemPoolExportPointer((c_uint64 * 8)(), address)") == 801
    assert "cuMemPoolExportPointer cannot pass device memory on" in machine.log_text()


def test_the_driver_is_not_asked_for_handles_of_memory_that_may_be_evicted(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """Another process or device would go on with the memory's former place."""
    client = start(machine, coordinator, "swap")
    client.run(TOOLS)
    client.run("mapped = reserve(2 << 20); own = create(2 << 20)[1]; map_at(mapped, 2 << 20, own)")
    for address in ("small", "large", "mapped"):
        assert client.run(f"cuda.cuIpcGetMemHandle(handle, c_uint64({address}))") == 801
    assert client.run("cuda.cuMemExportToShareableHandle(handle, c_uint64(own), 1, c_uint64(0))") == 1
