"""Tests of clients that grow until they no longer fit on the device together, and of an impossible allocation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from jupyter_gpushare.coordinator.gpu import simulated_driver
from jupyter_gpushare.wire import messages

from ..native import simlog
from ..native.test_shim_transfer_failures import faulty_driver
from ..support import tier
from .system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until

OUT_OF_MEMORY = 2
MAX_SECONDS = 9 * WAIT  # each turn moves hundreds of MiB, on a busy machine

# Each array begins with its number. While an array is among the last four, each round of work adds 1 to it.
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

# The copy ends when a file exists.
HOLD_COPY = """
import threading
def hold_copy():
    while cuda.library.faulty_hold(-1) != 2:
        time.sleep(0.005)
    open({held!r}, "w").close()
    while not os.path.exists({let_go!r}):
        time.sleep(0.005)
    cuda.library.faulty_hold(0)
cuda.library.faulty_hold_for(60_000)
cuda.library.faulty_hold_in(b"before_cuMemcpyHtoDAsync_v2")
threading.Thread(target=hold_copy, daemon=True).start()
"""


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
        program.result(MAX_SECONDS)


def grow(programs: Sequence[GpuProgram], total: int, step: int) -> None:
    at_once(programs, *(f"arrays = grow({total}, {step}, {1000 * number})" for number in range(len(programs))))
    for program in programs:
        assert program.run("arrays if isinstance(arrays, str) else len(arrays)") == total // step


def work(host: SystemHost, programs: Sequence[GpuProgram], step: int, rounds: int) -> None:
    """Let all programs work on all their memory at the same time, and assert that no launches overlap.

    Paged memory is never short of room, so the coordinator takes up to a second to separate such clients.
    """
    wait_until(lambda: sum(client["phase"] == "running" for client in host.clients().values()) < 2)
    before = {program: len(host.launches(program)) for program in programs}
    at_once(programs, *[f"for _ in range({rounds}): work(arrays, {step // 4})"] * len(programs))
    assert simlog.overlap_seconds(host.launches(program)[before[program] :] for program in programs) == 0


def data_is_right(programs: Sequence[GpuProgram], step: int, rounds: int) -> None:
    for number, program in enumerate(programs):
        assert program.run(f"wrong(arrays, {step}, {1000 * number}, {rounds})", MAX_SECONDS) == 0


def outgrow(host: SystemHost, programs: Sequence[GpuProgram], total: int, step: int) -> None:
    grow(programs, total, step)
    work(host, programs, step, 2)
    data_is_right(programs, step, 2)


@pytest.mark.nightly
def test_outgrown_swap_clients_take_turns(host: SystemHost) -> None:
    """Each client grows to 768 MiB of 1 GiB, in steps of 16 MiB."""
    host.memory = 1 << 30
    host.start_coordinator()
    outgrow(host, begin(host, "swap", "swap"), 768 * MIB, 16 * MIB)


SHORT_CASES = [("swap swap swap", "auto"), ("swap unified", "packed"), ("unified swap", "exclusive")]
ALL_CASES = itertools.product(["swap swap swap", "swap unified", "unified swap"], ["auto", "packed", "exclusive"])


@pytest.mark.parametrize(
    ("modes", "sharing"), [*SHORT_CASES, *tier.nightly(one for one in ALL_CASES if one not in SHORT_CASES)]
)
def test_outgrown_clients_of_other_modes_take_turns(host: SystemHost, modes: str, sharing: str) -> None:
    """Each client grows to 192 MiB of 256 MiB."""
    host.start_coordinator("--sharing", sharing)
    outgrow(host, begin(host, *modes.split()), 192 * MIB, 4 * MIB)


def test_impossible_allocation_is_refused_at_once(host: SystemHost) -> None:
    """Memory of mode plain stays on the device."""
    host.start_coordinator()
    plain, idle, program = begin(host, "plain", "swap", "swap")
    assert plain.run("cuda.alloc(140 << 20)[0]") == 0
    idle.run("arrays = grow(40 << 20, 4 << 20, 0)", MAX_SECONDS)
    host.request(messages.Release(client="swap-1"))
    # The client must not run, because a shortage separates running clients.
    wait_until(lambda: host.clients()["swap-1"]["phase"] == "idle")
    host.request(messages.Hold(client="swap-2", seconds=60.0))
    assert program.run("cuda.spin(1)") == 0
    assert program.run("cuda.alloc(245 << 20)[0]") == OUT_OF_MEMORY  # more than any client of this mode can have
    assert program.run("cuda.alloc(120 << 20)[0]") == OUT_OF_MEMORY
    assert program.run("cuda.alloc(100 << 20)[0]") == OUT_OF_MEMORY  # contexts take 16 MiB each
    wait_until(lambda: host.clients()["swap-1"]["resident"] == 0)
    assert program.run("cuda.alloc(60 << 20)[0]") == 0
    plain.end()
    host.request(messages.Release(client="swap-2"))
    assert idle.run(f"wrong(arrays, {4 * MIB}, 0, 0)", MAX_SECONDS) == 0


@pytest.mark.parametrize("host", [160 * MIB], indirect=True)
def test_an_allocation_gets_room_after_freed_memory_did_not_suffice(host: SystemHost) -> None:
    """The pool of the program keeps freed memory, and the rest of the device has memory of another program."""
    rival, program = begin(host, "swap", "swap")
    fill = f"array = cuda.alloc({90 * MIB})[1]; check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({90 * MIB})))"
    rival.run(f"{fill}; check(cuda.cuCtxSynchronize())")
    program.run("pool = c_void_p(); check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))")
    program.run("check(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(1 << 40))))")  # the release threshold
    program.run("address = c_uint64()")
    program.run("def take(size): check(cuda.cuMemAllocAsync(byref(address), c_size_t(size), None))")
    program.run(f"check(cuda.spin()); take({24 * MIB}); check(cuda.cuMemFreeAsync(address, None))")
    program.run("check(cuda.cuCtxSynchronize())")
    program.run(f"take({32 * MIB})")


def test_an_allocation_waits_for_memory_on_its_way_to_the_device_to_leave_again(host: SystemHost) -> None:
    """The program needs room while the driver copies memory of a rival that waits."""
    host.start_coordinator("--sharing", "exclusive", "--policy", "fcfs", "--time-quantum", "3600")
    rival = host.program("rival", driver=faulty_driver(), GPUSHARE_MEMORY_MODE="swap")
    program = host.program("program", GPUSHARE_MEMORY_MODE="swap")
    (uuid,) = host.device_uuids()
    held, let_go = host.folder / "held", host.folder / "let_go"
    rival.run(GROW)
    rival.run(f"arrays = grow({128 * MIB}, {64 * MIB}, 0)", MAX_SECONDS)
    program.run("busy = Busy(cuda)")
    program.run(f"large = cuda.alloc({200 * MIB})[1]")
    wait_until(lambda: host.page(rival)["resident"] == 0)
    program.run("check(cuda.free(large))")
    rival.run(HOLD_COPY.format(held=str(held), let_go=str(let_go)))
    rival.start("cuda.spin(1)")
    wait_until(held.exists)
    assert (simulated_driver.processes()[uuid][rival.pid] or 0) > 64 * MIB
    program.start(f"cuda.alloc({200 * MIB})[0]")
    requests = host.page(program)["unmet_request_seq"]
    wait_until(lambda: host.page(program)["unmet_request_seq"] > requests + 3)  # the program repeats its request
    assert (host.page(rival)["restored_bytes"], host.phase("rival")) == (0, "waiting")
    let_go.touch()
    assert program.result() == 0
    program.stop()
    host.request(messages.Release(client="program"))
    assert rival.result(WAIT) == 0
    assert rival.run(f"wrong(arrays, {64 * MIB}, 0, 0)", MAX_SECONDS) == 0
