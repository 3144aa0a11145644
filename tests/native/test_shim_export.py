"""Tests of memory that other processes or devices may use: refused exports, and memory that stays where it is."""

from __future__ import annotations

from typing import Any

import pytest

from ..support import sanitizers
from ..support.compile_cache import cached
from .conftest import HERE, CudaClient, NativeHost, StartedClient, built_shim
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, TOOLS, device_used

SYNC_MEMOPS, RDMA_CAPABLE = 6, 15
SHAREABLE = """
FILE = 1
SHAREABLE = (c_uint32 * 8)(1, FILE, 1, 0, 0, 0, 0x100, 0)  # pinned, on device 0, for GPUDirect RDMA

def create(size, properties=SHAREABLE):
    handle = c_uint64()
    return cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0)), handle.value

def export(handle):
    file = c_int(-1)
    return cuda.cuMemExportToShareableHandle(byref(file), c_uint64(handle), FILE, c_uint64(0)), file.value

def segment():
    address, (code, handle) = reserve(4 << 20), create(4 << 20)
    return code or map_at(address, 4 << 20, handle), address, handle
"""


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


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_movable_memory_is_not_for_rdma(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    """A program asks for the capability, or makes the setting, before another device may access the memory."""
    client = start(machine, coordinator, mode)
    client.run("value = c_uint32(1); managed = cuda.alloc(4096, 'cuMemAllocManaged', 1)[1]")
    setting = f"cuda.cuPointerSetAttribute(byref(value), {SYNC_MEMOPS}, c_uint64({{}}))"
    assert client.run(f"cuda.attribute({RDMA_CAPABLE}, large)") == [0, 0]
    assert [client.run(setting.format(name)) for name in ("managed", "large", "small + 5")] == [0, 801, 801]
    lines = [line for line in machine.log_text().splitlines() if "cannot pass device memory on" in line]
    assert len(lines) == 1 and "SYNC_MEMOPS" in lines[0] and "GPUSHARE_MEMORY_MODE=plain" in lines[0]


def test_unmovable_memory_is_for_rdma(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = start(machine, coordinator, "plain")
    assert client.run(f"cuda.cuPointerSetAttribute(byref(c_uint32(1)), {SYNC_MEMOPS}, c_uint64(large))") == 0
    assert client.run(f"cuda.attribute({RDMA_CAPABLE}, large)") == [0, 1]


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


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Return a client of mode "swap" in its turn, with a segment as PyTorch's expandable segments have."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    process.open(1)
    client.run(TOOLS)
    client.run(SHAREABLE)
    client.run("import os; data = os.urandom(4 << 20); code, address, handle = segment()")
    assert client.run("code or write(address, data)") == 0
    return client, process


def evict(process: ProcessConnection, epoch: int, left: int = 0) -> None:
    process.page.control.resident_target[0] = 0
    process.drain(epoch)
    wait_until(lambda: process.page.report.resident == left)
    process.page.control.resident_target[0] = EVERYTHING


def test_shareable_memory_moves_until_it_is_exported(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    report = process.page.report
    used = device_used(machine)
    assert (report.allocated, report.unmovable) == (4 * MIB, 0)
    evict(process, 1)
    assert device_used(machine) == used - 4 * MIB
    process.open(2)
    assert client.run("has_data(address, data)")
    assert client.run(f"cuda.attribute({RDMA_CAPABLE}, address)") == [0, 0]
    client.run("code, file = export(handle)")
    assert client.run("code") == 0
    assert report.unmovable == 4 * MIB
    other = machine.client(GPUSHARE_DISABLE="1")
    other.run("cuda = Cuda()")
    other.run(TOOLS)
    imported = "cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(file), 1)"
    other.run(
        f"import os; handle = c_uint64(); file = os.open('/proc/{client.pid}/fd/{client.run('file')}', os.O_RDWR)"
    )
    assert other.run(f"{imported} or map_at(reserve(4 << 20), 4 << 20, handle.value)") == 0
    assert client.run("_, second, _ = segment(); write(second, data)") is None
    evict(process, 2, left=4 * MIB)
    process.open(3)
    assert client.run("has_data(address, data) and has_data(second, data)")
    assert client.run("release(handle) or unmap(address, 4 << 20)") == 0
    assert (report.allocated, report.unmovable) == (4 * MIB, 0)


def test_an_export_of_evicted_memory_waits_for_the_turn(client: CudaClient, process: ProcessConnection) -> None:
    evict(process, 1)
    client.start("export(handle)[0]")
    assert client.is_running()
    process.open(2)
    assert client.result() == 0
    assert client.run("has_data(address, data)")


def test_an_export_that_fails_leaves_memory_movable(client: CudaClient, process: ProcessConnection) -> None:
    client.run("address, (_, handle) = reserve(4 << 20), create(4 << 20, PROPERTIES); map_at(address, 4 << 20, handle)")
    assert client.run("export(handle)[0]") == 1
    assert process.page.report.unmovable == 0
    evict(process, 1)


def test_the_driver_refuses_shareable_memory_at_once(client: CudaClient, process: ProcessConnection) -> None:
    """The call waits for the turn, because memory that the driver refuses could never be made in a later turn."""
    process.drain(1)
    client.run("FABRIC = (c_uint32 * 8)(1, 8, 1, 0, 0, 0, 0, 0)")
    client.start("create(4 << 20, FABRIC)[0]")
    assert client.is_running()
    process.open(2)
    assert client.result() == 801
    assert process.page.report.allocated == 4 * MIB


def test_memory_for_RDMA_stays_where_a_module_may_register_it(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The module takes addresses from the network's driver, so no call to CUDA shows that."""
    source = HERE / "peermem.c"
    library = cached("peermem.so", [source], lambda out: [["cc", "-shared", "-fPIC", "-o", str(out), str(source)]])
    preload = sanitizers.preload(f"{built_shim()}:{library}")
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", **preload)
    process.open(1)
    client.run(TOOLS)
    client.run(SHAREABLE)
    assert client.run("create(4 << 20)[0], create(4 << 20, PROPERTIES)[0]") == [0, 0]
    assert (process.page.report.allocated, process.page.report.unmovable) == (8 * MIB, 4 * MIB)


TEAM = """
import os
team, data = c_uint64(), os.urandom(4 << 20)
assert cuda.cuMulticastCreate(byref(team), (c_uint64 * 4)(1, 16 << 20, 0, 0)) == 0  # for one device
assert cuda.cuMulticastAddDevice(team, 0) == 0

def bind_memory(handle, at, size):
    return cuda.cuMulticastBindMem(team, c_size_t(at), c_uint64(handle), c_size_t(0), c_size_t(size), c_uint64(0))

def bind_address(address, at, size):
    return cuda.cuMulticastBindAddr(team, c_size_t(at), c_uint64(address), c_size_t(size), c_uint64(0))

code, address, handle = segment()
assert (code or write(address, data)) == 0
"""


def start_member(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Return a client of mode "swap" in its turn, with a segment and a multicast object without memory."""
    (machine.root / "multicast").write_text("[device]\nmulticast = 1\n")
    client, process = machine.new_client(
        coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=str(machine.root / "multicast")
    )
    process.open(1)
    for code in (TOOLS, SHAREABLE, TEAM):
        client.run(code)
    return client, process


@pytest.mark.parametrize("call", ["bind_memory(handle, 0, 4 << 20)", "bind_address(address, 0, 4 << 20)"])
def test_evicted_memory_comes_back_for_a_multicast_object_and_stays(
    machine: NativeHost, coordinator: ScriptedCoordinator, call: str
) -> None:
    client, process = start_member(machine, coordinator)
    evict(process, 1)
    client.start(call)
    assert client.is_running()
    process.open(2)
    assert client.result() == 0
    assert process.page.report.unmovable == 4 * MIB
    evict(process, 2, left=4 * MIB)
    process.open(3)
    assert client.run("has_data(address, data)")
    assert client.run("cuda.cuMulticastUnbind(team, 0, c_size_t(0), c_size_t(4 << 20))") == 0
    assert client.run("release(handle) or unmap(address, 4 << 20) or release(team.value)") == 0
    assert (process.page.report.allocated, process.page.report.unmovable) == (0, 0)


@pytest.mark.parametrize("call", ["bind_memory(handle, 1, 4 << 20)", "bind_address(address, 0, 32 << 20)"])
def test_memory_that_a_multicast_object_refuses_still_moves(
    machine: NativeHost, coordinator: ScriptedCoordinator, call: str
) -> None:
    client, process = start_member(machine, coordinator)
    assert client.run(call) == 1
    assert process.page.report.unmovable == 0
    evict(process, 1)


BINDS = {
    "cuMulticastBindMem": "c_uint64(5), c_size_t(0), handle, c_size_t(0), size, c_uint64(0)",
    "cuMulticastBindMem_v2": "c_uint64(5), 0, c_size_t(0), handle, c_size_t(0), size, c_uint64(0)",
    "cuLogicalEndpointBindMem": "5, 0, c_uint64(0), handle, c_uint64(0), size, c_uint64(0)",
    "cuMulticastBindAddr": "c_uint64(5), c_size_t(0), address, size, c_uint64(0)",
    "cuMulticastBindAddr_v2": "c_uint64(5), 0, c_size_t(0), address, size, c_uint64(0)",
    "cuLogicalEndpointBindAddr": "5, 0, c_uint64(0), address, size, c_uint64(0)",
    "cuMemGetHandleForAddressRange": "(c_uint64 * 2)(), address, size, 1, c_uint64(0)",
}


@pytest.mark.parametrize("name", BINDS)
def test_memory_that_other_devices_use_stays(stub: Any, name: str) -> None:
    client, process = stub([name], STUB_MAPPED="1", GPUSHARE_MEMORY_MODE="swap")
    process.open(1)
    client.run("address, size = c_uint64(0x40000000), c_size_t(4 << 20)")
    assert client.run("create(4 << 20), map_at(address.value, 4 << 20)") == [0, 0]
    assert process.page.report.unmovable == 0
    assert client.run(f"cuda.{name}({BINDS[name]})") == 0
    assert process.page.report.unmovable == 4 * MIB
    assert client.run("release(), unmap(address.value, 4 << 20)") == [0, 0]
    assert (process.page.report.unmovable, process.page.report.allocated) == (0, 0)
