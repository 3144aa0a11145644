"""Tests of attacks of one user on another with real uids."""

from __future__ import annotations

import shutil
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages

from ..coordinator.conftest import BusyProgram
from ..coordinator.protocol_process import UUID, wait_until
from .conftest import SOCKET, Host, busy

LOCK = f"/dev/shm/gpushare/{UUID}.lock"

# Tries the operations that follow it. The result has the class of each error.
TRY = """
import contextlib, ctypes, fcntl, os, signal, socket
result = {}
def attempt(name, function):
    try:
        result[name] = repr(function())
    except OSError as error:
        result[name] = type(error).__name__
"""


def pid_of(host: Host, client: str) -> int:
    (found,) = [one for one in host.request(messages.Status())["clients"] if one["id"] == client]
    return int(found["processes"][0]["pid"])


@pytest.fixture
def ada(host: Host) -> BusyProgram:
    return busy(host, "ada", "adas")


@pytest.fixture
def goes_on(host: Host, ada: BusyProgram) -> Iterator[None]:
    """Check that ada has turns after the attack, with the quota that she had before."""
    ada.wait_for_event("begin")
    (before,) = host.request(messages.Status())["clients"]
    yield
    bobs = busy(host, "bob", "bobs-own")
    bobs.wait_for_event("begin", after=time.monotonic())
    ada.wait_for_event("begin", after=time.monotonic())
    after = next(one for one in host.request(messages.Status())["clients"] if one["id"] == "adas")
    assert (after["quota"], after["suspended"]) == (before["quota"], before["suspended"])


@pytest.mark.usefixtures("goes_on")
def test_pages_and_memory_of_processes_are_inaccessible(host: Host) -> None:
    """The targets are the other user's program and the coordinator, which has the pages of all users."""
    for pid in (pid_of(host, "adas"), host.request(messages.Status())["coordinator"]["pid"]):
        tried = host.run("bob", TRY + """
attempt("list", lambda: os.listdir(f"/proc/{pid}/fd"))
for number in range(3, 24):
    attempt(f"open {number}", lambda: open(f"/proc/{pid}/fd/{number}", "r+b"))
attempt("memory", lambda: open(f"/proc/{pid}/mem", "r+b"))
attempt("maps", lambda: os.listdir(f"/proc/{pid}/map_files"))
def take():
    pidfd = os.pidfd_open(pid)
    taken = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, 4, 0)  # pidfd_getfd
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return taken
attempt("take", take)
attempt("signal", lambda: os.kill(pid, signal.SIGSTOP))
""", pid=pid)  # fmt: skip
        assert set(tried.values()) == {"PermissionError"}, tried


@pytest.mark.usefixtures("goes_on")
def test_leaked_token_is_useless_to_other_users(host: Host) -> None:
    """A leaked token is useless to other users."""
    reasons = host.run("bob", """
from tests.coordinator.protocol_process import RawConnection, ProtocolProcess
result = []
for message in ({"type": "attach"}, {"type": "register", "id": 1}):
    connection = RawConnection(path)
    connection.send({**message, "client": "adas", "token": "secret"})
    result.append(connection.receive()["reason"])
    connection.close()
process = ProtocolProcess(path, "adas")
connection = RawConnection(path)
connection.send(process.hello(), process.descriptors_of_hello())
result.append(connection.receive()["reason"])
""", path=SOCKET)  # fmt: skip
    assert reasons == ["forbidden"] * 3


@pytest.mark.usefixtures("goes_on")
def test_state_and_records(host: Host) -> None:
    """The files are the state store with quotas and usage, and the audit log."""
    host.request(messages.Register(client="roots", token="t"))
    host.request(messages.SetQuota(client="roots", changes={"memory": "1GiB"}))
    host.request(messages.Unregister(client="roots"))
    wait_until(lambda: len(list(host.state.iterdir())) > 1)
    for file in host.state.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    host.state.chmod(0o755)  # so that only the modes of the files protect them
    tried = host.run("bob", TRY + """
for name in os.listdir(path):
    attempt(f"read {name}", lambda: open(os.path.join(path, name), "rb"))
    attempt(f"write {name}", lambda: open(os.path.join(path, name), "ab"))
    attempt(f"remove {name}", lambda: os.unlink(os.path.join(path, name)))
attempt("make", lambda: open(os.path.join(path, "new"), "w"))
""", path=str(host.state))  # fmt: skip
    assert len(tried) >= 7 and set(tried.values()) == {"PermissionError"}, tried


