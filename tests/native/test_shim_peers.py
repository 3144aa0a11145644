"""Tests of launches that use memory of another device, on two simulated devices.

In mode "swap" memory of cuMemAlloc is mapped memory, which the driver's own peer access does not cover.
"""

from __future__ import annotations

import pytest

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, TOOLS
from .test_shim_transfer_failures import faulty_driver

READ_WRITE = 3
ALREADY_ENABLED, NOT_ENABLED, INVALID_CONTEXT, ILLEGAL_ADDRESS = 704, 705, 201, 700
LARGE, SMALL = 65 * MIB, 4096  # two blocks, and a part of a slab

PEERS = """
def primary(device):
    context = c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    return context

own, peer = cuda.context, primary(1)

def on(context, function, *values):
    assert cuda.cuCtxSetCurrent(context) == 0
    try:
        return function(*values)
    finally:
        cuda.cuCtxSetCurrent(own)

def enable(context=peer):
    return cuda.cuCtxEnablePeerAccess(context, 0)

def disable(context=peer):
    return cuda.cuCtxDisablePeerAccess(context)

def alloc_there(size):
    status, address = on(peer, cuda.alloc, size)
    assert status == 0
    return address

def fill(address, size=64):
    # a launch on device 0
    assert cuda.launch('fill_f32', address, 1.0, size // 4) == 0
    return cuda.cuCtxSynchronize()

def access(address, device):
    flags, location = c_uint64(77), (c_int * 2)(1, device)
    return cuda.cuMemGetAccess(byref(flags), location, c_uint64(address)), flags.value

def set_pool_access(pool, device, flags):
    return cuda.cuMemPoolSetAccess(pool, (c_uint32 * 3)(1, device, flags), c_size_t(1))

def take(pool, size):
    status, address = on(peer, cuda.alloc, size, 'cuMemAllocFromPoolAsync', pool, None)
    assert status == 0
    return address
"""


def two_devices(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str, devices: int = 2, **environment: str
) -> StartedClient:
    environment |= {"GPUSHARE_MEMORY_MODE": mode, "GPUSHARE_SIM_DEVICES": str(devices)}
    client, process = machine.new_client(coordinator, **environment)
    client.begin(process, 1)
    client.run(TOOLS)
    client.run(PEERS)
    return client, process


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    return two_devices(machine, coordinator, "swap")


def evict(process: ProcessConnection) -> None:
    """End the first turn, after which all memory must leave its device."""
    targets = process.page.control.resident_target
    targets[0:3] = [0] * 3
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0, what="the eviction of all memory")
    targets[0:3] = [EVERYTHING] * 3


