"""Clients that grow until they no longer fit on the device together, under the settings that are shipped."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from jupyter_gpushare.wire import messages

from ..native import simlog
from ..support import tier
from .system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until

OUT_OF_MEMORY = 2
LONG = 9 * WAIT  # with each turn hundreds of MiB move, on a machine that is busy

# An array is filled with its number and worked on three times while it is among the last four; each launch adds 1.
GROW = """
def fill(array, value, length):
    check(cuda.launch('fill_f32', array, float(value), length))

def work(arrays, length):
    for array in arrays:
        check(cuda.launch('work_f32', array, length, 2000000, 0))
    check(cuda.cuCtxSynchronize())

def grow(total, step, number):
    arrays = []
    while len(arrays) < total // step:
        status, array = cuda.alloc(step)
        if status:
            return f"status {status} after {len(arrays)} arrays"
        fill(array, number + len(arrays), step // 4)
        arrays.append(array)
        work(arrays[-4:], step // 4)
    return arrays

def wrong(arrays, step, number, rounds):
    values = array_type('f', bytes(step))
    found = 0
    for index, array in enumerate(arrays):
        check(cuda.cuMemcpyDtoH_v2(c_void_p(values.buffer_info()[0]), c_uint64(array), c_size_t(step)))
        expected = number + index + min(4, len(arrays) - index) + rounds
        found += values.tobytes() != (array_type('f', [expected]) * (step // 4)).tobytes()
    return found
"""


@pytest.fixture
def default_settings_host(host: SystemHost) -> SystemHost:
    (host.folder / "config" / "jupyter_gpushare_config.py").write_text("")
    return host


def begin(host: SystemHost, *modes: str) -> list[GpuProgram]:
    programs = [
        host.program(f"{mode}-{number}", GPUSHARE_MEMORY_MODE=mode, GPUSHARE_SIM_MEMORY=str(host.memory))
        for number, mode in enumerate(modes)
    ]
    for program in programs:
        program.run(GROW)
    return programs


def at_once(programs: Sequence[GpuProgram], *lines: str) -> None:
    for program, line in zip(programs, lines, strict=True):
        program.start(line)
    for program in programs:
        program.result(LONG)


def grow(programs: Sequence[GpuProgram], total: int, step: int) -> None:
    at_once(programs, *(f"arrays = grow({total}, {step}, {1000 * number})" for number in range(len(programs))))
    for program in programs:
        assert program.run("arrays if isinstance(arrays, str) else len(arrays)") == total // step


def work(host: SystemHost, programs: Sequence[GpuProgram], step: int, rounds: int) -> None:
    """All at the same time, on all that they have; none beside another.

    What is paged is never short of room: the coordinator sees within a second that such clients have outgrown it.
    """
    wait_until(lambda: sum(client["phase"] == "running" for client in host.clients().values()) < 2)
    before = {program: len(launches(host, program)) for program in programs}
    at_once(programs, *[f"for _ in range({rounds}): work(arrays, {step // 4})"] * len(programs))
    assert simlog.overlap_seconds(launches(host, program)[before[program] :] for program in programs) == 0


def launches(host: SystemHost, program: GpuProgram) -> list[simlog.Execution]:
    return [execution for execution in host.executions(program) if execution.kind == "launch"]


def data_is_right(programs: Sequence[GpuProgram], step: int, rounds: int) -> None:
    for number, program in enumerate(programs):
        assert program.run(f"wrong(arrays, {step}, {1000 * number}, {rounds})", LONG) == 0


def outgrow(host: SystemHost, programs: Sequence[GpuProgram], total: int, step: int) -> None:
    grow(programs, total, step)
    work(host, programs, step, 2)
    data_is_right(programs, step, 2)


@pytest.mark.nightly
def test_outgrown_swap_clients_take_turns(default_settings_host: SystemHost) -> None:
    """768 MiB of 1 GiB each, in steps of 16 MiB."""
    default_settings_host.memory = 1 << 30
    default_settings_host.start_coordinator()
    outgrow(default_settings_host, begin(default_settings_host, "swap", "swap"), 768 * MIB, 16 * MIB)


SOME = [("swap swap swap", "auto"), ("swap unified", "packed"), ("unified swap", "exclusive")]
ALL = itertools.product(["swap swap swap", "swap unified", "unified swap"], ["auto", "packed", "exclusive"])


@pytest.mark.parametrize(("modes", "sharing"), [*SOME, *tier.nightly(one for one in ALL if one not in SOME)])
def test_outgrown_clients_of_other_modes_take_turns(
    default_settings_host: SystemHost, modes: str, sharing: str
) -> None:
    """192 of 256 MiB each."""
    default_settings_host.start_coordinator("--sharing", sharing)
    outgrow(default_settings_host, begin(default_settings_host, *modes.split()), 192 * MIB, 4 * MIB)


def test_impossible_allocation_is_refused_at_once(default_settings_host: SystemHost) -> None:
    """Memory of mode plain stays on the device."""
    default_settings_host.start_coordinator()
    plain, idle, program = begin(default_settings_host, "plain", "swap", "swap")
    assert plain.run("cuda.alloc(140 << 20)[0]") == 0
    idle.run("arrays = grow(40 << 20, 4 << 20, 0)", LONG)
    default_settings_host.ask(messages.Release(client="swap-1"))
    wait_until(
        lambda: default_settings_host.clients()["swap-1"]["phase"] == "idle"
    )  # clients that run are parted for room
    default_settings_host.ask(messages.Hold(client="swap-2", seconds=60.0))
    assert program.run("cuda.spin(1)") == 0
    assert program.run("cuda.alloc(245 << 20)[0]") == OUT_OF_MEMORY  # no client of this mode can have as much
    assert program.run("cuda.alloc(120 << 20)[0]") == OUT_OF_MEMORY
    assert program.run("cuda.alloc(100 << 20)[0]") == OUT_OF_MEMORY  # contexts take 16 MiB each
    wait_until(lambda: default_settings_host.clients()["swap-1"]["resident"] == 0)
    assert program.run("cuda.alloc(60 << 20)[0]") == 0
    plain.end()
    default_settings_host.ask(messages.Release(client="swap-2"))
    assert idle.run(f"wrong(arrays, {4 * MIB}, 0, 0)", LONG) == 0
