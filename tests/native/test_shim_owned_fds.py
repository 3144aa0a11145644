"""Tests of programs that close every descriptor, as daemons do."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire.page import IN, OUT

from ..support import sanitizers
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .ptrace_stop import stopped_thread, thread_named
from .test_shim_lifecycle import open_files
from .test_shim_without_coordinator import lock_is_free

# The program closes descriptors that another thread uses. The sanitizer reports that as an error; here it is the test.
pytestmark = pytest.mark.skipif(sanitizers.KIND == "thread", reason="closes descriptors that the agent uses")


# The program's next files get the numbers of the shim's descriptors: pipes and sockets with data, and files.
CLOSE_ALL = """
import fcntl, socket, tempfile
opened = []
def close_all():
    os.closerange(3, 256)
    for _ in range(12):
        reader, writer = os.pipe()
        os.write(writer, b"pipe" * 16)
        one, other = socket.socketpair()
        other.send(b"socket" * 16)
        file = tempfile.TemporaryFile()
        file.write(b"file" * 16)
        file.flush()
        fcntl.lockf(file, fcntl.LOCK_EX)
        opened.append((reader, writer, one, other, file))
def are_untouched():
    for reader, writer, one, other, file in opened:
        assert os.get_blocking(reader) and os.read(reader, 1000) == b"pipe" * 16
        assert one.recv(1000) == b"socket" * 16
        one.setblocking(False); other.setblocking(False)
        for end in (one, other):
            try:
                raise AssertionError(end.recv(1000))
            except BlockingIOError:
                pass
        file.seek(0)
        assert file.read() == b"file" * 16
    return True
"""


def close_descriptors(client: CudaClient) -> None:
    client.run(CLOSE_ALL)
    client.run("close_all()")


def test_a_running_turn_goes_on_under_new_descriptors(
    machine: NativeHost, client: CudaClient, process: ProcessConnection, coordinator: ScriptedCoordinator
) -> None:
    process.open(1)
    assert client.run("cuda.alloc(1 << 20)[0], cuda.spin()") == [0, 0]
    entered_ns = process.last_turn.entered_ns
    close_descriptors(client)
    again = coordinator.accept()
    assert (again.hello["pid"], again.hello["client"]) == (client.pid, "one")
    assert again.last_turn[:2] == (process.turn, entered_ns) and again.phase == IN
    assert again.page.report.allocated == again.client_page.view.slots[0].allocated == 1 << 20
    again.welcome()
    assert client.run("cuda.spin()") == 0
    assert not lock_is_free(machine)
    again.open(2)
    again.wait_until_entered(2)
    again.drain(2)
    assert lock_is_free(machine)
    assert client.run_at_the_gate(again, 3) == 0
    assert client.run("are_untouched()")


def test_the_lock_is_kept_while_all_descriptors_are_closed(
    machine: NativeHost, client: CudaClient, process: ProcessConnection, coordinator: ScriptedCoordinator
) -> None:
    """The agent is stopped meanwhile, so that it cannot reopen its descriptors."""
    client.begin(process, 1)
    client.run(CLOSE_ALL)
    agent = thread_named(client.pid, "gpushare")
    with stopped_thread(agent, lambda: True):
        client.run("close_all()")
        assert not [name for name in open_files(client.pid) if name.endswith(".lock")]
        assert not lock_is_free(machine)
    again = coordinator.accept().welcome()
    again.open(2)
    again.wait_until_entered(2)
    again.drain(2)
    assert lock_is_free(machine)


def test_a_lock_file_that_cannot_be_opened_costs_no_descriptors(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    (path,) = machine.lock_folder.glob("*.lock")
    path.unlink()
    path.mkdir()
    wait_until(lambda: "reopen the lock files" in machine.log_text())
    before = len(open_files(client.pid))
    client.start("cuda.spin()")
    process.open(1)
    wait_until(lambda: process.last_turn.refused_entries > 50)
    assert len(open_files(client.pid)) <= before
    path.rmdir()
    assert client.result() == 0


def test_a_lock_file_that_is_replaced_is_opened_anew(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    client.begin(process, 1)
    (path,) = machine.lock_folder.glob("*.lock")
    path.unlink()
    wait_until(path.exists)
    wait_until(lambda: not lock_is_free(machine))
    assert process.phase == IN and client.run("cuda.spin()") == 0
    process.drain(1)
    assert lock_is_free(machine)


def test_a_waiting_thread_goes_to_the_new_connection(
    client: CudaClient, process: ProcessConnection, coordinator: ScriptedCoordinator
) -> None:
    client.run(CLOSE_ALL)
    client.run("import threading; results = []")
    client.run(
        "thread = threading.Thread(target=lambda: results.append(cuda.make_current() or cuda.spin())); thread.start()"
    )
    process.wait_for_waiting_thread()
    client.run("close_all()")
    again = coordinator.accept().welcome()
    assert again.phase == OUT
    again.wait_for_waiting_thread()
    wait_until(lambda: again.page.report.waiting == 1)
    again.open(7)
    assert client.run("thread.join(); results") is None
    assert client.run("results") == [0]
    assert again.page.report.waiting == 0
    assert client.run("are_untouched()")


def test_without_a_coordinator_turns_go_on(machine: NativeHost) -> None:
    one, two = machine.client(), machine.client()
    for client in (one, two):
        client.run("cuda = Cuda()")
        assert client.run("cuda.spin()") == 0
    close_descriptors(one)
    for _ in range(3):
        for client in (one, two):
            assert client.run("cuda.spin()") == 0
    assert "reopen descriptors" in machine.log_text()
    assert one.run("are_untouched()")


def test_a_child_that_comes_at_once_keeps_the_programs_descriptors(client: CudaClient) -> None:
    client.run(CLOSE_ALL)
    client.run("close_all(); child = os.fork() or os._exit(0 if are_untouched() else 1)")
    assert client.run("os.waitpid(child, 0)[1]") == 0


def test_without_new_descriptors_all_calls_pass(machine: NativeHost, client: CudaClient) -> None:
    client.run("import resource")
    client.run("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); os.closerange(3, 256)")
    wait_until(lambda: client.run("cuda.spin()") == 0)
    errors = client.end()
    assert errors.count("\n") == 1 and "closed the shim's descriptors" in errors
