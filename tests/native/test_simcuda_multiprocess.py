"""Tests of the simulated machine with several processes: memory, eviction, time slices and killed processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..driver_facts.harness import MIB, MS, Cuda, environment, on_driver, running_process, start_test
from ..driver_facts.test_memory import location
from ..support import sanitizers
from ..support.polling import least, wait_until

FAST = "[device]\nlaunch_overhead = 0\n"
SLACK = 0.0005  # seconds: the model runs up to 50 us ahead of the clock, at every synchronisation


# The programs of the processes. A program prints "ready" and goes on when it gets a line of input.


def send(text: object) -> None:
    print(text, flush=True)


def spin(cuda: Cuda, milliseconds: str, launches: str, together: str = "") -> None:
    """Launch work of `milliseconds` in all for each line, and wait for the device after every `together` launches."""
    cuda.launch("spin", 0)
    cuda.cuCtxSynchronize()
    send("ready")
    for _ in sys.stdin:
        start = time.monotonic()
        for number in range(int(launches)):
            cuda.launch("spin", int(milliseconds) * MS // int(launches))
            if together and number % int(together) == 0:
                cuda.cuCtxSynchronize()
        cuda.cuCtxSynchronize()
        send(time.monotonic() - start)


def occupy(cuda: Cuda) -> None:
    """Keep the device busy until the test kills the process, which is ready once its launch of ten minutes runs."""
    (word, flag), (begun, begun_flag) = cuda.host_flag(), cuda.host_flag()
    cuda.launch("wait_flag", flag, 1)
    cuda.launch("set_flag", begun_flag, 1)
    cuda.launch("spin", 600_000 * MS)
    word.value = 1
    wait_until(lambda: begun.value)
    send("ready")
    input()


def allocate_and_read(cuda: Cuda, kind: str, mebibytes: str) -> None:
    memory = (
        cuda.cuMemAlloc(int(mebibytes) * MIB) if kind == "plain" else cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    )
    cuda.launch("fill_f32", memory, 1.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    send("ready")
    input()
    send(cuda.read_f32(memory, int(mebibytes) * MIB // 4 - 1))


def sweep(cuda: Cuda, mebibytes: str, times: str) -> None:
    """Touch the whole unified memory again and again."""
    memory = cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    cuda.launch("fill_f32", memory, 0.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    send("ready")
    input()
    start = time.monotonic()
    for _ in range(int(times)):
        cuda.launch("work_f32", memory, int(mebibytes) * MIB // 4, 10 * MS, 0)
    cuda.cuCtxSynchronize()
    send(time.monotonic() - start)
    assert cuda.read_f32(memory, 0) == float(times)


def churn(cuda: Cuda) -> None:
    """Allocate, fault and free without an end, until the test kills the process."""
    send("ready")
    while True:
        plain, managed = cuda.cuMemAlloc(8 * MIB), cuda.cuMemAllocManaged(64 * MIB, 1)
        cuda.launch("fill_f32", managed, 1.0, 16 * MIB)
        cuda.cuMemPrefetchAsync(managed, 8 * MIB, location(cuda, on_device=False), 0, 0)
        cuda.cuMemFree(plain)
        cuda.cuMemFree(managed)


def report_free(cuda: Cuda) -> None:
    send("ready")
    for _ in sys.stdin:
        send(cuda.cuMemGetInfo()[0])


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def query_free(process: subprocess.Popen[str]) -> int:
    go(process)
    return int(read_line(process))


def seconds_of(process: subprocess.Popen[str]) -> float:
    go(process)
    return float(read_line(process))


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Return the environment for a simulated machine of this test, without launch overhead."""
    (tmp_path / "machine.conf").write_text(FAST)
    return environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))


@pytest.mark.parametrize("launches", ["1", "40"])
def test_busy_processes_get_equal_time_slices(machine: dict[str, str], launches: str) -> None:
    """Work of 0.4 s takes twice as long beside one process that is busy and one that is not, in any number of parts."""
    with (
        running_process(spin, machine, "400", launches) as idle,
        running_process(spin, machine, "400", launches) as process,
    ):
        assert read_line(idle) == read_line(process) == "ready"
        assert seconds_of(idle) >= 0.4 - SLACK
        with running_process(occupy, machine) as busy:
            assert read_line(busy) == "ready"
            assert 0.72 < least(lambda: seconds_of(process), 1.2) < 1.2


