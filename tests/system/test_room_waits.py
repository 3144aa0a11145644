"""Tests of a client of mode `swap` beside memory of mode `plain`, which never leaves the device."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..driver_facts.harness import FLAGS, SOURCES
from ..support.compile_cache import cached
from .system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until

OUT_OF_MEMORY = 2
NEWER = "cuLaunchKernel_v9"  # a form that the shim does not have
FILL = f"array = cuda.alloc({140 * MIB})[1]; check(cuda.cuMemsetD8_v2(c_uint64(array), 7, c_size_t({140 * MIB})))"
READ = "value = c_char(); check(cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(array + size - 1), c_size_t(1)))"


@pytest.fixture
def programs(host: SystemHost) -> tuple[GpuProgram, GpuProgram]:
    """Return a program of mode `plain`, and one of mode `swap` that waits for its room."""
    host.start_coordinator()
    plain = host.program("plain", GPUSHARE_MEMORY_MODE="plain")
    program = host.program("swap", GPUSHARE_MEMORY_MODE="swap")
    program.run(f"{FILL}; check(cuda.cuCtxSynchronize())")
    assert host.command("evict", "swap").returncode == 0
    wait_until(lambda: host.clients()["swap"]["resident"] == 0)
    plain.run(f"array = cuda.alloc({140 * MIB})[1]; check(cuda.spin(1) or cuda.cuCtxSynchronize())")
    program.start("cuda.spin(1) or cuda.cuCtxSynchronize()")
    return plain, program


def test_a_client_waits_for_room_without_a_charge(host: SystemHost, programs: tuple[GpuProgram, GpuProgram]) -> None:
    plain, program = programs
    wait_until(lambda: host.clients()["swap"]["state_text"].startswith("waiting for room"))
    before = host.clients()["swap"]
    wait_until(lambda: host.clients()["swap"]["wait_seconds"] > before["wait_seconds"] + 1)
    client = host.clients()["swap"]
    assert (client["phase"], client["gpu_seconds"]) == ("waiting", before["gpu_seconds"])
    assert client["wait_reason"].startswith("140 MiB of plain cannot leave the GPU")
    (limit,) = client["limits"]
    assert limit["reason"] == "short_of_room"
    assert time.time() - client["wait_seconds"] - 5 < limit["since"] <= time.time()
    plain.run("check(cuda.free(array))")
    assert program.result(WAIT) == 0
    program.run(f"size = {140 * MIB}; {READ}")
    assert program.run("value.value[0]") == 7


@pytest.mark.nightly  # 15 s pass before the refusal
def test_a_refusal_names_the_client_with_the_memory(host: SystemHost, programs: tuple[GpuProgram, GpuProgram]) -> None:
    plain, program = programs
    assert program.result(2 * WAIT) == OUT_OF_MEMORY
    (line,) = program.errors
    assert "140 MiB of this program's memory have no room on the device, because 140 MiB of plain cannot" in line
    plain.run("check(cuda.free(array))")
    assert program.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0


def newer_driver() -> Path:
    """Return the simulated driver with a newer form of a function, built."""
    files = [str(path) for path in SOURCES if path.suffix == ".c"]
    flags = [*FLAGS.split(), "-O0", f"-Wl,--defsym,{NEWER}=cuLaunchKernel"]  # -O0: a short build
    return cached("libcuda.so.1", SOURCES, lambda out: [["cc", *flags, "-o", str(out), *files, "-ldl", "-lm", "-lrt"]])


def test_memory_of_a_program_with_a_newer_form_of_a_function_stays(host: SystemHost) -> None:
    """The shim cannot hold back the newer form, so the memory stays, and the wait of the other client names it."""
    host.start_coordinator()
    newer = host.program("newer", GPUSHARE_MEMORY_MODE="swap", driver=newer_driver())
    program = host.program("swap", GPUSHARE_MEMORY_MODE="swap")
    newer.run(f"{FILL}; check(cuda.cuCtxSynchronize())")
    newer.run(f"cuda.library.{NEWER} and None")
    program.start(f"size = {140 * MIB}; {FILL}; check(cuda.spin(1) or cuda.cuCtxSynchronize())")
    reason = wait_until(lambda: host.clients()["swap"]["wait_reason"])
    assert reason.startswith("140 MiB of newer cannot leave the GPU: ")
    assert host.page(newer)["resident"] == 140 * MIB and host.page(newer)["evicted_bytes"] == 0
    newer.run("check(cuda.free(array))")
    assert program.result(WAIT) is None
    (line,) = newer.errors
    assert f"calls of {NEWER} are neither counted nor held back" in line and "stays on the device" in line
