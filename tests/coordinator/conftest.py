"""Fixtures with real coordinators in processes of their own, and fake processes that connect to them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.page import IN, OUT

from ..hostile.in_process_coordinator import InProcessCoordinator
from ..hostile.virtual_loop import VirtualLoop
from ..support import zygote
from ..system.resource_counts import descriptors_of
from .protocol_process import DEADLINE_SECONDS, ProtocolProcess, RawConnection, wait_until

QUANTUM = 0.2
LONG_QUANTUM = 200.0  # seconds; outlasts every test
OTHER_UID = 65534

Connect = Callable[[], RawConnection]


class CoordinatorProcess:
    """Coordinator at one socket, one process at a time. At the end, its log must have no bug."""

    by_command_line = False  # False: forked from the zygote

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "c.sock")
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | zygote.Forked | None = None

    def start(
        self, *options: str, quantum: float = QUANTUM, sharing: str = "exclusive", exit_after: float = 0
    ) -> CoordinatorProcess:
        """Start a coordinator whose turns are first come, first served, so that the order of turns is fixed."""
        argv = self.argv(*options, quantum=quantum, sharing=sharing, exit_after=exit_after)
        with self.log.open("ab") as log:
            if self.by_command_line:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            else:
                self._process = zygote.start_coordinator(argv[4:], output=log, errors=log)
        wait_until(lambda: address.is_accepting(self.path) or self._process.poll() is not None, act=False)
        assert self._process.poll() is None, self.log.read_text()
        return self

    def argv(
        self, *options: str, quantum: float = QUANTUM, sharing: str = "exclusive", exit_after: float = 0
    ) -> list[str]:
        own = ["--socket", self.path, "--exit-after", str(exit_after), "--time-quantum", str(quantum)]
        turns = ["--policy", "fcfs", "--sharing", sharing, "--idle-release", "0.25"]
        return [sys.executable, "-m", "jupyter_gpushare", "coordinator", *own, *turns, *options]

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def request(self, message: Any) -> Any:
        with Client(self.path, DEADLINE_SECONDS) as client:
            return client.request(message)

    def status(self) -> dict[str, Any]:
        found = self.request(messages.Status())
        assert isinstance(found, dict)
        return found

    def client(self, name: str) -> dict[str, Any] | None:
        return next((client for client in self.status()["clients"] if client["id"] == name), None)

    def end_turn(self, process: ProtocolProcess) -> None:
        wait_until(lambda: process.client in self.grants())  # the report of the turn comes a moment after its start
        self.request(messages.Release(client=process.client))
        process.end_turn()

    def grants(self) -> list[str]:
        """Return the clients that have a turn."""
        return [grant["client"] for device in self.status()["devices"] for grant in device["grants"]]

    def descriptors(self) -> int:
        return descriptors_of(self.pid).total()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the process a signal, wait for its end and return its exit status."""
        assert self._process
        self._process.send_signal(number)
        return self._process.wait(DEADLINE_SECONDS)

    def wait(self) -> int:
        assert self._process
        return self._process.wait(DEADLINE_SECONDS)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def clean_up(self) -> None:
        if self._process and self._process.poll() is None:
            self.stop(signal.SIGKILL)
        log = self.log.read_text() if self.log.exists() else ""
        assert "Traceback" not in log and "bug:" not in log, log


def ask(connection: RawConnection, kind: str, **fields: Any) -> Any:
    connection.send({"type": kind, "id": 7, **fields})
    answer = connection.receive()
    assert answer
    return answer.get("result", answer.get("reason"))


class Kernel(RawConnection):
    """Connection of a kernel, which reports the starts and ends of cells."""

    def __init__(self, path: str, client: str, token: str = "secret") -> None:
        super().__init__(path)
        self.send({"type": "attach", "client": client, "token": token})
        assert self.receive() == {"type": "welcome"}

    def cell(self, state: str, request: str, **more: str) -> None:
        self.send({"type": "cell", "state": state, "request": request, **more})


class ProcessFactory:
    """Factory of fake processes and kernels, which end with the test."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._made: list[ProtocolProcess] = []
        self._connections: list[RawConnection] = []

    def __call__(self, client: str, *devices: str, connect: bool = True, **options: Any) -> ProtocolProcess:
        process = ProtocolProcess(self.path, client, *devices, **options)
        self._made.append(process)
        if connect:
            process.send_hello()
        return process

    def connection(self) -> RawConnection:
        self._connections.append(RawConnection(self.path))
        return self._connections[-1]

    def kernel(self, client: str, token: str = "secret") -> Kernel:
        kernel = Kernel(self.path, client, token)
        self._connections.append(kernel)
        return kernel

    def disconnect(self) -> None:
        """Close all connections except those of processes."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def clean_up(self) -> None:
        self.disconnect()
        for process in self._made:
            with contextlib.suppress(OSError, AttributeError):
                process.close()


