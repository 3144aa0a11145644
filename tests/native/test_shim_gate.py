"""Tests of the gate: hello, closed and open gates, steps, drains and counters."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from jupyter_gpushare.wire.page import CLOSING, CONTENDED, OUT

from ..driver_facts.harness import PTX
from ..support import sanitizers
from . import simlog
from .conftest import CudaClient, NativeHost, built_program, built_shim
from .fake_coordinator import WAIT_SECONDS, ProcessConnection, ScriptedCoordinator, wait_until


def test_hello_has_client_token_and_devices(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = machine.client(
        GPUSHARE_CLIENT="nb:1", GPUSHARE_TOKEN='s"\\e\x01', GPUSHARE_LABEL="Übung\n1", GPUSHARE_QUOTA="share=0.5"
    )
    client.start("cuda = Cuda()")
    process = coordinator.accept()
    assert client.is_running()
    process.welcome()
    client.result()
    hello = process.hello
    assert hello["pid"] == client.pid
    assert (hello["client"], hello["token"], hello["label"]) == ("nb:1", 's"\\e\x01', "Übung\n1")
    assert (hello["quota"], hello["simulated"]) == ("share=0.5", True)
    assert process.phase == OUT
    (device,) = hello["devices"]
    assert device["uuid"].startswith("GPU-") and device["memory"] == 1 << 30 and "Simulated" in device["name"]
    assert process.page.view.header.pid == client.pid
    for ending in ("lock", "bell"):
        assert (machine.lock_folder / f"{device['uuid']}.{ending}").stat().st_mode & 0o777 == 0o666
    assert machine.lock_folder.stat().st_mode & 0o7777 == 0o1777


def test_closed_gate_holds_and_open_gate_permits(client: CudaClient, process: ProcessConnection) -> None:
    client.start("cuda.spin()")
    process.wait_for_waiting_thread()
    wait_until(lambda: process.page.report.waiting == 1)
    assert client.is_running()
    process.open(1)
    assert client.result() == 0
    assert process.page.report.waiting == 0
    assert process.page.report.gate_waits == 1
    assert client.run("[cuda.spin() for _ in range(100)]") == [0] * 100
    process.drain(1)
    wait_until(lambda: process.page.report.launches == 101)
    assert client.run_at_the_gate(process, 2) == 0


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non-blocking"])
def test_a_step_lets_each_thread_make_one_call(client: CudaClient, process: ProcessConnection, flags: int) -> None:
    """A thread that has made its call waits for the next step, so only the work that the device waits for comes.

    Work of blocking streams would wait for anything that the drain submits to the legacy stream.
    """
    process.open(1)
    client.run(
        "word = cuda.alloc(4096)[1]; cuda.cuMemsetD32_v2(c_uint64(word), 0, c_size_t(1)); cuda.spin(); done = []"
    )
    client.run(f"waiting, setting = cuda.stream({flags}), cuda.stream({flags})")
    assert client.run("cuda.launch('wait_flag', word, 7, stream=waiting), cuda.function('set_flag') and 0") == [0, 0]
    process.close_gate(1)
    wait_until(lambda: process.phase == CLOSING)
    client.run(
        """
def calls():
    cuda.make_current()
    for _ in range(3):
        done.append(cuda.spin(0, setting))
    done.append(cuda.launch('set_flag', word, 7, stream=setting))
