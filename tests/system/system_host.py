"""A host of its own for a test: a simulated device, sockets, lock files, logs, a coordinator, programs, kernels."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jupyter_gpushare.cli.inspection import read_page
from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client, Unreachable

from ..conftest import BASELINE
from ..driver_facts.harness import PTX
from ..native import simlog
from ..support import zygote
from ..support.interpreter import Interpreter
from ..support.polling import WAIT_SECONDS as WAIT
from ..support.polling import wait_until

HERE = Path(__file__).resolve().parent
AnyHost = TypeVar("AnyHost", bound="SystemHost")
MIB = 1 << 20
FAILING_COORDINATOR_ARGV = ["false"]  # in the place of the command that starts a coordinator


class GpuProgram(Interpreter):
    """A `gpu_program.py`."""

    @property
    def errors(self) -> list[str]:
        """The lines that it has written to standard error so far."""
        return list(self._errors)

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # until then its threads run on
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def busy(self, **how: Any) -> None:
        """Keep the device busy from now on; `how` as in `gpu_program.py`."""
        self.start_busy(**how)
        self.result()

    def start_busy(self, **how: Any) -> None:
        """`busy` for a program that may have to wait for its turn first; a `result` follows."""
        words = "".join(f", {name}={value!r}" for name, value in how.items())
        self.start(f"busy = Busy(cuda{words})")

    def stop(self) -> None:
        """End its work and check its results."""
        result = self.run("busy.stop()")
        assert (result["wrong"], result["failure"]) == (0, "")
        assert result["launches"] > 0

    def end(self, number: int = signal.SIGKILL) -> str:
        """End it and collect it; what it wrote to standard error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        return self.collect()


def start_all_busy(*programs: GpuProgram, **how: Any) -> None:
    """Start the work of all programs, in any order of their first turns."""
    for program in programs:
        program.start_busy(**how)
    for program in programs:
        program.result()


def stop_all(*programs: GpuProgram) -> None:
    for program in programs:
        program.stop()


