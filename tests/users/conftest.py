"""A machine with real users: ada and bob, a coordinator of the whole host, and programs that run as one of them."""

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

from ..coordinator.protocol_process import wait_until
from ..hub import machine as machines

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "/run/gpushare/coordinator.sock"
COORDINATOR = (sys.executable, "-m", "jupyter_gpushare", "coordinator", "--system")
# Requests, given as JSON: what each is refused with, "" if it is not; and last, what one is there.
ASK = """
import json, sys
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, CoordinatorError
result = []
with Client() as client:
    for kind, fields in json.loads(sys.argv[1]):
        try:
            client.request(getattr(messages, kind)(**fields))
            result.append("")
        except CoordinatorError as error:
            result.append(error.reason)
    result.append(client.request(messages.Status())["viewer"])
print(json.dumps(result))
"""
# What the machine's admin decides for everybody.
ADMIN = """
c.GpuShare.policy = "fcfs"
c.GpuShare.sharing = "exclusive"
c.GpuShare.time_quantum = 0.2
c.GpuShare.tenants = {"students": {"users": ["ada", "bob"], "limit": 0.9, "memory": "4GiB"}}
c.GpuShare.admins = ["carol"]
c.GpuShare.max_connections = 64
c.GpuShare.max_clients = 20
c.GpuShare.max_processes = 10
"""


class Host:
    """The machine, with what tests do on it."""

    def __init__(self, folder: Path, machine: machines.UserNamespaceMachine) -> None:
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

    def start(self, *words: str, user: str = "", **options: Any) -> subprocess.Popen[str]:
        """A program, as root or as `user`."""
        program = subprocess.Popen(
            self.machine.argv(*words, user=user),
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
        """Of the whole host, with `settings` beside the usual ones; returns when it answers."""
        self.config.write_text(ADMIN + settings)
        environment = self.service() | more.pop("environment", {})
        with self.log.open("a") as log:
            program = self.start(
                *COORDINATOR, *options, user="gpushare", env=environment, stdout=log, stderr=log, **more
            )
        wait_until(lambda: address.is_accepting(self.socket) or program.poll() is not None, 20)
        assert program.poll() is None, self.log.read_text()
        self.running = program
        return program

    def stop_coordinator(self) -> None:
        assert self.running
        self.running.terminate()
        self.running.wait(20)

    def run(self, user: str, code: str, timeout: float = 60, **values: Any) -> Any:
        """Python, as that user, with the values as globals; what it assigns to `result` comes back."""
        head = f"import json, sys\nglobals().update(json.loads({json.dumps(values)!r}))\nresult = None\n"
        done = self.start(sys.executable, "-c", f"{head}{code}\nprint('\\n' + json.dumps(result))", user=user)
        said, _ = done.communicate(timeout=timeout)
        assert done.returncode == 0, said
        return json.loads(said.splitlines()[-1])

    def ask(self, user: str, *requests: list[Any]) -> list[Any]:
        """Return what that user's requests are refused with, in their order; "" where one is not."""
        said, _ = self.start(sys.executable, "-c", ASK, json.dumps(requests), user=user).communicate(timeout=60)
        return list(json.loads(said)[:-1])

    def command(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """`jupyter gpushare …`."""
        return subprocess.run(
            self.machine.argv(sys.executable, "-m", "jupyter_gpushare", *words, user=user),
            capture_output=True, text=True, timeout=60, cwd="/", env=self.environment(user), check=False,
        )  # fmt: skip

    def request(self, message: Any) -> Any:
        """As root."""
        with Client(self.socket) as client:
            return client.request(message)

    def clean_up(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.kill()
            program.wait(10)
            if program.stdout:
                program.stdout.close()


@contextlib.contextmanager
def new_host() -> Iterator[Host]:
    """Without a coordinator; what systemd and its tmpfiles.d make is there."""
    with machines.made("ada", "bob", "carol", "gpushare") as (folder, machine):
        host = Host(folder, machine)
        host.config.parent.mkdir(mode=0o755)
        run, locks = machine.path("/run/gpushare"), machine.path("/dev/shm/gpushare")
        for place, mode in ((run, 0o755), (locks, 0o1777), (host.state, 0o700)):
            place.mkdir()
            place.chmod(mode)
        for place in (run, host.state):
            os.chown(place, host.uid("gpushare"), host.uid("gpushare"))
        yield host
        host.clean_up()
        said = host.log.read_text() if host.log.exists() else ""
        assert "Traceback" not in said and "bug:" not in said, said


@pytest.fixture
def bare_host() -> Iterator[Host]:
    """See `new_host`."""
    if problem := machines.problem():
        pytest.skip(problem)
    with new_host() as host:
        yield host


@pytest.fixture
def host(bare_host: Host) -> Host:
    """With the coordinator, which runs as a user without any rights."""
    bare_host.coordinator()
    return bare_host