thread = in_thread(calls)
"""
    )
    process.wait_until_left(1)
    assert client.run("thread.join() or done") == [0] * 4
    assert process.last_turn.steps >= 4  # on a busy machine, a step may end before its thread runs


def test_the_doorbell_rings_once_for_all_threads_that_wait(client: CudaClient, process: ProcessConnection) -> None:
    process.doorbells()
    client.run("threads = [in_thread(lambda: cuda.make_current() or cuda.spin()) for _ in range(4)]")
    wait_until(lambda: process.page.report.waiting == 4)
    assert process.doorbells() == 1
    process.open(1)
    client.run("[thread.join() for thread in threads] and None")
    process.drain(1)
    process.doorbells()
    client.start("cuda.spin()")
    process.wait_for_doorbell()


def test_copies_and_launches_are_counted(client: CudaClient, process: ProcessConnection) -> None:
    """`test_shim_hook_table.py` has the test that each call waits at the gate."""
    client.run("memory = cuda.alloc(4096)[1]; host = ctypes.create_string_buffer(4096); one = cuda.stream()")
    process.open(1)
    for call in (
        "cuda.cuMemcpyHtoD_v2(c_uint64(memory), host, c_size_t(64))",
        "cuda.cuMemcpyDtoH_v2(host, c_uint64(memory), c_size_t(64))",
        "cuda.cuMemcpyDtoHAsync_v2(host, c_uint64(memory), c_size_t(64), c_void_p(one))",
        "cuda.cuMemcpyHtoDAsync_v2_ptsz(c_uint64(memory), host, c_size_t(64), None)",
        "cuda.cuMemcpyDtoD_v2_ptds(c_uint64(memory), c_uint64(memory + 512), c_size_t(64))",
        "cuda.cuMemsetD8_v2(c_uint64(memory), 1, c_size_t(64))",
        "cuda.cuMemsetD32Async(c_uint64(memory), 1, c_size_t(16), c_void_p(one))",
        "cuda.cuMemPrefetchAsync(c_uint64(memory), c_size_t(4096), 0, None)",
        "cuda.launch('spin', 0, call=cuda.cuLaunchKernel_ptsz)",
        "cuda.launch('spin', 0, call=lambda *a: cuda.cuLaunchCooperativeKernel(*a[:-1]))",
        "cuda.cuLaunchHostFunc(c_void_p(one), ctypes.cast(cuda.library.cuCtxGetId, c_void_p), None)",
    ):
        assert client.run(call) == 0, call
    process.drain(1)
    report = process.page.report
    wait_until(lambda: (report.copies, report.launches) == (5, 2))
    assert report.bytes_copied == 5 * 64


def check_pauses(machine: NativeHost, pauses: list[tuple[int, int]]) -> None:
    """Assert that no execution overlaps one of the pauses, and that there are many executions."""
    (executions,) = simlog.read_all(machine.simlog).values()
    assert len(executions) > 100
    for begin, end in pauses:
        assert not [e for e in executions if e.begin_ns < end and e.end_ns > begin]


@pytest.mark.parametrize("throttled", [False, True], ids=["unthrottled", "throttled"])
def test_closing_is_exact_under_load(
    machine: NativeHost, client: CudaClient, process: ProcessConnection, throttled: bool
) -> None:
    """Eight threads launch as fast as they may; after each drain, the device runs nothing until the next opening."""
    client.run(
        f"""
stop, launched = False, 0
def loop(stream):
    global launched
    cuda.make_current()
    while not stop:
        assert cuda.spin({0.5 if throttled else 0.02}, stream) == 0
        launched += 1