@pytest.mark.usefixtures("goes_on")
def test_the_socket_and_the_lock_files_cannot_be_taken_away(host: Host) -> None:
    tried = host.run("bob", TRY + """
folder = os.path.dirname(socket_path)
attempt("bind", lambda: socket.socket(socket.AF_UNIX).bind(f"{folder}/other.sock"))
attempt("link", lambda: os.symlink("/tmp/x", f"{socket_path}.settings"))
attempt("its lock", lambda: open(f"{socket_path}.lock", "r+b"))
attempt("folder", lambda: os.chmod(os.path.dirname(lock), 0o700))
for path in (socket_path, lock):
    attempt(f"unlink {path}", lambda: os.unlink(path))
    attempt(f"rename {path}", lambda: os.rename(path, path + ".old"))
    attempt(f"mode {path}", lambda: os.chmod(path, 0o600))
""", socket_path=SOCKET, lock=LOCK)  # fmt: skip
    assert set(tried.values()) == {"PermissionError"}, tried


def test_holding_a_lock_is_no_more_than_a_turn_too_long(host: Host, ada: BusyProgram) -> None:
    """Every user may lock a device. Other clients then wait, the views show the process, and clients run on later."""
    ada.wait_for_event("begin")
    code = (
        f"import fcntl, sys\nfile = open({LOCK!r}, 'r+')\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('locked', flush=True)"
    )
    holder = host.start(sys.executable, "-c", f"{code}\nsys.stdin.read()", user="bob", stdin=subprocess.PIPE)
    other = busy(host, "ada", "adas-second")  # so that the turn ends
    assert holder.stdout and holder.stdin
    assert holder.stdout.readline() == "locked\n"
    locked = time.monotonic()
    wait_until(lambda: {one["phase"] for one in host.request(messages.Status())["clients"]} == {"waiting"})
    by_bob = [{"pid": holder.pid, "user": "bob"}]
    # While a process tries to enter, its own lock may be shown for a moment.
    wait_until(lambda: host.request(messages.Status())["devices"][0]["locked_by"] == by_bob)
    assert f"locked by pid {holder.pid}" in host.command("carol", "status").stdout
    assert f"is locked by pid {holder.pid}" in host.command("ada", "doctor").stdout
    holder.stdin.close()
    for one in (ada, other):
        one.wait_for_event("begin", after=locked)
    wait_until(lambda: not host.request(messages.Status())["devices"][0]["locked_by"])


@pytest.mark.parametrize("code", ["os.close(os.open(path, os.O_CREAT, 0o600))", "os.symlink('/etc/passwd', path)"])
def test_lock_file_of_another_user_is_not_used(bare_host: Host, code: str) -> None:
    """The file is older than the first coordinator of the host, which reports its owner and does not use it."""
    uuid_code = (
        "from jupyter_gpushare.coordinator.gpu import simulated_driver\nresult = simulated_driver.devices()[0].uuid"
    )
    uuid = bare_host.run("gpushare", uuid_code)
    bare_host.run("bob", f"import os\n{code}", path=f"/dev/shm/gpushare/{uuid}.lock")
    bare_host.coordinator("--simulate")
    (problem,) = bare_host.request(messages.Status())["coordinator"]["problems"]
    assert "cannot take turns on device" in problem and f"which uid {bare_host.uid('bob')} created" in problem


