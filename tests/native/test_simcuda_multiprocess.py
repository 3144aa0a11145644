"""The simulated machine as several processes share it: memory, eviction, time, death."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..driver_facts.harness import MIB, MS, Cuda, environment, on_driver, running_process, start_test
from ..driver_facts.test_memory import place
from ..support import sanitizers
from ..support.polling import wait_until

FAST = "[device]\nlaunch_overhead = 0\n"


# Programs: what runs in the processes. They say "ready" and go on at a line on their input.


def say(text: object) -> None:
    print(text, flush=True)


def spin(cuda: Cuda, milliseconds: str, launches: str, together: str = "") -> None:
    """Launches of `milliseconds` in all; the device is waited for after every `together` of them."""
    cuda.launch("spin", 0)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    began = time.monotonic()
    for number in range(int(launches)):
        cuda.launch("spin", int(milliseconds) * MS // int(launches))
        if together and number % int(together) == 0:
            cuda.cuCtxSynchronize()
    cuda.cuCtxSynchronize()
    say(time.monotonic() - began)


def hold(cuda: Cuda, kind: str, mebibytes: str) -> None:
    memory = (
        cuda.cuMemAlloc(int(mebibytes) * MIB) if kind == "plain" else cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    )
    cuda.launch("fill_f32", memory, 1.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    say(cuda.read_f32(memory, int(mebibytes) * MIB // 4 - 1))


def sweep(cuda: Cuda, mebibytes: str, times: str) -> None:
    """Touches all of its unified memory again and again."""
    memory = cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    cuda.launch("fill_f32", memory, 0.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    began = time.monotonic()
    for _ in range(int(times)):
        cuda.launch("work_f32", memory, int(mebibytes) * MIB // 4, 10 * MS, 0)
    cuda.cuCtxSynchronize()
    say(time.monotonic() - began)
    assert cuda.read_f32(memory, 0) == float(times)


def churn(cuda: Cuda) -> None:
    """Never stops allocating, faulting and freeing: to be killed at any point."""
    say("ready")
    while True:
        plain, managed = cuda.cuMemAlloc(8 * MIB), cuda.cuMemAllocManaged(64 * MIB, 1)
        cuda.launch("fill_f32", managed, 1.0, 16 * MIB)
        cuda.cuMemPrefetchAsync(managed, 8 * MIB, place(cuda, on_device=False), 0, 0)
        cuda.cuMemFree(plain)
        cuda.cuMemFree(managed)


def report_free(cuda: Cuda) -> None:
    say("ready")
    for _ in sys.stdin:
        say(cuda.cuMemGetInfo()[0])


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str]) -> int:
    go(process)
    return int(read_line(process))


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine of its own, without launch overhead."""
    (tmp_path / "machine.conf").write_text(FAST)
    return environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))


@pytest.mark.exclusive
def test_busy_processes_get_equal_time_slices(machine: dict[str, str]) -> None:
    with running_process(spin, machine, "400", "40") as first, running_process(spin, machine, "400", "1") as second:
        assert read_line(first) == read_line(second) == "ready"
        go(first)
        alone = float(read_line(first))
        assert 0.4 <= alone < 0.6
        with running_process(spin, machine, "400", "40") as third:
            assert read_line(third) == "ready"
            go(second)
            go(third)
            both = [float(read_line(second)), float(read_line(third))]
    assert all(0.72 < seconds < 1.2 for seconds in both), both


def test_an_idle_process_costs_the_others_nothing(machine: dict[str, str]) -> None:
    with running_process(hold, machine, "plain", "64") as idle, running_process(spin, machine, "300", "30") as busy:
        assert read_line(idle) == read_line(busy) == "ready"
        go(busy)
        assert 0.3 <= float(read_line(busy)) < 0.5


def test_a_stopped_or_killed_process_does_not_hold_the_device(machine: dict[str, str]) -> None:
    with (
        running_process(spin, machine, "60000", "30000") as endless,
        running_process(spin, machine, "1000", "500", "4") as busy,
    ):
        assert read_line(endless) == read_line(busy) == "ready"
        go(endless)
        time.sleep(0.05)
        endless.kill()
        go(busy)
        assert 1.0 <= float(read_line(busy)) < 1.8, "2 s, were it shared with work of the killed one"


