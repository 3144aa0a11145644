"""Tests of the end of a process: the shim and the end of the driver, exit handlers, and the turn.

The simulated driver aborts the process instead of undefined behaviour (`GPUSHARE_SIM_STRICT_EXIT`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from jupyter_gpushare.wire.page import CLOSING

from ..support import sanitizers
from ..support.compile_cache import cached
from . import simlog
from .conftest import HERE, WAIT_SECONDS, CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

DEINITIALIZED = 4
MIB = 1 << 20
EVERYTHING = (1 << 64) - 1


@cache
def exit_handler() -> Path:
    source = HERE / "exit_handler.c"
    return cached("exit_handler.so", [source], lambda out: [["cc", "-shared", "-fPIC", str(source), "-o", str(out)]])


def ended(client: CudaClient) -> str:
    """Wait for the end of the process, which must succeed, and return its standard error."""
    client.process.wait(WAIT_SECONDS)
    errors = client.collect()
    assert client.process.returncode == 0, errors
    return errors


def close_input(client: CudaClient) -> None:
    assert client.process.stdin
    client.process.stdin.close()


def client_with_handlers(machine: NativeHost) -> CudaClient:
    """Return a client that has loaded `exit_handler.c`, before it initialises the driver by `cuda.start()`."""
    client = machine.client()
    client.run(f"cuda = Cuda(start=False); handlers = ctypes.CDLL({str(exit_handler())!r})")
    return client


def client_that_holds_its_exit(machine: NativeHost, fifo: Path) -> CudaClient:
    """Return a client that waits after the driver's own exit handler until the test has written to `fifo`."""
    os.mkfifo(fifo)
    client = client_with_handlers(machine)
    client.run(f"fifo = {str(fifo)!r}.encode(); handlers.hold_exit(fifo)")
    return client


def has_evicted(machine: NativeHost) -> bool:
    executions = simlog.read_all(machine.simlog).values()
    return any(one.kind == "device to host" for each in executions for one in each)


def poll_once(client: CudaClient, process: ProcessConnection) -> None:
    """Make the agent of a process that still runs do everything that it does whenever it wakes."""
    report = process.page.report
    sampled = report.sampled_ns
    with contextlib.suppress(BrokenPipeError):
        process.doorbell()
    wait_until(lambda: report.sampled_ns != sampled or client.process.poll() is not None, what="a poll of the agent")


def test_the_agent_calls_no_driver_that_has_ended(
    machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    """The process ends during a drain, in which the agent polls the driver all the time."""
    client = client_that_holds_its_exit(machine, tmp_path / "fifo")
    process = client.join(coordinator, "cuda.start()")
    client.begin(process, 1)
    client.run("flag = c_uint64(); cuda.cuMemHostAlloc(byref(flag), c_size_t(4), 0)")
    client.run("c_uint32.from_address(flag.value).value = 0")
    assert client.run("cuda.launch('wait_flag', flag.value, 1)") == 0
    process.close_gate(1)
    wait_until(lambda: process.phase == CLOSING)
    close_input(client)
    assert client.result() == "held"  # after the driver's own exit handler
    for _ in range(3):
        poll_once(client, process)
    (tmp_path / "fifo").write_text("")
    assert ended(client) == ""


def test_the_exit_waits_for_a_call_of_the_agent(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    """The process ends while the agent waits inside the driver for copies of evicted memory."""
    slow = machine.root / "slow.conf"
    slow.write_text("[device]\nd2h_bandwidth = 256 MiB/s\npageable_d2h_bandwidth = 256 MiB/s\n")
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=str(slow))
    process.page.control.resident_target[0] = EVERYTHING
    process.open(1)
    assert client.run(f"[cuda.alloc({64 * MIB})[0] for _ in range(2)] + [cuda.spin()]") == [0, 0, 0]
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: has_evicted(machine))
    close_input(client)
    assert ended(client) == ""


def test_a_call_after_the_driver_has_ended_waits_for_no_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """An exit handler that is older than the driver's own gets the driver's answer although other clients run."""
    client = client_with_handlers(machine)
    client.run("handlers.call_at_exit(ctypes.cast(cuda.cuMemsetD8_v2, c_void_p))")
    process = client.join(coordinator, "cuda.start()")
    client.begin(process, 1)
    process.drain(1)
    close_input(client)
    assert client.result() == DEINITIALIZED
    assert ended(client) == ""


