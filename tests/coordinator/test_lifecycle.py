"""Tests of the start and end of a coordinator: its socket, its lock, its background process, and its subscribers."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client, Unreachable, ensure_coordinator

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import DEADLINE_SECONDS, RawConnection, wait_until
from .test_prefetch import wait_for_two_heartbeats
from .test_status_and_config_commands import Run

EXIT_AFTER = 3.0  # seconds; longer than a busy machine needs for the first connection


@pytest.fixture
def idle_coordinator(idle_coordinator: CoordinatorProcess) -> CoordinatorProcess:
    """Provide a coordinator that is not started yet, and that starts by its command line."""
    idle_coordinator.by_command_line = True
    return idle_coordinator


def run(coordinator: CoordinatorProcess, *options: str, exit_after: float = 0) -> subprocess.CompletedProcess[str]:
    argv = coordinator.argv(*options, exit_after=exit_after)
    return subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def pid_of(coordinator: CoordinatorProcess) -> int:
    return int(coordinator.status()["coordinator"]["pid"])


def subscribe(processes: ProcessFactory) -> RawConnection:
    """Return a subscription, which keeps the coordinator running from the first moment on."""
    subscriber = processes.connection()
    subscriber.send({"type": "subscribe", "id": 1})
    subscriber.receive()
    return subscriber


def test_coordinator_exits_some_time_after_its_last_client(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    idle_coordinator.start(exit_after=EXIT_AFTER)
    subscriber = subscribe(processes)
    idle_coordinator.request(messages.Register(client="a", token="t"))
    process = processes("a", token="t")
    subscriber.close()
    closed_at = time.monotonic()
    wait_until(lambda: process.control.heartbeat_ns / 1e9 > closed_at + EXIT_AFTER + 0.2)
    assert idle_coordinator.status(), "the coordinator ended while it had a client"
    idle_coordinator.request(messages.Unregister(client="a"))
    process.close()
    assert idle_coordinator.wait() == 0
    assert not os.path.exists(idle_coordinator.path)


def test_subscriber_keeps_the_coordinator_running(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    idle_coordinator.start(exit_after=EXIT_AFTER)
    subscriber = subscribe(processes)
    deadline = time.monotonic() + EXIT_AFTER + 1.2
    wait_until(lambda: time.monotonic() > deadline)
    assert idle_coordinator.status()
    subscriber.close()
    assert idle_coordinator.wait() == 0


def test_signals_and_stop_end_the_coordinator_and_remove_the_socket(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        assert idle_coordinator.start().stop(number) == 0
        assert not os.path.exists(idle_coordinator.path)
    idle_coordinator.start()
    process = processes("a")
    process.run_turn()
    phase = process.phase
    assert idle_coordinator.request(messages.Stop()) == {}
    assert idle_coordinator.wait() == 0
    assert process.phase == phase, "the client did not run on"


def test_second_coordinator_at_a_socket_is_refused(coordinator: CoordinatorProcess) -> None:
    second = run(coordinator)
    assert second.returncode == 2
    assert f"another coordinator runs at {coordinator.path}" in second.stderr
    assert pid_of(coordinator) == coordinator.pid


def test_a_stale_socket_is_replaced(coordinator: CoordinatorProcess) -> None:
    coordinator.stop(signal.SIGKILL)
    assert os.path.exists(coordinator.path)
    with pytest.raises(Unreachable):
        Client(coordinator.path)
    assert coordinator.start().status()


def test_file_that_is_no_socket_is_not_removed(idle_coordinator: CoordinatorProcess) -> None:
    Path(idle_coordinator.path).write_text("my thesis")
    for options in ((), ("--detach",)):
        refused = run(idle_coordinator, *options)
        assert refused.returncode == 2
        assert "exists and is not a socket" in refused.stderr
    assert Path(idle_coordinator.path).read_text() == "my thesis"


def test_link_at_the_lock_path_is_refused(idle_coordinator: CoordinatorProcess, folder: Path) -> None:
    (folder / "thesis").write_text("my thesis")
    Path(idle_coordinator.path + ".lock").symlink_to(folder / "thesis")
    refused = run(idle_coordinator)
    assert refused.returncode == 2
    assert "c.sock.lock" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (folder / "thesis").read_text() == "my thesis"


def test_only_this_user_may_use_the_socket(coordinator: CoordinatorProcess) -> None:
    assert os.stat(coordinator.path).st_mode & 0o777 == 0o600


NONSENSE = [
    ("--time-quantum=-1", "time_quantum=-1 is out of range: allowed are 0.001 to 86400 seconds"),
    ("--socket=relative/path", "is not an absolute path"),
    ("--quantom=1", "unknown options: --quantom"),
    ("--GpuShare.default_quota={'share': 3}", "share=3 is out of range"),
    ("--socket=/tmp/" + "x" * 200, "exceeds 107 bytes"),
    ("--socket=/proc/nowhere/c.sock", "/proc/nowhere"),
    ("--GpuShare.quantom=1", "unknown options: --GpuShare.quantom"),
    ("start", "unknown options: start"),
]


@pytest.mark.parametrize(
    "options",
    [(option,) for option, _ in NONSENSE] + [("--detach", option) for option, _ in NONSENSE[:1]],
    ids=lambda options: " ".join(options)[:40],
)
def test_invalid_option_is_refused_with_a_clear_message(own_host: Path, command: Run, options: tuple[str, ...]) -> None:
    refused = command("coordinator", *options)
    assert refused.returncode != 0
    assert dict(NONSENSE)[options[-1]] in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("c.GpuShare.policy = fcfs", "NameError: name 'fcfs' is not defined; no setting of this file is in force"),
        ("c.GpuShare.sockets = {", "SyntaxError: '{' was never closed; no setting of this file is in force"),
        ("c.GpuShare.time_quantm = 5", "unknown setting c.GpuShare.time_quantm; did you mean c.GpuShare.time_quantum?"),
        ("c.GpuShare.tuning = True", "unknown setting c.GpuShare.tuning"),
        ("c.GpuShar.time_quantum = 5", "unknown setting c.GpuShar; did you mean c.GpuShare?"),
    ],
    ids=["name", "syntax", "setting", "unlike", "section"],
)
def test_a_fault_in_the_configuration_is_a_problem_of_the_coordinator(
    own_host: Path, folder: Path, command: Run, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    file, path = folder / "jupyter_gpushare_config.py", str(folder / "c.sock")
    file.write_text(f"c.ServerApp.port = 8888\n{line}\n")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(folder))
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach", "--simulate"]
    ensure_coordinator(path, [*argv, f"--CoordinatorApp.state_directory={folder}"], DEADLINE_SECONDS)
    expected = f"{file}, line 2: {problem}"
    with Client(path, DEADLINE_SECONDS) as client:
        assert client.request(messages.Status())["coordinator"]["problems"] == [expected]
        assert expected in (folder / "coordinator.log").read_text()
        assert f"warning: {expected}" in command("status", "--socket", path).stdout
        client.request(messages.Stop())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("policy", "lifo", "c.GpuShare.policy='lifo' is unknown"),
        ("devices", {"0": {"policy": "lifo"}}, "policy='lifo' is unknown"),
        ("devices", {"0": {"colour": 1}}, "'colour' is unknown"),
        ("devices", {"0": None}, "is no table"),
        ("default_quota", {"share": 3}, "c.GpuShare.default_quota: share=3 is out of range"),
        ("tenants", {"a": 3}, "tenant 'a': 3 is not a dictionary"),
        ("topology", "/nowhere.json", "topology /nowhere.json: No such file"),
    ],
    ids=str,
)
def test_a_wrong_value_in_a_file_leaves_the_host_its_coordinator(
    own_host: Path, folder: Path, command: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, words: str
) -> None:
    file, path = folder / "jupyter_gpushare_config.py", str(folder / "c.sock")
    file.write_text(f"c.GpuShare.time_quantum = 7.0\nc.GpuShare.{name} = {value!r}\n")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(folder))
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach", "--simulate", "--GpuShare.max_hold=9"]
    ensure_coordinator(path, [*argv, f"--CoordinatorApp.state_directory={folder}"], DEADLINE_SECONDS)
    with Client(path, DEADLINE_SECONDS) as client:
        status = client.request(messages.Status())
        (problem,) = status["coordinator"]["problems"]
        assert problem.startswith(f"{file}, line 2: ") and words in problem
        assert problem.endswith("; no setting of c.GpuShare in the files is in force")
        assert problem in (folder / "coordinator.log").read_text()
        assert (status["config"]["time_quantum"], status["config"]["max_hold"]) == ("auto", 9)
        assert command("config", "time_quantum", "5", "--socket", path).returncode == 0
        client.request(messages.Stop())
    refused = command("coordinator", "--socket", path, "--policy=fifo")
    assert refused.returncode == 2 and "policy='fifo' is unknown" in refused.stderr


def test_a_bad_value_for_the_simulated_driver_is_a_problem_of_the_coordinator(
    idle_coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SIM_MEMORY", "8")
    idle_coordinator.start("--simulate")
    (problem,) = idle_coordinator.status()["coordinator"]["problems"]
    assert problem.endswith("GPUSHARE_SIM_MEMORY=8: a size of at least 4 MiB is needed")


def test_help_lists_all_settings(command: Run) -> None:
    received = command("coordinator", "--help-all").stdout
    for name in ("time_quantum", "policy", "idle_release", "cell_linger", "default_quota", "device_memory", "simulate"):
        assert f"GpuShare.{name}" in received
    assert "must be" not in received


class TestDetached:
    @pytest.fixture(autouse=True)
    def ended(self, idle_coordinator: CoordinatorProcess) -> Iterator[None]:
        yield
        with contextlib.suppress(Unreachable):
            idle_coordinator.request(messages.Stop())

    def test_detach_returns_when_the_coordinator_accepts(
        self, idle_coordinator: CoordinatorProcess, own_host: Path
    ) -> None:
        started = run(idle_coordinator, "--detach")
        assert (started.returncode, started.stdout, started.stderr) == (0, "", "")
        pid = pid_of(idle_coordinator)
        assert os.getsid(pid) != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert f"serving at {idle_coordinator.path}" in (address.state_directory() / "coordinator.log").read_text()

    def test_detach_returns_if_another_coordinator_accepts(self, coordinator: CoordinatorProcess) -> None:
        assert run(coordinator, "--detach").returncode == 0
        assert pid_of(coordinator) == coordinator.pid

    def test_simultaneous_starts_give_one_coordinator(self, idle_coordinator: CoordinatorProcess) -> None:
        argv = idle_coordinator.argv("--detach")
        started = [subprocess.Popen(argv, stderr=subprocess.PIPE) for _ in range(4)]
        outcomes = [(process.communicate(timeout=DEADLINE_SECONDS)[1], process.returncode) for process in started]
        assert outcomes == [(b"", 0)] * 4
        pid = pid_of(idle_coordinator)
        assert all(pid_of(idle_coordinator) == pid for _ in range(5))

    def test_clients_start_a_coordinator(self, idle_coordinator: CoordinatorProcess) -> None:
        argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach"]
        assert ensure_coordinator(idle_coordinator.path, argv, DEADLINE_SECONDS) == idle_coordinator.path
        pid = pid_of(idle_coordinator)
        ensure_coordinator(idle_coordinator.path, argv)
        assert pid_of(idle_coordinator) == pid


class TestSubscribers:
    def snapshots(self, connection: RawConnection) -> list[dict[str, Any]]:
        """Return the snapshots that have arrived, also those of replies."""
        found = []
        connection.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while message := connection.receive():
                found.append(message.get("status") or message["result"])
        return found

    def test_idle_coordinator_sends_no_snapshots(
        self, coordinator: CoordinatorProcess, processes: ProcessFactory
    ) -> None:
        """A Jupyter server forwards snapshots, and an idle server must look idle."""
        process = processes("a")
        subscriber = subscribe(processes)
        wait_for_two_heartbeats(process)
        self.snapshots(subscriber)
        wait_for_two_heartbeats(process)
        assert self.snapshots(subscriber) == []

    def test_slow_subscriber_gets_the_newest_snapshot(
        self, coordinator: CoordinatorProcess, processes: ProcessFactory
    ) -> None:
        subscriber = processes.connection()
        subscriber.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for number in range(60):
            coordinator.request(messages.Register(client=f"padding{number}", token="t", label="x" * 1000))
        for number in range(12):  # more than a socket's buffer has room for
            subscriber.send({"type": "subscribe", "id": number})
        other = subscribe(processes)
        coordinator.request(messages.Register(client="last", token="t"))
        for connection in (other, subscriber):
            wait_until(lambda: self.newest_client(connection) == "last")  # noqa: B023

    def newest_client(self, connection: RawConnection) -> str:
        """Return the last client of the newest snapshot that has arrived since the last call, or "" without one."""
        received = self.snapshots(connection)
        return str(received[-1]["clients"][-1]["id"]) if received else ""


def test_descriptor_shortage_keeps_the_coordinator_reachable(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: popen(*args, preexec_fn=limit_descriptors, **options)
    )
    idle_coordinator.start()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    first = processes("a")
    for _ in range(60):
        processes.connection()
    wait_until(lambda: "no descriptors are left" in idle_coordinator.log.read_text())
    assert idle_coordinator.client("a"), "later connections are not accepted"
    first.run_turn()  # connections of processes are not dropped
    assert idle_coordinator.log.read_text().count("no descriptors are left") == 1, "a flood fills the log"