streams = [0, 1, 2] + [cuda.stream(i % 2) for i in range(5)]
threads = [in_thread(lambda stream=stream: loop(stream)) for stream in streams]
"""
    )
    process.wait_for_waiting_thread()
    report, pauses = process.page.report, []
    process.page.control.window_ns, process.page.control.idle_release_ns = 20_000_000, 0
    for epoch in range(1, 16):
        waits, before, launched = report.throttle_waits, report.launches, client.run("launched")
        process.open(epoch, CONTENDED if throttled else 0)
        process.wait_until_entered(epoch)
        if throttled:
            wait_until(lambda waits=waits: report.throttle_waits > waits + 20)
        else:
            wait_until(lambda launched=launched: client.run("launched") > launched + 20)
        process.drain(epoch)
        drained = time.monotonic_ns()
        wait_until(lambda before=before: report.launches > before)
        wait_until(lambda: report.waiting == 8)
        pauses.append((drained, time.monotonic_ns()))
    assert sum(report.drains) == 15
    assert 0 < report.drain_ns <= report.drain_max_ns <= report.drain_total_ns < 15 * report.drain_max_ns + 1
    process.open(16)
    client.run("stop = True; [thread.join() for thread in threads] and None")
    check_pauses(machine, pauses)


def test_drain_waits_for_calls_in_progress(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """A signal delays a thread inside a launch while the gate closes; the drain waits for the work of that launch."""
    argv = [str(built_program("context_teardown.c")), str(PTX), "1", "256", "1000"]
    with subprocess.Popen(argv, env=machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
        process = coordinator.accept().welcome()
        wait_until(lambda: process.page.report.waiting == 1)
        pauses = []
        for epoch in range(1, 11):
            process.open(epoch)
            process.wait_until_entered(epoch)
            time.sleep(0.01)
            program.send_signal(signal.SIGUSR1)
            process.drain(epoch)
            drained = time.monotonic_ns()
            wait_until(lambda: process.page.report.waiting == 1)
            time.sleep(0.01)
            pauses.append((drained, time.monotonic_ns()))
        process.open(11)
        assert program.stdin
        program.stdin.close()
        assert program.wait(WAIT_SECONDS) == 0
    check_pauses(machine, pauses)


@pytest.mark.parametrize(
    "work",
    [
        "[cuda.spin(100, cuda.stream(1)) for _ in range(3)]",
        "one = cuda.stream(1); cuda.spin(100, one); cuda.cuStreamDestroy_v2(c_void_p(one))",
        # The driver uses handles again; a thread's record of the first stream must not hide the second.
        "one = cuda.stream(1); cuda.spin(0, one); cuda.cuStreamSynchronize(c_void_p(one));"
        "cuda.cuStreamDestroy_v2(c_void_p(one));"
        "same = [handle for handle in [cuda.stream(1) for _ in range(50)] if handle == one];"
        "cuda.spin(100, one if same else cuda.stream(1))",
    ],
    ids=["long work", "work of a destroyed stream", "work of a stream in the place of another"],
)
def test_drain_waits_for_submitted_work(
    machine: NativeHost, client: CudaClient, process: ProcessConnection, work: str
) -> None:
    process.open(1)
    client.run(work)
    launches = 3 if "range(3)" in work else work.count("cuda.spin")
    process.drain(1)
    assert machine.executions_are_over(launches)


def test_a_process_is_idle_only_in_a_contended_turn(client: CudaClient, process: ProcessConnection) -> None:
    report = process.page.report
    process.page.control.idle_release_ns = 40_000_000
    process.open(1)
    client.run("cuda.spin(0)")
    assert process.is_silent(0.3) and not report.idle
    process.open(1, CONTENDED)
    wait_until(lambda: report.idle)
    process.wait_for_doorbell()
    assert process.is_silent(0.2)
    assert client.run("cuda.hold()") == 0  # the device works for longer than the limit: the process is not idle then
    wait_until(lambda: not report.idle)  # the turn of a client with several processes goes on while one is idle
    assert process.is_silent(0.2) and not report.idle
    client.run("cuda.release()")
    process.wait_for_doorbell()
    wait_until(lambda: report.idle)


def test_waits_of_streams_for_a_word_pass_the_gate_and_are_drained(
    client: CudaClient, process: ProcessConnection
) -> None:
    """A stream waits for a word on the device, so the turn goes on until the word has come."""
    process.open(1)
    assert client.run("(word := cuda.alloc(4096))[0], cuda.cuMemsetD32_v2(c_uint64(word[1]), 0, c_size_t(1024))") == [
        0,
        0,
    ]
    process.drain(1)
    client.run("one, other = cuda.stream(1), cuda.stream(1)")
    assert (
        client.run_at_the_gate(process, 2, "cuda.cuStreamWaitValue32_v2(c_void_p(one), c_uint64(word[1]), 5, 0)") == 0
    )
    process.close_gate(2)
    assert process.stays_in(CLOSING), "the process has drained although a stream waits"
    process.open(2)
    assert client.run("cuda.cuMemsetD32Async(c_uint64(word[1]), 5, c_size_t(1), c_void_p(other))") == 0
    process.drain(2)


def test_gate_is_exact_without_membarrier(
    machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    """Some containers refuse membarrier. Then every call takes a full fence, and draining is still exact."""
    source = tmp_path / "refuse.c"
    source.write_text(
        """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/syscall.h>
long syscall(long number, long a, long b, long c, long d, long e, long f) {
    static long (*next)(long, ...);
    if (number == SYS_membarrier)
        return errno = EPERM, -1;
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a, b, c, d, e, f);
}
"""
    )
    library = str(source.with_suffix(".so"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True)
    client, process = machine.new_client(coordinator, **sanitizers.preload(library, str(built_shim())))
    assert "because membarrier is refused" in machine.log_text()
    for epoch in range(1, 4):
        assert client.run_at_the_gate(process, epoch, "[cuda.spin(1, stream) for stream in (0, 1, 2)]") == [0, 0, 0]
        process.drain(epoch)
    wait_until(lambda: process.page.report.launches == 9)