def test_a_thread_at_the_gate_calls_no_driver_that_has_ended(
    machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    """The turn of a thread comes after the driver has ended with the process."""
    client = client_that_holds_its_exit(machine, tmp_path / "fifo")
    process = client.join(coordinator, "cuda.start()")
    client.run("in_thread(cuda.spin)")
    process.wait_for_waiting_thread()
    close_input(client)
    assert client.result() == "held"  # after the driver's own exit handler
    with contextlib.suppress(BrokenPipeError):
        process.open(1)
    wait_until(lambda: process.page.report.waiting == 0, what="the end of the wait at the gate")
    (tmp_path / "fifo").write_text("")
    assert ended(client) == ""


def test_a_call_before_the_driver_ends_waits_for_its_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client = client_with_handlers(machine)
    process = client.join(coordinator, "cuda.start()")
    client.run("data = cuda.alloc(4096)[1]")
    client.run("handlers.call_at_exit(ctypes.cast(cuda.cuMemsetD8_v2, c_void_p))")
    close_input(client)
    process.wait_for_waiting_thread()
    process.open(1)
    assert client.result() == 1  # the handler passes no valid address
    assert ended(client) == ""


def test_a_forked_child_exits_without_the_agent_of_its_parent(client: CudaClient, process: ProcessConnection) -> None:
    client.begin(process, 1)
    client.run("libc = ctypes.CDLL(None)")
    client.run("child = os.fork() or libc.exit(7)")
    assert client.run("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 7
    assert client.run("cuda.spin()") == 0
    process.drain(1)


def test_an_exit_without_handlers_ends_the_turn(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator)
    client.begin(process, 1)
    client.start("os._exit(3)")
    assert client.process.wait(WAIT_SECONDS) == 3
    other, next_process = machine.new_client(coordinator)
    other.begin(next_process, 1)


DAEMON = """
libc = ctypes.CDLL(None)
def start_daemon(end):
    libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the daemon becomes a child of this process
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    cuda = Cuda()
    if cuda.spin(500):
        os._exit(9)
    end(7)
"""


@pytest.mark.parametrize("end", ["libc.exit", "os._exit"])
def test_a_daemon_exits_with_work_in_flight(machine: NativeHost, coordinator: ScriptedCoordinator, end: str) -> None:
    """The program forks twice, leaves its session and closes all descriptors before its first call."""
    client = machine.client()
    client.run(DAEMON)
    assert client.run(f"start_daemon({end})") == 0
    daemon = coordinator.accept().welcome()
    with contextlib.suppress(BrokenPipeError):  # the daemon may have ended before the doorbell
        daemon.open(1)
    assert client.run("os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])") == 7
    other, process = machine.new_client(coordinator)
    other.begin(process, 1)


@pytest.mark.skipif(bool(sanitizers.KIND), reason="the interpreter's last threads end without their destructors")
def test_an_embedded_interpreter_ends_before_the_calls_of_its_program(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """A thread of Python waits at the gate as the interpreter ends, and the program waits at the gate after that."""
    client = machine.client(str(embedding_program()), PYTHONHOME=sys.base_prefix)
    process = client.join(coordinator)
    client.begin(process, 1)
    assert client.run("cuda.spin(300)") == 0
    process.drain(1)
    client.run("in_thread(cuda.spin)")
    process.wait_for_waiting_thread()
    close_input(client)
    assert client.result() == 0  # the interpreter has ended
    assert client.is_running()
    process.open(2)
    assert client.result() == 1  # the program passes no valid address
    assert ended(client) == ""


def embedding_program() -> Path:
    """Return a C program that runs a file of Python, ends the interpreter and calls the driver then."""
    library = Path(sysconfig.get_config_var("LIBDIR")) / str(sysconfig.get_config_var("INSTSONAME"))
    if library.suffix == ".a" or not library.exists():
        pytest.skip(f"the interpreter has no shared library at {library}")
    source = HERE / "embedding.c"
    command = ["cc", str(source), str(library), f"-Wl,-rpath,{library.parent}", "-ldl", "-o"]
    return cached("embedding", [source], lambda out: [[*command, str(out)]])
