"""Tests of the shim's start and end: programs without CUDA calls, child processes and failures."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from jupyter_gpushare.wire.page import IN, OUT

from ..support.threads import thread_names
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

NOT_INITIALIZED = 3
TRACES = "[line for line in open('/proc/self/maps') if 'memfd:gpushare' in line]"


def open_files(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return found


def test_inert_until_the_first_call(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = machine.client()
    client.run("cuda = Cuda(start=False)")
    assert len(list(Path(f"/proc/{client.pid}/task").iterdir())) == 1
    files = open_files(client.pid)
    assert not [name for name in files if "memfd" in name or "socket" in name or "eventfd" in name]
    assert client.run(TRACES) == []
    assert not machine.log.exists() and not machine.lock_folder.exists()
    client.join(coordinator, "cuda.start()")
    assert len(client.run(TRACES)) == 2
    assert "gpushare" in thread_names(client.pid).values()


def test_forked_child_drops_the_state_of_its_parent(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    process.open(1)
    client.run("cuda.spin(); reader, writer = os.pipe()")
    client.run(
        """
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
"""
    )
    child = client.run("child")
    wait_until(lambda: Path(f"/proc/{child}/fd").exists())
    wait_until(lambda: not [f for f in open_files(child) if "gpushare" in f or "socket" in f or "eventfd" in f])
    assert "memfd:gpushare" not in Path(f"/proc/{child}/maps").read_text()
    assert len(list(Path(f"/proc/{child}/task").iterdir())) == 1
    process.drain(1)  # the parent goes on as before
    assert client.run_at_the_gate(process, 2) == 0
    client.run("os.kill(child, 9); os.waitpid(child, 0)")


def test_child_of_a_fork_before_the_first_call_is_a_process_of_its_own(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client = machine.client(GPUSHARE_CLIENT="x")
    client.run("cuda = Cuda(start=False); answers, answer = os.pipe()")
    client.run(
        """
child = os.fork()
if child == 0:
    cuda.start()
    os.write(answer, b"%d" % cuda.spin())
    os._exit(0)
"""
    )
    process = coordinator.accept().welcome()
    assert process.hello["pid"] == client.run("child") == process.page.view.header.pid
    process.wait_for_waiting_thread()
    process.open(1)
    assert client.run("os.read(answers, 10).decode()") == "0"
    client.run("os.waitpid(child, 0)")
    assert not machine.client().run(TRACES)


def test_programs_started_by_the_client_inherit_nothing(
    client: CudaClient, process: ProcessConnection, tmp_path: Path
) -> None:
    client.begin(process, 1)
    client.run("import subprocess")
    script = "import os; print([os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd')[:-1]])"
    for how in ("", ", preexec_fn=lambda: None", ", close_fds=False"):
        client.start(f"subprocess.run(['python3', '-c', {script!r}], capture_output=True, text=True{how}).stdout")
        names = client.result()
        assert "gpushare" not in names and "socket" not in names and "eventfd" not in names, how
    target = tmp_path / "files"
    client.run(f"command = 'readlink /proc/self/fd/* > {target}; true'")
    client.run("child = os.posix_spawn('/bin/sh', ['sh', '-c', command], os.environ)")
    assert client.run("os.waitpid(child, 0)[1]") == 0
    inherited = target.read_text().splitlines()[3:]
    assert not [name for name in inherited if name.startswith(("/memfd:", "socket:", "pipe:")) or "locks/" in name]
    process.drain(1)


def test_child_that_uses_the_device_gets_the_drivers_answer(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """CUDA does not survive a fork, and the fork does not affect the parent."""
    client.begin(process, 1)
    client.run("child = os.fork() or os._exit(cuda.spin() + cuda.alloc(100)[0] + cuda.cuInit(0))")
    assert client.run("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 3 * NOT_INITIALIZED
    assert process.stays_in(IN)
    assert client.run("cuda.spin()") == 0
    process.drain(1)
    wait_until(lambda: process.page.report.launches == 2)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:  # the process had not read everything
        return True


def test_exec_begins_anew(client: CudaClient, process: ProcessConnection, coordinator: ScriptedCoordinator) -> None:
    client.begin(process, 1)
    client.start("os.execv(sys.executable, [sys.executable, *sys.argv])")
    wait_until(lambda: is_closed(process.connection))
    client.start("cuda = Cuda()")
    again = coordinator.accept().welcome()
    assert client.raw()["value"] is None
    assert again.hello["pid"] == client.pid and again.phase == OUT
    client.begin(again, 1)


def test_the_driver_may_be_closed_and_opened_again(client: CudaClient, process: ProcessConnection) -> None:
    client.run("import _ctypes; _ctypes.dlclose(cuda.library._handle); cuda.library = ctypes.CDLL('libcuda.so.1')")
    assert client.run_at_the_gate(process, 1) == 0
    process.drain(1)


def test_disabled_shim_passes_all_calls(machine: NativeHost) -> None:
    client = machine.client(GPUSHARE_DISABLE="1")
    client.run("cuda = Cuda()")
    assert client.run("cuda.spin()") == 0
    assert client.run(TRACES) == []
    assert client.end() == ""


def test_failed_start_passes_all_calls(machine: NativeHost) -> None:
    """Without lock files, the program runs as without the shim, after one line on standard error."""
    client = machine.client(GPUSHARE_LOCK_DIR="/proc/nowhere")
    client.run("cuda = Cuda()")
    assert client.run("[cuda.spin() for _ in range(3)] + [cuda.alloc(1 << 20)[0]]") == [0, 0, 0, 0]
    errors = client.end()
    assert errors.count("\n") == 1 and "not shared" in errors and "lock files" in errors


def test_the_shim_is_silent_without_a_device(machine: NativeHost) -> None:
    client = machine.client(CUDA_VISIBLE_DEVICES="")
    client.run("cuda = Cuda(start=False)")
    assert client.run("cuda.cuInit(0)") == 100
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(0), 0, c_size_t(1))") != 0
    assert client.end() == ""


def test_refusal_is_logged(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client = machine.client()
    client.start("cuda = Cuda()")
    process = coordinator.accept()
    process.send({"type": "error", "id": 0, "reason": "forbidden", "message": "the token does not match"})
    client.result()
    wait_until(lambda: "the token does not match" in machine.log_text())
    assert process.connection.recv(100) == b""


def test_each_process_without_an_identity_is_a_client(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    names = set()
    for _ in range(2):
        _, process = machine.new_client(coordinator)
        names.add(process.hello["client"])
        assert process.hello["token"] == ""
    assert len(names) == 2


def test_the_start_waits_two_seconds_for_a_missing_answer(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client = machine.client()
    client.run("1")  # the interpreter has started
    begin = time.monotonic()
    client.start("cuda = Cuda()")
    process = coordinator.accept()
    client.result()
    assert 1.5 < time.monotonic() - begin < 15
    process.welcome().open(1)  # as a coordinator does that was stopped
    assert client.run("cuda.spin()") == 0
    assert process.phase == IN


@pytest.mark.parametrize("text", [b"x" * 70_000, b'{"type":"welcome"', b"\n\n\n{}\n[]\n"])
def test_invalid_messages_of_the_coordinator_do_no_harm(
    machine: NativeHost, coordinator: ScriptedCoordinator, text: bytes
) -> None:
    client = machine.client()
    client.start("cuda = Cuda()")
    process = coordinator.accept()
    process.connection.sendall(text)
    process.disconnect()
    coordinator.accept().welcome().open(1)
    client.result()
    assert client.run("cuda.spin()") == 0
