"""Tests of the host memory of mode `swap`: ordinary host memory is kept for the next eviction, within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support import sanitizers
from ..support.compile_cache import cached
from ..support.threads import thread_names
from . import simlog
from .conftest import HERE, NativeHost, StartedClient, built_shim
from .fake_coordinator import ScriptedCoordinator, wait_until
from .test_shim_peers import evict, two_devices
from .test_shim_swap import EVERYTHING, MIB, TOOLS

SIZES = (64, 20, 3)
ALL = sum(SIZES) + 1  # MiB; blocks have even sizes
PART = 256 * MIB  # PART_BYTES of host_buffer.c
PINNED_CODE = """
def attribute(number, address):
    value = c_uint64()
    return value.value if cuda.cuPointerGetAttribute(byref(value), number, c_uint64(address)) == 0 else None
def pinned_ranges():
    "Return the sizes of the ranges of host memory that the driver has pinned, at least 1 MiB each."
    found = {}
    for line in open("/proc/self/maps"):
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        for address in range(begin + -begin % (1 << 20), end if " rw-p " in line else begin, 1 << 20):
            if attribute(2, address) == 1:
                found[attribute(11, address)] = attribute(12, address)
    return sorted(found.values())
"""


class SwapClient:
    """Client of mode `swap` that is evicted and restored as a whole."""

    def __init__(self, started: StartedClient) -> None:
        self.program, self.process = started
        self.report, self.control = self.process.page.report, self.process.page.control
        self.turn = 1
        self.program.run(TOOLS + PINNED_CODE)
        self.process.open(1)
        self.allocate(*SIZES)

    def allocate(self, *sizes: int) -> None:
        self.program.run(
            f"arrays = [(cuda.alloc(n << 20)[1], bytes([i, 3 * i, 5, 7]) * (n << 18)) for i, n in enumerate({sizes})]"
        )
        assert not any(self.program.run("[write(address, data) for address, data in arrays]"))

    def evict(self) -> None:
        self.control.resident_target[0] = 0
        self.process.drain(self.turn)
        wait_until(lambda: self.report.resident == 0)

    def restore(self) -> None:
        self.control.resident_target[0] = EVERYTHING
        self.turn += 1
        self.process.open(self.turn)
        assert self.program.run("all(has_data(address, data) for address, data in arrays)")

    def largest_copy(self, machine: NativeHost) -> int:
        """Evict all memory, and return the bytes of the largest copy, which is as large as a staging buffer."""
        log = simlog.Log(machine.simlog / f"{self.program.pid}.simlog")
        before = len(log.read())
        self.evict()
        return max(e.bytes for e in log.read()[before:] if e.kind == "device to host")

    @property
    def on_host(self) -> float:
        return float(self.report.host_pageable / MIB)

    def copy_threads(self) -> int:
        return list(thread_names(self.program.pid).values()).count("gpushare-copy")


@pytest.fixture
def client(machine: NativeHost, coordinator: ScriptedCoordinator) -> Iterator[SwapClient]:
    yield SwapClient(machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap"))


def test_host_memory_is_kept_for_the_next_eviction(client: SwapClient) -> None:
    for _ in range(3):
        client.evict()
        assert client.on_host == ALL
        client.restore()
        assert client.on_host == ALL


def test_staging_buffers_follow_the_limit_of_host_memory(client: SwapClient, machine: NativeHost) -> None:
    """The four pinned buffers have at most a 32nd of the memory that may leave, and at least 4 MiB."""
    assert client.program.run("pinned_ranges()") == []
    for limit, size in [(EVERYTHING, 8), (600 * MIB, 4), (300 * MIB, 2), (ALL * MIB, 1), (EVERYTHING, 8)]:
        client.control.evicted_limit = limit
        assert client.largest_copy(machine) == size * MIB, limit
        client.restore()
        assert client.program.run("pinned_ranges()") == [size * MIB] * 4, limit


def test_no_host_memory_is_kept_under_a_limit_of_host_memory(client: SwapClient) -> None:
    client.control.evicted_limit = 200 * MIB
    client.evict()
    assert client.on_host == ALL
    client.restore()
    wait_until(lambda: client.on_host == 0)
    client.evict()
    assert client.on_host == ALL
    client.restore()


def test_kept_host_memory_is_at_most_the_memory_of_the_program(client: SwapClient) -> None:
    client.evict()
    client.restore()
    assert client.program.run("cuda.free(arrays.pop(0)[0])") == 0
    wait_until(lambda: client.on_host <= ALL - 64)
    client.allocate(50, 10)
    client.evict()
    assert client.on_host == ALL - 64 + 60
    client.restore()


def test_host_memory_of_another_device_is_kept(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """The bound of kept host memory is the memory of the program on all devices."""
    program, process = two_devices(machine, coordinator, "swap")
    program.run("here, there = cuda.alloc(30 << 20)[1], alloc_there(30 << 20)")
    evict(process)
    process.open(2)
    assert program.run("fill(here)") == 0
    assert process.page.report.host_pageable == 60 * MIB
    assert program.run("cuda.free(here)") == 0
    wait_until(lambda: process.page.report.host_pageable == 30 * MIB)


@pytest.mark.skipif(bool(sanitizers.KIND), reason="a sanitizer has a munmap of its own")
@pytest.mark.parametrize("sizes", [(300, 80), (64,) * 5 + (40, 20)], ids=["large blocks", "small blocks"])
def test_the_agent_gives_host_memory_back_in_parts(
    machine: NativeHost, coordinator: ScriptedCoordinator, sizes: tuple[int, ...]
) -> None:
    """No call of the program gives memory back, or waits for the lock while more than a part is given back."""
    source = HERE / "held_munmap.c"
    library = cached("held_munmap.so", [source], lambda out: [["cc", "-shared", "-fPIC", "-o", str(out), str(source)]])
    program, process = machine.new_client(
        coordinator,
        GPUSHARE_MEMORY_MODE="swap",
        LD_PRELOAD=f"{built_shim()} {library}",
    )
    program.run(TOOLS)
    program.run(f"held = ctypes.CDLL({str(library)!r}); value = lambda name: c_uint64.in_dll(held, name)")
    program.run("made = lambda size: map_at(reserve(size), size, create(size)[1])")
    process.page.control.evicted_limit = 1000 * MIB
    program.begin(process, 1)
    assert program.run(f"[made(size << 20) for size in {sizes}]") == [0] * len(sizes)
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: process.page.report.resident == 0)
    whole = process.page.report.host_pageable
    assert whole == sum(sizes) * MIB == 380 * MIB
    process.page.control.resident_target[0] = EVERYTHING
    program.run("value('unmapped_by_agent').value = value('unmapped_by_program').value = 0")
    program.run(f"value('hold_after').value = {PART}")
    process.open(2)
    assert program.run("cuda.spin()") == 0
    wait_until(lambda: program.run("value('is_holding').value & 1"))
    assert process.page.report.host_pageable == whole - PART
    program.run("value('hold_after').value = 0")
    wait_until(lambda: process.page.report.host_pageable == 0)
    assert program.run("value('unmapped_by_program').value, value('unmapped_by_agent').value") == [0, whole]


def test_a_thread_that_ends_meanwhile_has_no_name(tmp_path: Path) -> None:
    for thread in (7, 8):
        (tmp_path / "7" / "task" / str(thread)).mkdir(parents=True)
    (tmp_path / "7" / "task" / "7" / "comm").write_text("python3\n")
    assert thread_names(7, proc=tmp_path) == {7: "python3"}


def test_several_threads_copy_and_end_without_work(client: SwapClient) -> None:
    """Up to three threads copy beside the calling one, which has a processor of its own."""
    helpers = min(3, len(os.sched_getaffinity(0)) - 1)
    seen = set()
    for _ in range(3):  # a thread ends after five seconds, perhaps before this test counts
        client.evict()
        seen.add(client.copy_threads())
        client.restore()
    assert max(seen) == helpers
    client.evict()
    wait_until(lambda: client.copy_threads() == 0)
    client.restore()


@pytest.mark.nightly  # because it takes a minute
def test_kept_host_memory_returns_to_the_host(client: SwapClient) -> None:
    client.evict()
    client.restore()
    wait_until(lambda: client.on_host == 0, seconds=90)
