"""Tests of short cells with long work, and of offline programs with online ones, under the shipped settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest

from ..support import tier
from .notebook_client import Notebook
from .system_host import MIB, GpuProgram, SystemHost, turn_intervals, wait_until

SIZE = 640 * MIB  # bytes, of 1 GiB
FILL = (
    f"error, array = cuda.alloc({SIZE}); check(error); check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({SIZE})));"
    "check(cuda.cuCtxSynchronize())"  # one long launch, which no other client can interrupt
)
LAUNCH = 0.002  # seconds
CELLS = tier.strength(4, 8)
WORK_SECONDS = tier.strength(10, 20)  # of the notebook before the newcomer
MEASURED_SECONDS = tier.strength(10.0, 20.0)  # the controller adapts the rate in windows of 5 s
BURSTS_SECONDS = 16.0  # four bursts and rests
MAX_WORK_SECONDS = 2.5  # of other clients while a cell waits, because a busy machine delays the coordinator
MAX_IDLE_SECONDS = 20.0  # while a cell waits and no other client works
DEVICE_BYTES = 1024 * MIB
DRAWN_CELLS = tier.strength(6, 40)
CUT_SECONDS = 300.0
NIGHTLY_SECONDS = 600  # for one test


@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_a_short_cell_does_not_wait_for_a_newcomer(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """A notebook has worked long on an idle device before another notebook begins an endless loop."""
    notebook, newcomer = start(), start()
    notebook.run(FILL)
    notebook.run(f"work({WORK_SECONDS})", 2 * WORK_SECONDS + 20)
    newcomer.run(FILL)
    loop = newcomer.start(f"while True: work(0.05, {LAUNCH})")
    wait_until(lambda: default_settings_host.clients()[newcomer.client_id]["phase"] == "running")
    seconds = []
    for _ in range(CELLS):
        seconds.append(work_before_cell(default_settings_host, notebook, "work(0.02)", newcomer.pid))
        time.sleep(2.0)  # the user thinks
    newcomer.interrupt()
    assert newcomer.finish(loop)["ename"] == "KeyboardInterrupt"
    assert max(seconds) <= MAX_WORK_SECONDS, seconds


def work_before_cell(host: SystemHost, notebook: Notebook, cell: str, *others: GpuProgram | int) -> float:
    """Run a cell, and return the seconds of others' work, in launches of `LAUNCH`, while the cell waits."""
    before = len(host.launches(notebook.pid))
    request = notebook.start(cell)
    wait_until(lambda: host.phase(notebook.client_id) == "waiting" or len(host.launches(notebook.pid)) > before)
    since = time.monotonic_ns()
    assert notebook.finish(request)["status"] == "ok"
    begin = host.launches(notebook.pid)[before].begin_ns
    work = LAUNCH * sum(since <= launch.begin_ns < begin for launch in host.launches(*others))
    assert (begin - since) / 1e9 - work < MAX_IDLE_SECONDS
    return work


def start_loops(host: SystemHost, count: int) -> list[GpuProgram]:
    """Start programs with endless work and so much memory that each of their turns needs a transfer."""
    loops = [host.program(f"loop {number}") for number in range(count)]
    for loop in loops:
        loop.start(FILL)
    for loop in loops:
        loop.result()
        loop.start_busy(launch=LAUNCH)
    return loops


@pytest.mark.timeout(NIGHTLY_SECONDS)
@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
@pytest.mark.parametrize("loops", [1, *tier.nightly([3])])
def test_cells_that_use_less_than_their_part_do_not_wait_for_endless_loops(
    default_settings_host: SystemHost, start: Callable[..., Notebook], loops: int
) -> None:
    """The notebook has cells of 0.1 to 1 s and thinking times, and uses half of its part of the device."""
    notebook = start()
    notebook.run(FILL)
    programs = start_loops(default_settings_host, loops)
    draw, think, seconds = Random(loops), 0.55 * (2 * (1 + loops) - 1), []
    for _ in range(DRAWN_CELLS):
        time.sleep(draw.uniform(0.5, 1.5) * think)
        cell = f"work({draw.uniform(0.1, 1.0)})"
        seconds.append(work_before_cell(default_settings_host, notebook, cell, *programs))
    assert max(seconds) <= MAX_WORK_SECONDS, seconds
    for program in programs:
        program.end()


