"""Tests of allocations: limits and their messages, and more memory in use than the device has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..support import tier
from .notebook_client import Notebook
from .system_host import MIB, WAIT, GpuProgram, SystemHost

OUT_OF_MEMORY = 2
PREFETCH_TO_DEVICE, PREFETCH_TO_HOST = "prefetch to device", "prefetch to host"


def test_notebook_beyond_its_memory_limit_gets_an_error(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    notebook = start()
    assert "memory" in notebook.run("%gpushare quota memory=64MiB")
    assert notebook.value("cuda.info()") == [64 * MIB, 64 * MIB]
    assert notebook.value("cuda.alloc(40 << 20)[0]") == 0
    assert notebook.value("cuda.info()") == [24 * MIB, 64 * MIB]
    assert notebook.value("cuda.alloc(40 << 20)[0]") == OUT_OF_MEMORY
    log = default_settings_host.log_text()
    assert "An allocation of 40 MiB was refused" in log and "the memory limit is 64 MiB" in log
    assert "%gpushare quota memory=80MiB" in log  # the quota that would be enough

    assert notebook.run("%gpushare quota memory=80MiB")
    assert notebook.value("cuda.alloc(40 << 20)[0]") == 0
    assert notebook.value("cuda.info()") == [0, 80 * MIB]

    reply = notebook.finish(notebook.start("%gpushare quota memory=10MiB"))
    assert "80" in reply.get("evalue", "") + notebook.text + notebook.errors
    assert notebook.value("cuda.info()") == [0, 80 * MIB]
    assert default_settings_host.clients()[notebook.client_id]["quota"]["memory"] == 80 * MIB


def test_more_in_use_than_the_device_has(short_quantum_host: SystemHost) -> None:
    """Three clients each use most of the device's memory, and every element has its expected value.

    The shim restores all memory of the client in bulk at the start of its turn.
    """
    programs = [short_quantum_host.program(name) for name in ("a", "b", "c")]
    take_turns(programs, 200 * MIB, 3)
    assert sum(client["allocated"] for client in short_quantum_host.clients().values()) == 600 * MIB
    assert short_quantum_host.status()["devices"][0]["memory_used"] <= 256 * MIB
    assert short_quantum_host.overlap(*([program] for program in programs)) == 0
    for program in programs:
        moved = [
            e.bytes for e in short_quantum_host.executions(program) if e.kind in (PREFETCH_TO_DEVICE, PREFETCH_TO_HOST)
        ]
        assert sum(moved) >= 200 * MIB


def take_turns(programs: list[GpuProgram], size: int, rounds: int, seconds: float = 3 * WAIT) -> None:
    """Let all programs add 1 to every element of their arrays in each of `rounds` launches, at the same time."""
    length = size // 4
    for number, program in enumerate(programs):
        program.run(f"status, array = cuda.alloc({size}); check(status)")
        program.start(f"check(cuda.launch('fill_f32', array, {number}.0, {length}) or cuda.cuCtxSynchronize())")
    for program in programs:
        program.result(seconds)
    for _ in range(rounds):
        for program in programs:
            program.start(f"check(cuda.launch('work_f32', array, {length}, 0, 0) or cuda.cuCtxSynchronize())")
        for program in programs:
            program.result(seconds)
    for number, program in enumerate(programs):
        program.run(
            f"values = bytearray({size}); buffer = (c_char * {size}).from_buffer(values);"
            f"check(cuda.cuMemcpyDtoH_v2(buffer, c_uint64(array), c_size_t({size})))",
            seconds,
        )
        # As bytes, because a comparison of arrays makes an object of each of 50 million elements.
        assert program.run(f"values == array_type('f', [{number}.0 + {rounds}.0]).tobytes() * {length}", seconds)


@pytest.mark.parametrize("pinned", ["0", *tier.nightly([str(100 * MIB)])])
def test_swap_more_than_the_device_has(short_quantum_host: SystemHost, pinned: str) -> None:
    """The device has room for one of three clients at a time, and the driver migrates no unified memory."""
    programs = [
        short_quantum_host.program(name, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_PINNED=pinned)
        for name in ("a", "b", "c")
    ]
    take_turns(programs, 120 * MIB, 3)
    assert short_quantum_host.status()["devices"][0]["memory_used"] <= 256 * MIB
    assert not [e for e in short_quantum_host.executions(*programs) if e.kind in (PREFETCH_TO_DEVICE, PREFETCH_TO_HOST)]
    assert short_quantum_host.overlap(*([program] for program in programs)) == 0


def test_swap_without_a_coordinator(host: SystemHost) -> None:
    """The clients take turns by the turn lock, and a client that leaves its turn evicts all its memory."""
    programs = [host.program(name, GPUSHARE_MEMORY_MODE="swap") for name in ("a", "b")]
    take_turns(programs, 140 * MIB, 1, 4 * WAIT)


def test_plain_allocation_on_a_full_device_is_logged(default_settings_host: SystemHost) -> None:
    one = default_settings_host.program("one", GPUSHARE_MEMORY_MODE="plain")
    other = default_settings_host.program("other", GPUSHARE_MEMORY_MODE="plain")
    assert one.run("cuda.alloc(150 << 20)[0]") == 0
    assert other.run("cuda.alloc(150 << 20)[0]") == OUT_OF_MEMORY
    assert "the device is full" in default_settings_host.log_text()
    free, _ = other.run("cuda.info()")
    assert other.run(f"cuda.alloc({free})[0]") == 0


def test_swap_reports_the_available_memory(default_settings_host: SystemHost) -> None:
    program = default_settings_host.program("swap", GPUSHARE_MEMORY_MODE="swap")
    free, total = program.run("cuda.info()")
    assert (free, total) == (240 * MIB, 256 * MIB)
    assert program.run("cuda.alloc(242 << 20)[0]") == OUT_OF_MEMORY
    assert "in memory mode swap a client has at most" in default_settings_host.log_text()
    assert program.run(f"cuda.alloc({free})[0]") == 0
    assert program.run("cuda.info()[0]") == 0
