"""Fixtures with a machine of real users: ada, bob and carol, a host coordinator, and programs of the users."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import address
from jupyter_gpushare.wire.client import Client

from ..coordinator.conftest import BusyProgram
from ..coordinator.protocol_process import DEADLINE_SECONDS, UUID, wait_until
from ..hub import machine as machines

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "/run/gpushare/coordinator.sock"
COORDINATOR = (sys.executable, "-m", "jupyter_gpushare", "coordinator", "--system")
# Sends the requests of its argument (JSON), and prints the reason of each refusal or "", and last the viewer.
ASK = """
import json, sys
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, CoordinatorError
result = []
with Client(timeout=60) as client:
    for kind, fields in json.loads(sys.argv[1]):
        try:
            client.request(getattr(messages, kind)(**fields))
            result.append("")
        except CoordinatorError as error:
            result.append(error.reason)
    result.append(client.request(messages.Status())["viewer"])
print(json.dumps(result))
"""
MAX_CLIENTS = 20
# Settings of the machine's admin for all users, beside the shipped defaults.
ADMIN = f"""
c.GpuShare.tenants = {{"students": {{"users": ["ada", "bob"], "limit": 0.9, "memory": "4GiB"}}}}
c.GpuShare.admins = ["carol"]
c.GpuShare.max_connections = 64
c.GpuShare.max_clients = {MAX_CLIENTS}
c.GpuShare.max_processes = 10
"""


class Host:
    """Machine with the programs that tests run on it."""

    def __init__(self, folder: Path, machine: machines.MountNamespaceMachine) -> None:
        self.folder = folder
        self.machine = machine
        self.socket = str(machine.path(SOCKET))
        self.state = folder / "state"
        self.log = folder / "log"
        self.config = folder / "etc" / "jupyter_gpushare_config.py"
        self.running: subprocess.Popen[str] | None = None  # the last coordinator
        self._programs: list[subprocess.Popen[str]] = []

    def uid(self, user: str) -> int:
        return self.machine.users[user].uid

    def environment(self, user: str = "") -> dict[str, str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "XDG_", "JUPYTER"))
        }
        home = str(self.machine.users[user].home) if user else "/root"
        return {**clean, "PYTHONPATH": str(ROOT), "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *command: str, user: str = "", **options: Any) -> subprocess.Popen[str]:
        """Start a program as root or as `user`."""
        program = subprocess.Popen(
            self.machine.argv(*command, user=user),
            cwd="/",
            text=True,
            **{"env": self.environment(user), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
        )
        self._programs.append(program)
        return program

    def service(self) -> dict[str, str]:
        """Return the environment of the coordinator."""
        ours = {"GPUSHARE_SYSTEM_CONFIG_PATH": str(self.config.parent), "STATE_DIRECTORY": str(self.state)}
        return self.environment("gpushare") | ours

    def coordinator(self, *options: str, settings: str = "", **more: Any) -> subprocess.Popen[str]:
        """Start the coordinator of the whole host with `settings` after the usual ones, and wait for its socket."""
        self.config.write_text(ADMIN + settings)
        environment = self.service() | more.pop("environment", {})
        with self.log.open("a") as log:
            program = self.start(
                *COORDINATOR, *options, user="gpushare", env=environment, stdout=log, stderr=log, **more
            )
        wait_until(lambda: address.is_accepting(self.socket) or program.poll() is not None)
        assert program.poll() is None, self.log.read_text()
        self.running = program
        return program

    def stop_coordinator(self) -> None:
        assert self.running
        self.running.terminate()
        self.running.wait(DEADLINE_SECONDS)

    def run(self, user: str, code: str, timeout: float = 60, **values: Any) -> Any:
        """Run Python code as a user with the values as globals, and return the code's variable `result`."""
        head = f"import json, sys\nglobals().update(json.loads({json.dumps(values)!r}))\nresult = None\n"
        done = self.start(sys.executable, "-c", f"{head}{code}\nprint('\\n' + json.dumps(result))", user=user)
        output, _ = done.communicate(timeout=timeout)
        assert done.returncode == 0, output
        return json.loads(output.splitlines()[-1])

    def ask(self, user: str, *requests: list[Any]) -> list[Any]:
        """Send requests as a user, and return the reason of each refusal, or "" for an accepted request."""
        output, _ = self.start(sys.executable, "-c", ASK, json.dumps(requests), user=user).communicate(timeout=60)
        return list(json.loads(output)[:-1])

    def command(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `jupyter gpushare …` as a user."""
        return subprocess.run(
            self.machine.argv(sys.executable, "-m", "jupyter_gpushare", *arguments, user=user),
            capture_output=True, text=True, timeout=60, cwd="/", env=self.environment(user), check=False,
        )  # fmt: skip

    def request(self, message: Any) -> Any:
        """Send a request as root, and return its result."""
        with Client(self.socket, DEADLINE_SECONDS) as client:
            return client.request(message)

    def clean_up(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.kill()
            program.wait(DEADLINE_SECONDS)
            if program.stdout:
                program.stdout.close()


def busy(host: Host, user: str, client: str, path: str = SOCKET) -> BusyProgram:
    """Start a process of a user's client, which always waits for the device or uses it."""
    made = BusyProgram(
        host.start(sys.executable, "-m", "tests.coordinator.protocol_process", path, client, UUID, user=user)
    )
    made.wait_for_event("ready")
    return made


@contextlib.contextmanager
def new_host() -> Iterator[Host]:
    """Yield a host without a coordinator, but with the folders that systemd and its tmpfiles.d make."""
    with machines.made("ada", "bob", "carol", "gpushare") as (folder, machine):
        host = Host(folder, machine)
        host.config.parent.mkdir(mode=0o755)
        run, locks = machine.path("/run/gpushare"), machine.path("/dev/shm/gpushare")
        for path, mode in ((run, 0o755), (locks, 0o1777), (host.state, 0o700)):
            path.mkdir()
            path.chmod(mode)
        for path in (run, host.state):
            os.chown(path, host.uid("gpushare"), host.uid("gpushare"))
        yield host
        host.clean_up()
        log = host.log.read_text() if host.log.exists() else ""
        assert "Traceback" not in log and "bug:" not in log, log


@pytest.fixture
def bare_host() -> Iterator[Host]:
    """Yield a host as `new_host` does."""
    if problem := machines.problem():
        pytest.skip(problem)
    with new_host() as host:
        yield host


@pytest.fixture
def host(bare_host: Host) -> Host:
    """Return a host with the coordinator, which runs as a user without any rights."""
    bare_host.coordinator()
    return bare_host