def test_the_device_loses_time_when_another_process_follows(machine: dict[str, str]) -> None:
    """Work of 0.4 s beside a busy process takes 0.8 s where the device loses nothing."""
    with Path(machine["GPUSHARE_SIM_CONFIG"]).open("r+") as file:
        parameters = file.read()
        file.seek(0)
        file.write(f"slice = 2ms\nslice_switch = 4ms\n{parameters}")
    with running_process(occupy, machine) as busy, running_process(spin, machine, "400", "40") as process:
        assert read_line(busy) == read_line(process) == "ready"
        assert seconds_of(process) >= 1.6


def test_idle_processes_take_no_device_time(machine: dict[str, str]) -> None:
    """Several processes, so that their slices would delay the work more than a busy machine does."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(running_process(allocate_and_read, machine, "plain", "64")) for _ in range(4)]
        busy = stack.enter_context(running_process(spin, machine, "300", "30"))
        assert {read_line(process) for process in (*idle, busy)} == {"ready"}
        seconds = least(lambda: seconds_of(busy), 1.4)
        assert 0.3 - SLACK <= seconds < 1.4, "with slices of the idle processes, it would take 1.5 s"


def seconds_after_kills(machine: dict[str, str]) -> float:
    """Return the seconds of work of 0.5 s that begins right after four busy processes have been killed."""
    with contextlib.ExitStack() as stack:
        endless = [stack.enter_context(running_process(occupy, machine)) for _ in range(4)]
        busy = stack.enter_context(running_process(spin, machine, "500", "250", "4"))
        assert {read_line(process) for process in (*endless, busy)} == {"ready"}
        for process in endless:
            process.kill()
        return seconds_of(busy)


def test_killed_processes_free_the_device(machine: dict[str, str]) -> None:
    """Several processes, for the same reason."""
    seconds = least(lambda: seconds_after_kills(machine), 2.4)
    assert 0.5 - SLACK <= seconds < 2.4, "with the work of the killed processes, it would take 2.5 s"


def test_unified_memory_of_another_process_is_evicted_and_keeps_its_data(machine: dict[str, str]) -> None:
    with (
        running_process(allocate_and_read, machine, "managed", "700") as first,
        running_process(report_free, machine) as watcher,
    ):
        assert read_line(first) == read_line(watcher) == "ready"
        free = query_free(watcher)
        with running_process(
            allocate_and_read, machine, "plain", "600"
        ) as second:  # ordinary memory evicts unified memory
            assert read_line(second) == "ready"
            assert query_free(watcher) < 8 * MIB < free
            go(first)
            assert float(read_line(first)) == 1.0
        wait_until(lambda: query_free(watcher) > 500 * MIB)


@pytest.mark.skipif(bool(sanitizers.KIND), reason="the sanitizer changes the measured times")
def test_working_sets_that_do_not_fit_thrash(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text("[device]\nmemory = 160 MiB\nfault_bandwidth = 512 MiB/s\n")
    machine = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))

    def seconds_of_both(mebibytes: str) -> float:
        with (
            running_process(sweep, machine, mebibytes, "4") as first,
            running_process(sweep, machine, mebibytes, "4") as second,
        ):
            assert read_line(first) == read_line(second) == "ready"
            go(first)
            go(second)
            return max(float(read_line(first)), float(read_line(second)))

    thrashing = seconds_of_both("100")
    assert least(lambda: seconds_of_both("50"), thrashing / 3) < thrashing / 3


def test_many_killed_processes_leave_nothing_stuck(machine: dict[str, str]) -> None:
    with running_process(report_free, machine) as watcher:
        assert read_line(watcher) == "ready"
        before = query_free(watcher)
        for number in range(12):
            victim = start_test(churn, machine)
            assert read_line(victim) == "ready"
            time.sleep(0.003 * number)
            victim.kill()
            victim.communicate()
        assert query_free(watcher) == before
        with running_process(spin, machine, "200", "4") as alive:
            assert read_line(alive) == "ready"
            seconds = least(lambda: seconds_of(alive), 1.5)
            assert seconds < 1.5, "with slices of the killed processes, it would take 2.6 s"


def execute_again(cuda: Cuda, times: str) -> None:
    """Replace the program of the process `times` times; each new program finds the memory of the old one free."""
    cuda.cuMemAlloc(600 * MIB)
    if int(times):
        arguments = [*sys.orig_argv[:-1], str(int(times) - 1)]
        os.execv(sys.executable, arguments)
    send("ready")


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