def test_unified_memory_of_others_is_evicted_and_keeps_its_data(machine: dict[str, str]) -> None:
    with running_process(hold, machine, "managed", "700") as first, running_process(report_free, machine) as watcher:
        assert read_line(first) == read_line(watcher) == "ready"
        free = ask(watcher)
        with running_process(hold, machine, "plain", "600") as second:  # ordinary memory finds room as well
            assert read_line(second) == "ready"
            assert ask(watcher) < 8 * MIB < free
            go(first)
            assert float(read_line(first)) == 1.0
        wait_until(lambda: ask(watcher) > 500 * MIB)


@pytest.mark.skipif(bool(sanitizers.KIND), reason="compares times with the model's")
def test_working_sets_that_do_not_fit_thrash(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text("[device]\nmemory = 160 MiB\nfault_bandwidth = 512 MiB/s\n")
    machine = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))

    def both(mebibytes: str) -> float:
        with (
            running_process(sweep, machine, mebibytes, "4") as first,
            running_process(sweep, machine, mebibytes, "4") as second,
        ):
            assert read_line(first) == read_line(second) == "ready"
            go(first)
            go(second)
            return max(float(read_line(first)), float(read_line(second)))

    assert both("100") > 3 * both("50")


def test_many_killed_processes_leave_nothing_stuck(machine: dict[str, str]) -> None:
    with running_process(report_free, machine) as watcher:
        assert read_line(watcher) == "ready"
        before = ask(watcher)
        for number in range(12):
            victim = start_test(churn, machine)
            assert read_line(victim) == "ready"
            time.sleep(0.003 * number)
            victim.kill()
            victim.communicate()
        assert ask(watcher) == before
        with running_process(spin, machine, "50", "1") as alive:
            assert read_line(alive) == "ready"
            go(alive)
            assert float(read_line(alive)) < 0.2


def execute_again(cuda: Cuda, times: str) -> None:
    """The same process, another program: what it held before is gone."""
    cuda.cuMemAlloc(600 * MIB)
    if int(times):
        arguments = [*sys.orig_argv[:-1], str(int(times) - 1)]
        os.execv(sys.executable, arguments)
    say("ready")


def test_a_process_that_executes_another_program_starts_anew(machine: dict[str, str]) -> None:
    with running_process(execute_again, machine, "2") as process:
        assert read_line(process) == "ready"


@on_driver()
def test_unified_memory_may_exceed_the_device(cuda: Cuda) -> None:
    total = cuda.cuMemGetInfo()[1]
    arrays = [cuda.cuMemAllocManaged(400 * MIB, 1) for _ in range(3)]
    for number, array in enumerate(arrays):
        cuda.launch("fill_f32", array, float(number), 100 * MIB)
    cuda.cuCtxSynchronize()
    assert cuda.cuMemGetInfo()[0] < 8 * MIB < 1200 * MIB - total
    assert [cuda.read_f32(array, 100 * MIB - 1) for array in arrays] == [0.0, 1.0, 2.0]
    assert cuda.code("cuMemAlloc", 1100 * MIB) == 2


@on_driver(GPUSHARE_SIM_MEMORY="64MiB")
def test_ordinary_memory_is_never_evicted(cuda: Cuda) -> None:
    plain, managed = cuda.cuMemAlloc(40 * MIB), cuda.cuMemAllocManaged(100 * MIB, 1)
    cuda.launch("fill_f32", plain, 3.0, 10 * MIB)
    cuda.launch("fill_f32", managed, 4.0, 25 * MIB)
    cuda.cuCtxSynchronize()
    assert cuda.cuMemGetInfo()[0] < 4 * MIB
    assert cuda.read_f32(managed, 25 * MIB - 1) == 4.0
    assert cuda.code("cuMemAlloc", 16 * MIB) == 2
    cuda.cuMemAlloc(6 * MIB)
    cuda.cuMemFree(managed)
    assert cuda.cuMemGetInfo()[0] == 2 * MIB