class BusyProgram:
    """Program whose events a thread reads, because a program whose pipe is full would stop in its turn."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.events: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._program.stdout
        for line in self._program.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_for_event(self, event: str, after: float = 0.0) -> float:
        """Wait for the next event of a kind after the time `after`, and return its time."""
        while line := self._lines.get():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event and self.events[-1]["at"] > after:
                return float(self.events[-1]["at"])
        raise AssertionError(f"the program ended with status {self._program.wait()}; events: {self.events}")

    def kill(self) -> float:
        """Kill the program and return the time."""
        killed_at = time.monotonic()
        self._program.kill()
        self._program.wait(DEADLINE_SECONDS)
        return killed_at


@pytest.fixture(scope="module")
def module_folder(own_host: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="c-", dir=own_host))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(own_host: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="c-", dir=own_host))


@pytest.fixture
def idle_coordinator(folder: Path) -> Iterator[CoordinatorProcess]:
    """Provide a coordinator that is not started yet."""
    coordinator = CoordinatorProcess(folder)
    yield coordinator
    coordinator.clean_up()


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessCoordinator]:
    """Provide a coordinator in virtual time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = InProcessCoordinator(VirtualLoop(), tmp_path)
    yield made
    made.close()


@pytest.fixture
def coordinator(idle_coordinator: CoordinatorProcess) -> CoordinatorProcess:
    return idle_coordinator.start()


@pytest.fixture
def long_quantum_coordinator(idle_coordinator: CoordinatorProcess) -> CoordinatorProcess:
    """Provide a coordinator whose quantum outlasts every test."""
    return idle_coordinator.start(quantum=LONG_QUANTUM)


@pytest.fixture
def pair(
    long_quantum_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> tuple[ProtocolProcess, ProtocolProcess]:
    """Provide two processes, of which the first is in a turn and the second waits."""
    for name in ("a", "b"):
        long_quantum_coordinator.request(messages.Register(client=name, token="secret", label=f"{name}.ipynb"))
    a, b = processes("a"), processes("b")
    a.run_turn()
    b.start_waiting()
    wait_until(lambda: a.permit.deadline_ns)
    return a, b


@pytest.fixture(scope="module")
def shared_coordinator(module_folder: Path) -> Iterator[CoordinatorProcess]:
    """Provide one coordinator for all tests of a module, with a long quantum. Each test must leave it working."""
    coordinator = CoordinatorProcess(module_folder).start(quantum=LONG_QUANTUM)
    yield coordinator
    coordinator.clean_up()


@pytest.fixture
def processes(folder: Path) -> Iterator[ProcessFactory]:
    made = ProcessFactory(str(folder / "c.sock"))
    yield made
    made.clean_up()


@pytest.fixture
def guest_processes(shared_coordinator: CoordinatorProcess) -> Iterator[ProcessFactory]:
    """Provide processes of the shared coordinator, whose clients are removed after the test."""
    made = ProcessFactory(shared_coordinator.path)
    yield made
    made.clean_up()
    for client in shared_coordinator.status()["clients"]:
        shared_coordinator.request(messages.Unregister(client=client["id"]))
    # Long, because after a flood the coordinator reads all messages first.
    wait_until(lambda: shared_coordinator.status()["clients"] == [])


@pytest.fixture
def unaffected_bystander(shared_coordinator: CoordinatorProcess, guest_processes: ProcessFactory) -> Iterator[None]:
    """Start a client in a turn and a waiting client, and check after the test that they still take turns."""
    runs, waits = guest_processes("runs", "GPU-others"), guest_processes("waits", "GPU-others")
    runs.run_turn()
    waits.start_waiting()
    wait_until(lambda: runs.contended)
    yield
    assert (runs.phase, waits.phase) == (IN, OUT)
    shared_coordinator.request(messages.Release(client="runs"))
    wait_until(lambda: runs.phase != IN)
    runs.drain()
    waits.wait_phase(IN)


@pytest.fixture
def as_other_user(idle_coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Provide connections of another user to the started coordinator; that needs root."""
    if os.getuid() != 0:
        pytest.skip("needs root for a second user")
    path = Path(idle_coordinator.path)
    made = []

    def connect() -> RawConnection:
        path.parent.chmod(0o711)
        path.chmod(0o666)
        monkeypatch.chdir(path.parent)  # because the other user may not enter the folders above
        os.seteuid(OTHER_UID)
        try:
            made.append(RawConnection(path.name))
        finally:
            os.seteuid(0)
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


@pytest.fixture
def command(own_host: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Provide a function that runs `jupyter gpushare …` by its command line."""

    def run(*words: str, timeout: float = DEADLINE_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare", *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "COLUMNS": "200"},
        )

    return run
