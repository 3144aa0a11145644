"""Tests of driver calls that fail while memory moves."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..driver_facts.harness import FLAGS, SOURCES
from ..support import sanitizers, tier
from ..support.compile_cache import cached
from .conftest import HERE, CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_swap import EVERYTHING, MIB, TOOLS

Started = tuple[CudaClient, ProcessConnection]
OUT_OF_MEMORY, ILLEGAL_STATE, LAUNCH_FAILED = 2, 401, 719
EVICTION_CALLS = [
    "cuCtxPushCurrent_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAddressReserve",
    "cuMemHostRegister_v2",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
]
RESTORE_CALLS = [
    "cuCtxPushCurrent_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemcpyHtoDAsync_v2",
]
SIZES = [3 * MIB, 20 * MIB, 1000]


@cache
def faulty_driver() -> Path:
    """Return the simulated driver with the functions of faultycuda.c before its own, built."""
    source = HERE / "faultycuda.c"
    names = re.findall(r"^(?:FAULTY|HELD)\((\w+),", source.read_text(), re.MULTILINE)

    def commands(out: Path) -> list[list[str]]:
        whole = f"{out}.o"
        flags = [flag for flag in FLAGS.split() if flag != "-shared" and not flag.startswith("-Wl")]
        flags.append("-O1")  # builds in two thirds of the time
        files = [str(path) for path in SOURCES if path.suffix == ".c"]
        rename = [f"--redefine-sym={name}=real_{name}" for name in names]
        return [
            ["cc", *flags, *sanitizers.FLAGS, "-r", "-nostdlib", "-o", whole, *files],
            ["objcopy", *rename, whole],
            ["cc", *FLAGS.split(), *sanitizers.FLAGS, "-o", str(out), str(source), whole, "-ldl", "-lm", "-lrt"],
        ]

    return cached("libcuda.so.1", [source, *SOURCES], commands)


def start(machine: NativeHost, coordinator: ScriptedCoordinator, **environment: str) -> Started:
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent), **environment)
    client.run(TOOLS)
    client.run("import os")
    process.open(1)
    client.run(f"arrays = [(cuda.alloc(size)[1], os.urandom(size)) for size in {SIZES}]")
    assert client.run("[write(address, data) for address, data in arrays]") == [0] * len(SIZES)
    return client, process


def hold_next(client: CudaClient, name: str) -> None:
    """Hold the next caller of a function, and let the caller go on that is held now.

    With the prefix "before_", the caller is held before the driver's own function runs.
    """
    client.run(f"cuda.library.faulty_hold_for(60_000); cuda.library.faulty_hold_in({name.encode()!r})")


def wait_until_held(client: CudaClient) -> None:
    client.run("while cuda.library.faulty_hold(-1) == 1: time.sleep(0.001)")


def release(client: CudaClient) -> None:
    client.run("cuda.library.faulty_hold(0)")


def data_is_intact(client: CudaClient) -> bool:
    return bool(client.run("all(has_data(address, data) for address, data in arrays)"))


def fail(client: CudaClient, names: str, after: int, times: int, code: int = ILLEGAL_STATE) -> None:
    client.run(f"cuda.library.faulty_next({names.encode()!r}, {after}, {times}, {code})")


class Turns:
    """Turns of one client. `begin` asserts that the contents of its memory are unchanged."""

    def __init__(self, started: Started) -> None:
        self.client, self.process = started
        self.epoch = 1

    def end(self) -> None:
        report = self.process.page.report
        self.process.page.control.resident_target[0] = 0
        before = report.evicted_bytes
        self.process.drain(self.epoch)
        wait_until(lambda: report.evicted_bytes > before or report.resident == 0)

    def begin(self) -> None:
        self.epoch += 1
        self.process.page.control.resident_target[0] = EVERYTHING
        self.process.open(self.epoch)
        assert self.client.run("cuda.spin(0.01) or cuda.cuCtxSynchronize()") == 0
        assert data_is_intact(self.client)
        assert self.process.page.report.missing_bytes == 0


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> Started:
    return start(machine, coordinator, GPUSHARE_MEMORY_MODE="swap")


@pytest.fixture(params=["pageable", *tier.nightly(["pinned"])])
def turns(request: pytest.FixtureRequest, machine: NativeHost, coordinator: ScriptedCoordinator) -> Turns:
    pinned = str(512 * MIB if request.param == "pinned" else 0)
    started = start(machine, coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_PINNED=pinned)
    started[0].run(
        "address = reserve(4 << 20); twice = reserve(4 << 20); _, handle = create(4 << 20);"
        "map_at(address, 4 << 20, handle); map_at(twice, 4 << 20, handle);"
        "arrays.append((address, os.urandom(4 << 20))); write(*arrays[-1])"
    )
    return Turns(started)


@pytest.mark.parametrize("name", EVICTION_CALLS)
def test_failing_eviction_calls_lose_no_data(turns: Turns, name: str) -> None:
    for after, times in ((0, 1), (1, 1), (3, 2), (6, 1)):
        fail(turns.client, name, after, times)
        turns.end()
        fail(turns.client, name, 0, 0)
        turns.begin()


@pytest.mark.parametrize("name", RESTORE_CALLS)
def test_failing_restore_calls_lose_no_data(turns: Turns, name: str) -> None:
    for after, times in ((0, 1), (1, 1), (3, 3), (5, 1)):
        turns.end()
        fail(turns.client, name, after, times)
        turns.begin()
    assert turns.process.page.report.restored_bytes == turns.process.page.report.evicted_bytes


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_restore_that_always_fails_returns_the_error_of_the_driver(turns: Turns, name: str) -> None:
    """The error has nothing to do with lack of room, so no call waits for room."""
    turns.end()
    fail(turns.client, name, 0, 1 << 30)
    turns.process.page.control.resident_target[0] = EVERYTHING
    turns.process.open(turns.epoch + 1)
    assert turns.client.run("cuda.spin(0.01), cuda.spin(0.01)") == [ILLEGAL_STATE] * 2
    assert turns.process.page.report.unmet_request_seq == 0
    fail(turns.client, name, 0, 0)
    assert turns.client.run("cuda.spin(0.01)") == 0
    assert data_is_intact(turns.client)


def test_memory_of_an_unfinished_copy_stays_mapped(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """A restore that fails after its copy has begun unmaps the memory only after the copy."""
    slow = machine.root / "slow"
    slow.write_text("[device]\nh2d_bandwidth = 64 MiB/s\npageable_h2d_bandwidth = 64 MiB/s\n")
    turns = Turns(start(machine, coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=str(slow)))
    turns.end()
    fail(turns.client, "cuEventRecord", 0, 20)
    turns.begin()


def test_adjacent_blocks_change_their_mapping_in_one_call(started: Started) -> None:
    """A large allocation consists of blocks, and an expandable segment of mappings."""
    client, _ = started
    client.run("large = cuda.alloc(150 << 20)[1]; address = reserve(16 << 20)")
    client.run("handles = [create(4 << 20)[1] for _ in range(3)]")
    client.run("[map_at(address + i * (4 << 20), 4 << 20, handle) for i, handle in enumerate(handles)]")
    client.run(f"[cuda.free(address) for address, _ in arrays[:{len(SIZES)}]]")
    client.run("arrays = [(at, os.urandom(size)) for at, size in ((large, 150 << 20), (address, 12 << 20))]")
    assert client.run("[write(*array) for array in arrays]") == [0, 0]
    turns = Turns(started)
    client.run("from ctypes import c_uint; names = ('cuMemUnmap', 'cuMemSetAccess')")
    client.run("calls = lambda: [c_uint.in_dll(cuda.library, f'calls_of_{name}').value for name in names]")
    client.run("before = calls()")
    turns.end()
    turns.begin()
    assert client.run("[now - then for now, then in zip(calls(), before)]") == [2, 2]


def test_failing_unmap_is_logged_and_loses_no_data(machine: NativeHost, turns: Turns) -> None:
    """The memory is neither unmapped nor mapped again. The data is on the host by then, and comes back from there."""
    fail(turns.client, "cuMemUnmap", 0, 1 << 30)
    turns.process.page.control.resident_target[0] = 0
    turns.process.drain(turns.epoch)
    wait_until(lambda: "could not be moved off the device" in machine.log_text())
    fail(turns.client, "cuMemUnmap", 0, 0)
    turns.begin()


def test_all_memory_is_freed_at_the_end(machine: NativeHost, turns: Turns) -> None:
    bare = machine.client(GPUSHARE_DISABLE="1")
    bare.run("cuda = Cuda()")
    for name, after in (("cuMemcpyDtoHAsync_v2", 2), ("cuMemMap", 1), ("cuEventRecord", 3)):
        fail(turns.client, name, after, 1)
        turns.end()
        turns.begin()
    used = "(lambda info: info[1] - info[0])(cuda.info())"
    before = bare.run(used)
    assert turns.client.run("[cuda.free(address) for address, _ in arrays[:3]]") == [0] * 3
    assert turns.client.run("release(handle), unmap(address, 4 << 20), unmap(twice, 4 << 20)") == [0, 0, 0]
    freed = sum(-(-size // (2 * MIB)) * 2 * MIB for size in SIZES[:2]) + 4 * MIB
    assert bare.run(used) == before - freed
    report: Any = turns.process.page.report
    assert (report.allocated, report.resident, report.missing_bytes) == (0, 0, 0)
    wait_until(lambda: report.host_pageable == 0)


def test_evicted_memory_that_another_thread_frees_is_not_restored(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """A call that waits for room finds no memory missing, because another thread frees the evicted memory."""
    client, process = start(machine, coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_MEMORY="256MiB")
    report = process.page.report
    client.run("[cuda.free(address) for address, _ in arrays]; large = cuda.alloc(150 << 20)[1]")
    process.page.control.resident_target[0] = 64 * MIB
    process.drain(1)
    wait_until(lambda: report.missing_bytes == 86 * MIB)
    other = machine.client(GPUSHARE_DISABLE="1", GPUSHARE_SIM_MEMORY="256MiB")
    other.run("cuda = Cuda()")
    assert other.run("cuda.alloc(cuda.info()[0])[0]") == 0
    client.run("results = []; thread = in_thread(lambda: results.append(cuda.make_current() or cuda.spin(0.001)))")
    process.wait_for_waiting_thread()
    process.open(2)
    wait_until(lambda: report.unmet_bytes)
    client.run("cuda.library.faulty_hold_in(b'cuMemUnmap')")  # the free holds the lock for which the restore waits
    assert client.run("cuda.free(large)") == 0
    assert client.run("thread.join() or results") == [0]
    assert (report.missing_bytes, report.restored_bytes, report.restored) == (0, 0, 0)


def test_failed_context_delays_no_other_client(turns: Turns) -> None:
    """The data can never arrive, so the turn begins without it, and the program's own calls return the error."""
    turns.end()
    fail(turns.client, "cuMemcpyHtoDAsync_v2 cuStreamQuery", 0, 1 << 30, LAUNCH_FAILED)
    turns.process.page.control.resident_target[0] = EVERYTHING
    turns.process.open(turns.epoch + 1)
    turns.client.run("cuda.spin(0.01)")


def test_a_launch_waits_for_room_for_its_code(started: Started) -> None:
    """A driver that loads code lazily may find no room for it at a launch. The launch is made again."""
    client, process = started
    process.drain(1)
    fail(client, "cuLaunchKernel", 0, 2, OUT_OF_MEMORY)
    client.start("cuda.spin(0.001)")
    process.wait_for_waiting_thread()
    process.open(2)
    assert client.result() == 0
    wait_until(lambda: process.page.report.unmet_request_seq > 0 and process.page.report.unmet_bytes == 0)


def test_a_launch_without_room_gets_the_error_of_the_driver(started: Started) -> None:
    client, process = started
    process.drain(1)
    fail(client, "cuLaunchKernel", 0, 1000, OUT_OF_MEMORY)
    client.start("cuda.spin(0.001)")
    process.wait_for_waiting_thread()
    process.open(2)
    wait_until(lambda: process.page.report.unmet_bytes > 0)
    process.page.control.refused_request_seq = process.page.report.unmet_request_seq
    assert client.result() == OUT_OF_MEMORY
    fail(client, "", 0, 0)
    assert client.run("cuda.spin(0.001) or cuda.cuCtxSynchronize()") == 0