class SystemHost:
    """`folder` is short: the socket lies in it."""

    def __init__(self, folder: Path, memory: int = 256 << 20) -> None:
        self.folder = folder
        self.socket = str(folder / "c.sock")
        self.simlog = folder / "simlog"
        self.log = folder / "shim.log"
        self.coordinator: zygote.Forked | None = None
        self.devices = 1
        self.memory = memory
        self._programs: list[GpuProgram] = []
        self._logs: dict[int, simlog.Log] = {}
        for name in ("run", "simlog", "share/kernels"):
            (folder / name).mkdir(mode=0o700, parents=True)
        (folder / "config").mkdir()
        (folder / "config" / "jupyter_gpushare_config.py").write_text(BASELINE)
        kernels = folder / "share" / "kernels"
        (kernels / "python3-gpushare").symlink_to(kernel_env.PACKAGE / "kernelspec" / "python3-gpushare")

    def environment(self, **more: str) -> dict[str, str]:
        """Of a participant that nobody has prepared yet: what a user's shell on this host has."""
        ours = ("GPUSHARE_", "LD_", "CUDA_", "JPY_", "JUPYTER_", "IPYTHON", "XDG_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        folder = str(self.folder)
        return {
            **clean,
            "GPUSHARE_SOCKET": self.socket,
            "GPUSHARE_SIMULATE": "1",
            "GPUSHARE_SIM_STATE": f"{folder}/devices",
            "GPUSHARE_SIM_LOG": str(self.simlog),
            "GPUSHARE_SIM_MEMORY": str(self.memory),
            "GPUSHARE_SIM_DEVICES": str(self.devices),
            "GPUSHARE_LOCK_DIR": f"{folder}/locks",
            "GPUSHARE_LOG": "debug",
            "GPUSHARE_LOG_FILE": str(self.log),
            "XDG_STATE_HOME": f"{folder}/state",
            "XDG_RUNTIME_DIR": f"{folder}/run",
            "JUPYTER_RUNTIME_DIR": f"{folder}/jupyter",
            "JUPYTER_CONFIG_DIR": f"{folder}/config",
            "JUPYTER_DATA_DIR": f"{folder}/data",
            "JUPYTER_PATH": f"{folder}/share",
            "IPYTHONDIR": f"{folder}/ipython",
            "PYTHONPATH": str(kernel_env.PACKAGE.parent),
            "TEST_PTX": str(PTX),
            **more,
        }

    # --- the coordinator

    def start_coordinator(self, *options: str, **more: str) -> None:
        own = ["--simulate", "--socket", self.socket]
        with (self.folder / "coordinator.log").open("ab") as log:
            self.coordinator = zygote.start_coordinator(
                [*own, *options], self.environment(**more), output=1, errors=log
            )
        wait_until(lambda: address.is_accepting(self.socket))

    def kill_coordinator(self) -> None:
        assert self.coordinator
        self.coordinator.kill()
        self.coordinator.wait(WAIT)
        self.coordinator = None

    def ask(self, message: Any) -> Any:
        with Client(self.socket) as connection:
            return connection.request(message)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask(messages.Status())
        return status

    def clients(self) -> dict[str, dict[str, Any]]:
        return {client["id"]: client for client in self.status()["clients"]}

    def phase(self, client: str) -> str:
        return str(self.clients().get(client, {"phase": "unknown"})["phase"])

    def page(self, program: GpuProgram | int) -> dict[str, int]:
        """What the coordinator has written to a process's page and what the process has, also while one is stopped."""
        page = read_page(program if isinstance(program, int) else program.pid)
        assert page
        return page["control"] | page["report"]

    def command(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`jupyter gpushare WORDS`"""
        argv = [sys.executable, "-m", "jupyter_gpushare", *words]
        return subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, timeout=2 * WAIT, check=False, **options
        )

    # --- kernels and programs

    def launcher_spec(self) -> str:
        """The name of a kernelspec as front ends see it that ignore provisioners."""
        folder = self.folder / "share" / "kernels" / "launched"
        folder.mkdir()
        spec = json.loads((kernel_env.PACKAGE / "kernelspec" / "python3-gpushare" / "kernel.json").read_text())
        del spec["metadata"]["kernel_provisioner"]
        (folder / "kernel.json").write_text(json.dumps(spec))
        return folder.name

    def prepared(self, client: str, quota: str = "", **more: str) -> dict[str, str]:
        """The environment that the provisioner makes for a client's programs."""
        return kernel_env.build_environment(
            self.environment(**more),
            client=client,
            token=f"token of {client}",
            label=client,
            quota=quota,
            socket=self.socket,
            simulate=True,
            coordinator_argv=FAILING_COORDINATOR_ARGV,
            python=False,
        )

    def program(
        self, client: str, quota: str = "", cuda: bool = True, shim: Path | None = None, **more: str
    ) -> GpuProgram:
        """A program of the client, as the provisioner prepares one. Several of the same name are one client.

        It brings no coordinator back. `cuda`: with the device initialised. `shim`: another one than ours.
        """
        env = self.prepared(client, quota, **more)
        if shim:
            env["LD_PRELOAD"] = str(shim)
        program = self._keep(GpuProgram([sys.executable, str(HERE / "gpu_program.py")], env))
        if cuda:
            program.run("cuda = Cuda()")
        return program

    def run(self, *options: str, **more: str) -> GpuProgram:
        """A program under `jupyter gpushare run OPTIONS`."""
        argv = [sys.executable, "-m", "jupyter_gpushare", "run", *options, "--"]
        return self._keep(GpuProgram([*argv, sys.executable, str(HERE / "gpu_program.py")], self.environment(**more)))

    def _keep(self, program: GpuProgram) -> GpuProgram:
        self._programs.append(program)
        return program

    # --- what the driver wrote down

    def executions(self, *programs: GpuProgram | int) -> list[simlog.Execution]:
        """Of these programs or process ids, in the order of their beginnings."""
        pids = [program if isinstance(program, int) else program.pid for program in programs]
        logs = (self._logs.setdefault(pid, simlog.Log(self.simlog / f"{pid}.simlog")) for pid in pids)
        return sorted(execution for log in logs for execution in log.read())

    def worked_since(self, moment: int, *programs: GpuProgram | int) -> bool:
        """Return whether each of the programs has begun work after that time."""
        return all(any(e.begin_ns > moment for e in self.executions(program)) for program in programs)

    def took_turns_since(self, moment: int, *programs: GpuProgram | int) -> bool:
        """Return whether each has begun work after that time, and the turn has changed a few times since."""
        since = [[e for e in self.executions(program) if e.begin_ns > moment] for program in programs]
        return all(since) and len(turn_intervals(*since)) >= 4

    def overlap(self, *clients: Sequence[GpuProgram | int]) -> float:
        """Seconds during which the device worked for several clients at once."""
        return simlog.overlap_seconds(self.executions(*programs) for programs in clients)

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        for program in self._programs:
            program.end()
        if self.coordinator:
            self.kill_coordinator()
        with contextlib.suppress(Unreachable):  # one that a participant has started
            self.ask(messages.Stop())


@contextlib.contextmanager
def system_host(monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], AnyHost] = SystemHost) -> Iterator[AnyHost]:
    """A host in a folder of its own, on which the test's own process lives too."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))  # not pytest's: a socket's path has at most 107 bytes
    made = kind(folder)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def last_end(executions: Sequence[simlog.Execution]) -> int:
    return max(execution.end_ns for execution in executions)


def turn_intervals(*clients: Sequence[simlog.Execution]) -> list[tuple[int, int, int]]:
    """(client's number, begin, end) of each unbroken row of executions of one client, in nanoseconds."""
    rows = sorted((e.begin_ns, e.end_ns, number) for number, client in enumerate(clients) for e in client)
    found: list[tuple[int, int, int]] = []
    for begin, end, number in rows:
        if found and found[-1][0] == number:
            found[-1] = (number, found[-1][1], end)
        else:
            found.append((number, begin, end))
    return found