@pytest.mark.usefixtures("goes_on")
def test_as_many_clients_connections_and_processes_as_can_be_had(host: Host) -> None:
    """Each user has a bound, and the other users are not affected."""
    counts = host.run("bob", """
import contextlib
from tests.coordinator.protocol_process import RawConnection, ProtocolProcess
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, CoordinatorError
result = {"clients": 0, "processes": 0, "connections": 0, "errors": []}
processes = []
with Client(path) as client:
    for number in range(12):
        process = ProtocolProcess(path, "bobs")
        connection = RawConnection(path)
        connection.send(process.hello(), process.descriptors_of_hello())
        answer = connection.receive()
        processes.append((process, connection))
        if answer["type"] == "error":
            result["errors"].append([answer["reason"], answer["message"]])
            break
        result["processes"] += 1
    for number in range(40):
        try:
            client.request(messages.Register(client=f"bobs-{number}", token="t"))
        except CoordinatorError as error:
            result["errors"].append([error.reason, str(error)])
            break
        result["clients"] += 1
    others = []
    for _ in range(200):
        connection = RawConnection(path)
        with contextlib.suppress(BrokenPipeError):  # the coordinator may have closed it already
            connection.send({"type": "status", "id": 1})
        answer = connection.receive()
        others.append(connection)
        if answer["type"] == "error":
            result["errors"].append([answer["reason"], answer["message"]])
            break
        result["connections"] += 1
    for number in range(result["clients"]):
        client.request(messages.Unregister(client=f"bobs-{number}"))
""", path=SOCKET)  # fmt: skip
    assert (counts["processes"], counts["clients"], counts["connections"]) == (10, 19, 64 - 11)
    assert [reason for reason, _ in counts["errors"]] == ["too_many"] * 3
    assert "10 processes" in counts["errors"][0][1] and "20 clients" in counts["errors"][1][1]
    assert "64 connections already" in counts["errors"][2][1]


FLOOD = """
import os, select, socket, sys
connections = {}
for _ in range(NUMBER):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.setblocking(False)
    connections[connection] = b""
while connections:  # it reads the answers, because the coordinator would soon close the connection otherwise
    readable, writable, _ = select.select(connections, connections, [])
    for connection in readable:
        if not connection.recv(1 << 20):
            sys.exit("the coordinator has closed the connection")
    for connection in writable:
        text = connections[connection] or message * 1000
        connections[connection] = text[connection.send(text):]
        os.write(1, b".")
"""


@pytest.mark.usefixtures("goes_on")
@pytest.mark.parametrize("connections", [1, 30])
def test_flood_of_one_user_delays_no_other_user(host: Host, connections: int) -> None:
    """While one user exceeds the limit of messages, on one connection or on many, other users get answers at once."""
    host.request(messages.Config(changes={"max_clients": 200}))
    for number in range(150):  # so that each answer takes long
        host.request(messages.Register(client=f"client-{number}", token="t"))
    status = b'{"type":"status","id":1}\n'
    code = f"path, message = {SOCKET!r}, {status!r}\n{FLOOD}"
    code = code.replace("NUMBER", str(connections))
    flood = host.start(sys.executable, "-c", code, user="bob", stdout=subprocess.PIPE)
    assert flood.stdout and len(flood.stdout.read(connections)) == connections
    waits = []
    for _ in range(20):
        asked = time.monotonic()
        host.request(messages.Status())
        waits.append(time.monotonic() - asked)
    assert flood.poll() is None, "the coordinator has closed its connections"
    flood.kill()
    assert statistics.median(waits) < 1.0, "each answer of the flood takes longer than that to be sent"


@pytest.mark.usefixtures("goes_on")
def test_log_size_is_bounded_under_attack(host: Host) -> None:
    host.run("bob", """
from tests.coordinator.protocol_process import RawConnection
for number in range(1000):
    for line in (
        {"type": "cell", "state": "end", "request": "1"},
        {"type": "hello", "client": "x", "token": "y", "pid": 1},
    ):
        connection = RawConnection(path)
        connection.send(line)
        connection.receive()
        connection.close()
""", path=SOCKET)  # fmt: skip
    log = host.log.read_text()
    assert 0 < log.count(f"user {host.uid('bob')}") <= 300 and "similar records are suppressed" in log


def test_runtime_folder_of_another_user_is_not_used(bare_host: Host) -> None:
    """Another user may have created the folder in /tmp first, so it is used only if the user owns it."""
    folder = Path(f"/tmp/gpushare-{bare_host.uid('ada')}")
    home = bare_host.machine.users["bob"].home
    home.chmod(0o755)
    for trap in (
        f"os.mkdir({str(folder)!r}, 0o755)",
        f"os.symlink({str(home)!r}, {str(folder)!r})",
        f"os.mkdir({str(folder)!r}); os.chmod({str(folder)!r}, 0o777)",
    ):
        bare_host.run("bob", f"import os\n{trap}")
        try:
            done = bare_host.command("ada", "coordinator", "--exit-after", "1")
        finally:
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
        assert done.returncode == 2
        assert f"{folder} must be a directory that belongs to uid {bare_host.uid('ada')}" in done.stderr
        assert not list(home.glob("coordinator.sock*"))
