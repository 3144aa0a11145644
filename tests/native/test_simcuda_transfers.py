"""Tests of the simulated link: transfers, their times, and the place of unified memory afterwards."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..driver_facts.harness import (
    MIB,
    NON_BLOCKING,
    Cuda,
    environment,
    newest_observations,
    running_process,
    start_test,
)
from ..driver_facts.test_memory import location, prefetch
from ..driver_facts.vmm import free_bytes
from ..support import sanitizers
from ..support.polling import least
from . import simlog
from .test_simcuda import elapsed
from .test_simcuda_multiprocess import SLACK, go, read_line

SIZE = 64 * MIB
FEW = 8 * MIB
# Slow enough that a busy test machine makes little difference: 64 MiB take 64 ms pinned, 128 ms pageable.
SLOW = """
[device]
h2d_bandwidth = 1000 MiB/s
d2h_bandwidth = 1000 MiB/s
pageable_h2d_bandwidth = 500 MiB/s
pageable_d2h_bandwidth = 500 MiB/s
fault_bandwidth = 250 MiB/s
populate_bandwidth = 32 GiB/s
"""
PREFER_DEVICE, ACCESSED_BY = 3, 5


def keep_unused(cuda: Cuda) -> None:
    before = free_bytes(cuda)
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    for _ in range(2):
        prefetch(cuda, memory, SIZE, True)
        prefetch(cuda, memory, SIZE, False)
        assert free_bytes(cuda) == before - SIZE
    plain = cuda.cuMemAlloc(before - SIZE // 2)
    assert free_bytes(cuda) == 0
    cuda.cuMemFree(plain)
    assert free_bytes(cuda) == before - SIZE // 2
    cuda.cuMemFree(memory)
    assert free_bytes(cuda) == before


def test_a_device_may_keep_the_memory_of_pages_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[device]\nkeeps_unused = 1\n")
    process = start_test(keep_unused, environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "config")))
    process.communicate(timeout=90)
    assert process.returncode == 0, newest_observations(tmp_path)


timed = pytest.mark.skipif(bool(sanitizers.KIND), reason="the sanitizer changes the measured times")


def takes(function: Callable[[], object], expected: float, below: float = 0.0, times: int = 20) -> bool:
    """Assert that the fastest run takes `expected` seconds, and less than `below`, or than twice as long."""
    below = below or 2 * expected
    assert expected - SLACK <= least(lambda: elapsed(function), below, times) < below
    return True


def advise(cuda: Cuda, memory: Any, advice: int, on_device: bool, size: int = SIZE) -> None:
    cuda.cuMemAdvise(memory, size, cuda.driver.CUmem_advise(advice), location(cuda, on_device))


def touch(cuda: Cuda, memory: Any, size: int = SIZE) -> None:
    cuda.launch("work_f32", memory, size // 4, 0, 0)
    cuda.cuCtxSynchronize()


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "machine.conf").write_text(SLOW)
    (tmp_path / "log").mkdir()
    return environment(
        tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"), GPUSHARE_SIM_LOG=str(tmp_path / "log")
    )


def run(test: Callable[..., None], machine: dict[str, str]) -> list[simlog.Execution]:
    """Run a program in a process of its own, and return the executions of the device for that process."""
    with running_process(test, machine) as process:
        assert process.wait(timeout=60) == 0
    return simlog.read_all(Path(machine["GPUSHARE_SIM_LOG"]))[process.pid]


def pinned_and_pageable(cuda: Cuda) -> None:
    device = cuda.cuMemAlloc(SIZE)
    pinned, registered = int(cuda.cuMemHostAlloc(SIZE, 0)), ctypes.create_string_buffer(SIZE)
    pageable = bytearray(SIZE)
    cuda.cuMemHostRegister(ctypes.addressof(registered), SIZE, 0)
    for host, expected in ((pinned, 0.064), (ctypes.addressof(registered), 0.064), (pageable, 0.128)):
        copies = (cuda.cuMemcpyHtoD, (device, host)), (cuda.cuMemcpyDtoH, (host, device))
        for copy, pair in copies:
            assert takes(lambda copy=copy, pair=pair: copy(*pair, SIZE), expected)


@timed
def test_copies_of_pinned_memory_are_faster(machine: dict[str, str]) -> None:
    run(pinned_and_pageable, machine)


def directions(cuda: Cuda) -> None:
    device, host = [cuda.cuMemAlloc(SIZE) for _ in range(2)], [cuda.cuMemHostAlloc(SIZE, 0) for _ in range(2)]
    streams = [cuda.cuStreamCreate(NON_BLOCKING) for _ in range(2)]

    def both(*calls: str) -> Callable[[], None]:
        def copy() -> None:
            for i, call in enumerate(calls):
                pair = (device[i], host[i]) if call == "cuMemcpyHtoDAsync" else (host[i], device[i])
                getattr(cuda, call)(*pair, SIZE, streams[i])
            cuda.cuCtxSynchronize()

        return copy

    def during_a_launch() -> None:
        cuda.launch("spin", 60_000_000, stream=streams[0])
        cuda.cuMemcpyHtoDAsync(device[1], host[1], SIZE, streams[1])
        cuda.cuCtxSynchronize()

    assert takes(both("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"), 0.064)
    assert takes(both("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync"), 0.128)
    assert takes(both("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync"), 0.128)
    assert takes(during_a_launch, 0.064)


@timed
def test_the_two_directions_of_the_link_are_independent_and_each_is_shared(machine: dict[str, str]) -> None:
    run(directions, machine)


def copier(cuda: Cuda) -> None:
    device, host = cuda.cuMemAlloc(SIZE), cuda.cuMemHostAlloc(SIZE, 0)
    cuda.cuMemcpyHtoD(device, host, SIZE)
    print("ready", flush=True)
    input()
    for _ in range(4):
        cuda.cuMemcpyHtoD(device, host, SIZE)
    print("copied", flush=True)


def test_processes_share_the_link(machine: dict[str, str]) -> None:
    with running_process(copier, machine) as one, running_process(copier, machine) as other:
        assert read_line(one) == read_line(other) == "ready"
        start = time.monotonic()
        go(one)
        go(other)
        assert read_line(one) == read_line(other) == "copied"
        assert time.monotonic() - start >= 2 * 4 * 0.064 - SLACK


def move_only_missing_pages(cuda: Cuda) -> None:
    memory = cuda.cuMemAllocManaged(SIZE, 1)
    free = free_bytes(cuda)
    prefetch(cuda, memory, SIZE, True)  # 0: untouched pages get memory, and nothing moves
    assert free_bytes(cuda) == free - SIZE
    prefetch(cuda, memory, SIZE, True)  # 1: everything is on the device
    prefetch(cuda, memory, 16 * MIB, False)  # 2
    prefetch(cuda, memory, SIZE, True)  # 3: the evicted pages come back
    prefetch(cuda, memory, SIZE, False)  # 4
    assert free_bytes(cuda) == free
    assert elapsed(lambda: prefetch(cuda, memory, SIZE, True)) >= 0.064 - SLACK  # 5
    untouched = cuda.cuMemAllocManaged(SIZE, 1)
    prefetch(cuda, untouched, SIZE, False)  # 6: the pages get memory on the host
    prefetch(cuda, untouched, SIZE, True)  # 7: the pages must move from there
    written = cuda.cuMemAllocManaged(SIZE, 1)
    ctypes.memset(int(written), 1, 4 * MIB)
    prefetch(cuda, written, SIZE, True)  # 8: the pages that the host has written move


def test_a_prefetch_moves_only_missing_pages_and_populates(machine: dict[str, str]) -> None:
    records = iter(run(move_only_missing_pages, machine))
    moved = []
    for record in records:
        rest = next(records).bytes if record.kind == "prefetch to device" else 0  # the caller waits for the first half
        moved.append((record.bytes + rest) // MIB)
    assert moved == [0, 0, 16, 16, 64, 64, 0, 64, 4]


def advice(cuda: Cuda) -> None:
    free = free_bytes(cuda)

    def used_after_touch(*steps: Any) -> int:
        """Return the MiB on the device after a launch over memory that was on the host, with this advice."""
        memory = cuda.cuMemAllocManaged(SIZE, 1)
        prefetch(cuda, memory, SIZE, False)
        for kind, on_device in steps:
            advise(cuda, memory, kind, on_device)
        touch(cuda, memory)
        used = (free - free_bytes(cuda)) // MIB
        prefetch(cuda, memory, SIZE, True)
        assert free_bytes(cuda) == free - SIZE  # a prefetch moves the pages whatever the advice is
        assert cuda.read_f32(memory, SIZE // 4 - 1) == 1.0
        cuda.cuMemFree(memory)
        return used

    assert used_after_touch() == 64
    assert used_after_touch((ACCESSED_BY, True)) == 0
    assert used_after_touch((ACCESSED_BY, True), (ACCESSED_BY + 1, True)) == 64
    assert used_after_touch((PREFER_DEVICE, False)) == 0
    assert used_after_touch((PREFER_DEVICE, True), (ACCESSED_BY, True)) == 64
    untouched = cuda.cuMemAllocManaged(SIZE, 1)
    advise(cuda, untouched, ACCESSED_BY, True)
    touch(cuda, untouched)
    assert free_bytes(cuda) == free - SIZE  # pages without memory get it on the side of the touch


def test_faults_follow_advice(machine: dict[str, str]) -> None:
    run(advice, machine)


def costs(cuda: Cuda) -> None:
    memories = [cuda.cuMemAllocManaged(FEW, 1) for _ in range(4)]
    first = min([elapsed(lambda memory=memory: touch(cuda, memory, FEW)) for memory in memories])  # nothing to move
    memory, faults = memories[0], []
    for _ in range(3):
        prefetch(cuda, memory, FEW, False)
        faults.append(elapsed(lambda: touch(cuda, memory, FEW)))
    assert first < min(faults) >= 0.256 - SLACK
    prefetch(cuda, memory, FEW, False)
    advise(cuda, memory, ACCESSED_BY, True, FEW)
    for _ in range(3):  # over the link, every time
        assert elapsed(lambda: touch(cuda, memory, FEW)) >= 0.064 - SLACK
    assert takes(lambda: touch(cuda, memory, FEW), 0.064, below=0.256)  # the time of faults


@timed
def test_faults_are_slow_first_touches_are_not_and_remote_access_costs_every_time(machine: dict[str, str]) -> None:
    """The time is stretched, so that the link takes much longer than the processor, which computes the launches."""
    Path(machine["GPUSHARE_SIM_CONFIG"]).write_text(f"time_scale = {SIZE // FEW}\n{SLOW}")
    run(costs, machine)
