"""Host for one test: simulated devices, sockets, lock files, logs, a coordinator, programs and kernels."""

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

from ..driver_facts.harness import PTX
from ..native import simlog
from ..support import zygote
from ..support.interpreter import Interpreter
from ..support.polling import WAIT_SECONDS as WAIT
from ..support.polling import wait_until

HERE = Path(__file__).resolve().parent
AnyHost = TypeVar("AnyHost", bound="SystemHost")
MIB = 1 << 20
MOST = 0.6  # of the device's memory: clients with so much memory do not fit together, so they take turns
FAILING_COORDINATOR_ARGV = ["false"]  # replaces the command that starts a coordinator


class GpuProgram(Interpreter):
    """Process that runs `gpu_program.py`."""

    @property
    def errors(self) -> list[str]:
        """The lines that the program has written to standard error so far."""
        return list(self._errors)

    def send(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # waits, because the threads run on until the stop
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def busy(self, **how: Any) -> None:
        """Keep the device busy from now on; `how` has the arguments of `Busy` in `gpu_program.py`."""
        self.start_busy(**how)
        self.result()

    def start_busy(self, **how: Any) -> None:
        """Do the same in a program that may have to wait for its turn first; the caller takes the `result`."""
        words = "".join(f", {name}={value!r}" for name, value in how.items())
        self.start(f"busy = Busy(cuda{words})")

    def stop(self) -> None:
        """End the work of the program, and assert that its results are right."""
        result = self.run("busy.stop()")
        assert (result["wrong"], result["failure"]) == (0, "")
        assert result["launches"] > 0

    def signal_end(self, number: int = signal.SIGKILL) -> None:
        """Send the program a signal that ends it, also if it is stopped."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> str:
        """End the program with a signal, and return its standard error."""
        self.signal_end(number)
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
    """Host in a folder, whose path is short because it has the socket."""

    is_simulated = True  # else the devices are those of the machine

    def __init__(self, folder: Path, memory: int = 256 << 20) -> None:
        self.folder = folder
        self.socket = str(folder / "c.sock")
        self.simlog = folder / "simlog"
        self.log = folder / "shim.log"
        self.coordinator: zygote.Forked | None = None
        self.devices = 1
        self.memory = memory
        self.config: Path | None = None  # parameter file of the simulated devices, instead of `devices` and `memory`
        self._programs: list[GpuProgram] = []
        self._logs: dict[int, simlog.Log] = {}
        for name in ("run", "simlog", "share/kernels"):
            (folder / name).mkdir(mode=0o700, parents=True)
        (folder / "config").mkdir()
        kernels = folder / "share" / "kernels"
        (kernels / "python3-gpushare").symlink_to(kernel_env.PACKAGE / "kernelspec" / "python3-gpushare")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a user's shell on this host, which belongs to no client."""
        prefixes = ("GPUSHARE_", "LD_PRELOAD", "JPY_", "JUPYTER_", "IPYTHON", "XDG_")
        if self.is_simulated:
            prefixes += ("LD_", "CUDA_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        folder = str(self.folder)
        simulated = {
            "GPUSHARE_SIMULATE": "1",
            "GPUSHARE_SIM_STATE": f"{folder}/devices",
            "GPUSHARE_SIM_LOG": str(self.simlog),
            "GPUSHARE_SIM_MEMORY": str(self.memory),
            "GPUSHARE_SIM_DEVICES": str(self.devices),
        }
        if self.config:
            del simulated["GPUSHARE_SIM_MEMORY"], simulated["GPUSHARE_SIM_DEVICES"]
            simulated["GPUSHARE_SIM_CONFIG"] = str(self.config)
        return {
            **clean,
            "GPUSHARE_SOCKET": self.socket,
            **(simulated if self.is_simulated else {}),
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
        own = [*(["--simulate"] if self.is_simulated else []), "--socket", self.socket]
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

    def request(self, message: Any) -> Any:
        with Client(self.socket, WAIT) as connection:
            return connection.request(message)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.request(messages.Status())
        return status

    def clients(self) -> dict[str, dict[str, Any]]:
        return {client["id"]: client for client in self.status()["clients"]}

    def device_uuids(self) -> list[str]:
        return [device["uuid"] for device in self.status()["devices"]]

    def phase(self, client: str) -> str:
        return str(self.clients().get(client, {"phase": "unknown"})["phase"])

    def page(self, program: GpuProgram | int) -> dict[str, int]:
        """Return the control block and the report of a process's page, also while a process is stopped."""
        page = read_page(program if isinstance(program, int) else program.pid)
        assert page
        return page["control"] | page["report"]

    def command(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `jupyter gpushare WORDS`."""
        argv = [sys.executable, "-m", "jupyter_gpushare", *words]
        return subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, timeout=2 * WAIT, check=False, **options
        )

    # --- kernels and programs

    def launcher_spec(self) -> str:
        """Return the name of a kernelspec without a provisioner, as for front ends that ignore provisioners."""
        folder = self.folder / "share" / "kernels" / "launched"
        folder.mkdir()
        spec = json.loads((kernel_env.PACKAGE / "kernelspec" / "python3-gpushare" / "kernel.json").read_text())
        del spec["metadata"]["kernel_provisioner"]
        (folder / "kernel.json").write_text(json.dumps(spec))
        return folder.name

    def client_environment(self, client: str, quota: str = "", **more: str) -> dict[str, str]:
        """Return the environment that the provisioner makes for a client's programs."""
        return kernel_env.build_environment(
            self.environment(**more),
            client=client,
            token=f"token of {client}",
            label=client,
            quota=quota,
            socket=self.socket,
            simulate=self.is_simulated,
            coordinator_argv=FAILING_COORDINATOR_ARGV,
            python=False,
        )

    def program(
        self,
        client: str,
        quota: str = "",
        cuda: bool = True,
        part: float = 0.0,
        shim: Path | None = None,
        driver: Path | None = None,
        **more: str,
    ) -> GpuProgram:
        """Start a program of a client in the provisioner's environment. Programs of the same name are one client.

        The program starts no coordinator. With `cuda`, it initialises the device, and allocates the fraction `part`
        of the device's memory. `shim` is another shim for it, and `driver` another driver.
        """
        env = self.client_environment(client, quota, **more)
        if shim:
            env["LD_PRELOAD"] = str(shim)
        if driver:
            env["LD_LIBRARY_PATH"] = f"{driver.parent}:{env['LD_LIBRARY_PATH']}"
        program = self._keep(GpuProgram([sys.executable, str(HERE / "gpu_program.py")], env))
        if cuda:
            program.run("cuda = Cuda()")
            if part:
                program.run(self.allocation(part))
        return program

    def allocation(self, part: float) -> str:
        """Return the statement by which a program or a notebook allocates this fraction of the device's memory."""
        return f"check(cuda.alloc({int(self.memory * part)})[0])"

    def run(self, *options: str, **more: str) -> GpuProgram:
        """Start a program under `jupyter gpushare run OPTIONS`."""
        argv = [sys.executable, "-m", "jupyter_gpushare", "run", *options, "--"]
        return self._keep(GpuProgram([*argv, sys.executable, str(HERE / "gpu_program.py")], self.environment(**more)))

    def _keep(self, program: GpuProgram) -> GpuProgram:
        self._programs.append(program)
        return program

    # --- the driver's log

    def executions(self, *programs: GpuProgram | int) -> list[simlog.Execution]:
        """Return the executions of these programs or process ids, in the order of their beginnings."""
        pids = [program if isinstance(program, int) else program.pid for program in programs]
        logs = (self._logs.setdefault(pid, simlog.Log(self.simlog / f"{pid}.simlog")) for pid in pids)
        return sorted(execution for log in logs for execution in log.read())

    def launches(self, *programs: GpuProgram | int) -> list[simlog.Execution]:
        """Return the launches, without copies and prefetches, by which the shim moves memory beside other work."""
        return [execution for execution in self.executions(*programs) if execution.kind == "launch"]

    def worked_since(self, moment: int, *programs: GpuProgram | int) -> bool:
        """Return whether each of the programs has begun work after that time."""
        return all(any(e.begin_ns > moment for e in self.launches(program)) for program in programs)

    def took_turns_since(self, moment: int, *programs: GpuProgram | int) -> bool:
        """Return whether each program has begun work after that time, and the turn has changed a few times since."""
        since = [[e for e in self.launches(program) if e.begin_ns > moment] for program in programs]
        return all(since) and len(turn_intervals(*since)) >= 4

    def overlap(self, *clients: Sequence[GpuProgram | int]) -> float:
        """Return for how many seconds the device had launches of several clients at once."""
        return simlog.overlap_seconds(self.launches(*programs) for programs in clients)

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        for program in self._programs:  # all of them, even if the end of one takes longer than the test may last
            program.signal_end()
        for program in self._programs:
            program.collect()
        if self.coordinator:
            self.kill_coordinator()
        with contextlib.suppress(Unreachable):  # stops a coordinator that a program has started
            self.request(messages.Stop())


@contextlib.contextmanager
def system_host(monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], AnyHost] = SystemHost) -> Iterator[AnyHost]:
    """Return a context with a host in a folder of its own. The test's own process is on that host too."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))  # not pytest's: a socket's path has at most 107 bytes
    host = kind(folder)
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    try:
        yield host
    finally:
        host.close()
        shutil.rmtree(folder, ignore_errors=True)


def last_end(executions: Sequence[simlog.Execution]) -> int:
    return max(execution.end_ns for execution in executions)


def turn_intervals(*clients: Sequence[simlog.Execution]) -> list[tuple[int, int, int]]:
    """Return (number of the client, begin, end) of each unbroken sequence of one client's executions, in ns."""
    rows = sorted((e.begin_ns, e.end_ns, number) for number, client in enumerate(clients) for e in client)
    found: list[tuple[int, int, int]] = []
    for begin, end, number in rows:
        if found and found[-1][0] == number:
            found[-1] = (number, found[-1][1], end)
        else:
            found.append((number, begin, end))
    return found