@pytest.mark.nightly  # the turns of the shipped settings are too long for a shorter time
@pytest.mark.timeout(NIGHTLY_SECONDS)
@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_a_notebook_that_cuts_endless_work_into_short_cells_gains_nothing(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    notebook = start()
    notebook.run(FILL)
    (whole,) = start_loops(default_settings_host, 1)
    whole.result()

    def held() -> list[float]:
        """Return the seconds in which each of them has had the device, also between launches of a busy processor."""
        seconds = [0.0, 0.0]
        for number, begin, end in turn_intervals(
            *(default_settings_host.launches(one) for one in (notebook.pid, whole))
        ):
            seconds[number] += (end - begin) / 1e9
        return seconds

    notebook.run("work(0.05)")
    before, end = held(), time.monotonic() + CUT_SECONDS
    while time.monotonic() < end:
        notebook.run("work(0.05)")
    cut, uncut = (now - then for now, then in zip(held(), before, strict=True))
    assert cut <= 1.1 * (cut + uncut) / 2
    assert cut > 0 and uncut > 0
    whole.stop()


def device_share(host: SystemHost, program: GpuProgram, seconds: float) -> float:
    """Return the fraction of the device's last `seconds` in which launches (2 ms each) of the program ran."""
    since = time.monotonic_ns() - int(seconds * 1e9)
    return sum(execution.end_ns >= since for execution in host.executions(program)) * LAUNCH / seconds


@pytest.mark.exclusive
@pytest.mark.parametrize(
    ("first", "load", "blocks"), tier.nightly([("offline", 0.6, 1), ("online", 0.3, 4096), ("online", 0.9, 1)])
)
def test_an_offline_program_gets_the_time_that_an_online_one_leaves(
    default_settings_host: SystemHost, first: str, load: float, blocks: int
) -> None:
    """The online program uses the fraction `load` of the device. Each launch of 2 ms has `blocks` blocks.

    The controller finds the rate of the offline program, and tries a higher rate every few windows of 5 s.
    """
    online, offline = (default_settings_host.program(name, f"service={name}") for name in ("online", "offline"))
    started = {
        "online": lambda: online.busy(launch=LAUNCH, blocks=blocks, sync_every=8, period=LAUNCH / load),
        "offline": lambda: offline.busy(launch=LAUNCH, blocks=blocks),
    }
    started.pop(first)()
    wait_until(lambda: device_share(default_settings_host, online if first == "online" else offline, 2.0) >= 0.9 * load)
    for start in started.values():
        start()
    start_time = time.monotonic()
    time.sleep(MEASURED_SECONDS)  # so that only the time of both programs counts
    wait_until(lambda: device_share(default_settings_host, offline, MEASURED_SECONDS) >= 0.8 * (1 - load), 40.0)
    assert device_share(default_settings_host, online, time.monotonic() - start_time) >= 0.95 * load
    online.end()
    time.sleep(2.0)
    assert device_share(default_settings_host, offline, 1.0) >= 0.9, (
        "the offline program must have the device a second later"
    )
    offline.stop()


@pytest.mark.exclusive
@pytest.mark.nightly
def test_offline_programs_get_the_pauses_of_an_online_program(default_settings_host: SystemHost) -> None:
    """The online program, whose rate is unknown at first, works for 2 s and rests for 2 s."""
    host = default_settings_host
    online = host.program("online", "service=online")
    offline = [host.program(name, "service=offline") for name in ("first", "second")]
    online.busy(launch=LAUNCH, sync_every=8, burst=2.0, rest=2.0)
    time.sleep(BURSTS_SECONDS)
    alone = device_share(host, online, BURSTS_SECONDS)
    for program in offline:
        program.start_busy(launch=LAUNCH)
    for program in offline:
        program.result()
    time.sleep(BURSTS_SECONDS)
    left = sum(device_share(host, program, BURSTS_SECONDS) for program in offline)
    assert device_share(host, online, BURSTS_SECONDS) >= 0.9 * alone
    assert left >= 0.7 * (1 - alone)
    for program in (online, *offline):
        program.stop()


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_the_bursts_of_an_online_program_rarely_wait_for_memory(host: SystemHost) -> None:
    """Each burst takes a second, and each return of the online program's memory half a second."""
    host.config = host.folder / "parameters"
    host.config.write_text("[device]\nmemory = 1GiB\nh2d_bandwidth = 1GiB/s\nd2h_bandwidth = 1GiB/s\n")
    host.start_coordinator()
    online, offline = host.program("online", "service=online"), host.program("offline", "service=offline")
    offline.run(FILL)
    online.run(FILL)
    online.busy(launch=LAUNCH, sync_every=10, burst_launches=500, rest=3.0)
    time.sleep(BURSTS_SECONDS)
    alone = device_share(host, online, BURSTS_SECONDS)
    offline.start_busy(launch=LAUNCH)
    time.sleep(2 * BURSTS_SECONDS)
    together = device_share(host, online, 2 * BURSTS_SECONDS)
    assert together >= 0.92 * alone
    assert device_share(host, offline, 2 * BURSTS_SECONDS) >= 0.05
    offline.result(60.0)
    for program in (online, offline):
        program.stop()