@pytest.mark.parametrize("mode", ["unified", "swap", "plain"])
def test_a_launch_uses_memory_of_a_peer(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    client, _ = two_devices(machine, coordinator, mode)
    client.run(f"memory = [alloc_there(size) for size in ({LARGE}, {SMALL})]")
    assert client.run("enable()") == 0
    client.run(f"memory += [alloc_there(size) for size in ({LARGE}, {SMALL})]")
    assert client.run(f"[fill(*one) for one in zip(memory, [{LARGE}, {SMALL}] * 2)]") == [0] * 4
    assert client.run("[read(address, 16) for address in memory]") == [[1.0] * 3] * 4


def test_access_survives_an_eviction(client: CudaClient, process: ProcessConnection) -> None:
    client.run(f"before = alloc_there({LARGE})")
    assert client.run("enable()") == 0
    client.run(f"after = alloc_there({SMALL})")
    evict(process)
    process.open(2)
    assert client.run(f"fill(before, {LARGE}), fill(after)") == [0, 0]
    assert client.run(f"read(before, {LARGE // 4}), read(after, 16)") == [[1.0] * 3] * 2


def test_access_that_comes_while_memory_is_evicted(client: CudaClient, process: ProcessConnection) -> None:
    client.run(f"memory = [alloc_there(size) for size in ({LARGE}, {SMALL})]")
    evict(process)
    assert client.run("enable()") == 0
    client.run(f"memory.append(alloc_there({LARGE}))")
    process.open(2)
    assert client.run("[fill(address) for address in memory]") == [0] * 3


def test_memory_of_which_eight_devices_have_access_still_leaves(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, process = two_devices(machine, coordinator, "swap", devices=8)
    client.run(f"address = alloc_there({SMALL})")
    assert client.run("[on(primary(device), enable) for device in range(8) if device != 1]") == [0] * 7
    evict(process)
    process.open(2)
    assert client.run("fill(address), [access(address, device)[1] for device in range(8)]") == [0, [READ_WRITE] * 8]


def test_without_access_a_launch_faults(client: CudaClient) -> None:
    client.run(f"address = alloc_there({SMALL})")
    assert client.run("access(address, 0), access(address, 1)") == [[0, 0], [0, READ_WRITE]]
    assert client.run("fill(address)") == ILLEGAL_ADDRESS


@pytest.mark.parametrize("evicted", [False, True])
def test_disabled_access_is_gone(client: CudaClient, process: ProcessConnection, evicted: bool) -> None:
    assert client.run("enable()") == 0
    client.run(f"address = alloc_there({SMALL})")
    assert client.run("fill(address)") == 0
    assert client.run("access(address, 0)") == [0, READ_WRITE]
    if evicted:
        evict(process)
    assert client.run("disable()") == 0
    if evicted:
        process.open(2)
    assert client.run(f"access(address, 0), access(alloc_there({LARGE}), 0)") == [[0, 0], [0, 0]]
    assert client.run("fill(address)") == ILLEGAL_ADDRESS


def test_errors_are_the_drivers(client: CudaClient) -> None:
    client.run(f"address = alloc_there({SMALL})")
    assert client.run("cuda.cuCtxEnablePeerAccess(peer, 1), enable(own), disable()") == [
        1,
        INVALID_CONTEXT,
        NOT_ENABLED,
    ]
    assert client.run("access(address, 0)") == [0, 0]
    assert client.run("enable(), enable()") == [0, ALREADY_ENABLED]
    assert client.run("disable(), disable()") == [0, NOT_ENABLED]


def test_access_of_a_device_lasts_while_one_of_its_contexts_has_it(client: CudaClient) -> None:
    client.run(f"address = alloc_there({SMALL}); second = c_void_p()")
    assert client.run("cuda.cuCtxCreate_v2(byref(second), 0, 0), cuda.cuCtxSetCurrent(own)") == [0, 0]
    assert client.run("enable(), on(second, enable)") == [0, 0]
    assert client.run("disable()") == 0
    assert client.run("access(address, 0)") == [0, READ_WRITE]
    assert client.run("cuda.cuCtxDestroy_v2(second)") == 0
    assert client.run("access(address, 0)") == [0, 0]


def test_access_ends_with_either_context(client: CudaClient) -> None:
    client.run(f"address = alloc_there({SMALL})")
    assert client.run("enable()") == 0
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    client.run("own = primary(0); cuda.cuCtxSetCurrent(own)")
    assert client.run("access(address, 0)") == [0, 0]
    assert client.run("enable(), access(address, 0)") == [0, [0, READ_WRITE]]
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(1)") == 0
    client.run(f"peer = primary(1); address = alloc_there({SMALL})")
    assert client.run("access(address, 0)") == [0, 0]
    assert client.run("enable(peer), access(address, 0)") == [0, [0, READ_WRITE]]


def test_mappings_of_the_program_keep_their_own_access(client: CudaClient) -> None:
    client.run("PROPERTIES[3] = ACCESS[1] = 1  # device 1")
    client.run("status, handle = create(2 << 20); address = reserve(2 << 20)")
    assert client.run("status, map_at(address, 2 << 20, handle), enable()") == [0, 0, 0]
    assert client.run("access(address, 0), access(address, 1)") == [[0, 0], [0, READ_WRITE]]


def test_copies_between_devices_need_no_access(client: CudaClient) -> None:
    client.run(f"there, here = alloc_there({SMALL}), cuda.alloc({SMALL})[1]")
    assert client.run("fill(here)") == 0
    assert client.run("cuda.cuMemcpyPeer(c_uint64(there), peer, c_uint64(here), own, c_size_t(64))") == 0
    assert client.run("read(there, 16)") == [1.0] * 3


@pytest.mark.parametrize("mode", ["unified", "swap", "plain"])
@pytest.mark.parametrize("is_default", [True, False])
def test_access_of_a_pool(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str, is_default: bool) -> None:
    client, _ = two_devices(machine, coordinator, mode)
    client.run("pool, properties = c_void_p(), (c_uint32 * 22)(1, 0, 1, 1)  # pinned memory of device 1")
    find = "cuDeviceGetDefaultMemPool(byref(pool), 1)" if is_default else "cuMemPoolCreate(byref(pool), properties)"
    assert client.run(f"cuda.{find}") == 0
    client.run(f"memory = [take(pool, {SMALL})]")
    assert client.run(f"set_pool_access(pool, 0, {READ_WRITE})") == 0
    client.run(f"memory.append(take(pool, {LARGE}))")
    assert client.run("[fill(address) for address in memory]") == [0, 0]
    if not is_default:
        assert client.run("cuda.cuMemPoolDestroy(pool), [fill(address) for address in memory]") == [0, [0, 0]]


def test_withdrawn_access_of_a_pool(client: CudaClient) -> None:
    client.run("pool = c_void_p(); cuda.cuDeviceGetDefaultMemPool(byref(pool), 1)")
    client.run(f"address = take(pool, {SMALL})")
    assert client.run(f"set_pool_access(pool, 0, {READ_WRITE}), set_pool_access(pool, 1, {READ_WRITE})") == [0, 0]
    assert client.run("access(address, 0)") == [0, READ_WRITE]
    assert client.run("set_pool_access(pool, 0, 0)") == 0
    assert client.run("access(address, 0), access(address, 1)") == [[0, 0], [0, READ_WRITE]]


def test_a_new_pool_with_the_handle_of_a_destroyed_pool(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """The program makes the new pool as soon as the driver has destroyed the other one."""
    client, process = two_devices(machine, coordinator, "swap", LD_LIBRARY_PATH=str(faulty_driver().parent))
    client.run(
        "old, new, properties = c_void_p(), c_void_p(), (c_uint32 * 22)(1, 0, 1, 1)  # pinned memory of device 1"
    )
    assert client.run("cuda.cuMemPoolCreate(byref(old), properties)") == 0
    client.run("cuda.library.faulty_hold_in(b'cuMemPoolDestroy')")
    client.run("thread = in_thread(lambda: cuda.cuMemPoolDestroy(old))")
    client.run("while cuda.library.faulty_hold(-1) == 1: pass")
    assert client.run("cuda.cuMemPoolCreate(byref(new), properties), new.value == old.value") == [0, True]
    assert client.run(f"set_pool_access(new, 0, {READ_WRITE})") == 0
    client.run("cuda.library.faulty_hold(0); thread.join()")
    client.run(f"address = take(new, {SMALL})")
    assert client.run("access(address, 0), fill(address)") == [[0, READ_WRITE], 0]
    assert process.page.report.unmovable == 0
