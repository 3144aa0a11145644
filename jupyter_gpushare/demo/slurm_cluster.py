"""Two Slurm nodes on one machine, from Debian's packages slurmctld, slurmd, slurm-client and munge.

Each node has a state, a runtime and a device folder of its own, so it has kernels, a coordinator and a simulated device
of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

NODES = ("gpu1", "gpu2")
_PORTS = range(32_000, 32_768)  # below those that Linux gives to any program
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")


def missing_programs() -> list[str]:
    """Return the programs that the machine lacks, and "root" for any other user, because slurmd runs as root only."""
    return [name for name in _PROGRAMS if not shutil.which(name)] + ([] if os.getuid() == 0 else ["root"])


class SlurmCluster:
    """Running cluster below a short folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._lock = threading.Lock()
        self._is_closed = False
        host = socket.gethostname().split(".")[0]
        folder.joinpath("state").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = [f"--{name}-file={folder / name}" for name in ("pid", "log", "seed")]
        self._run("munged", "--force", f"--key-file={key}", f"--socket={folder / 'munge.sock'}", *files)
        ports = _free_ports(3)
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            f"AuthInfo=socket={folder / 'munge.sock'}",
            f"StateSaveLocation={folder / 'state'}",
            f"SlurmdSpoolDir={folder / 'spool-%n'}",
            f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
            f"SlurmdPidFile={folder / 'slurmd-%n.pid'}",
            f"SlurmctldLogFile={folder / 'slurmctld.log'}",
            f"SlurmdLogFile={folder / 'slurmd-%n.log'}",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            *(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
              for name, port in zip(NODES, ports[1:], strict=True)),
            f"PartitionName=gpu Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16",
        ]  # fmt: skip
        self.configuration.write_text("\n".join(lines) + "\n")
        try:
            self.start_daemons()
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> str:
        """Engine whose agents have the folders of their nodes."""
        names = {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run", "GPUSHARE_LOCK_DIR": "locks"}
        names["GPUSHARE_SIM_STATE"] = "devices"
        folders = " ".join(f"{name}={self.folder}/{{node}}/{part}" for name, part in names.items())
        makes = f"mkdir -pm 700 {self.folder}/{{node}}/run"
        script = (
            f'{makes}; export SLURM_CONF={self.configuration}; exec srun -Q -n1 -N1 -s -w {{node}} env {folders} "$@"'
        )
        return f"sh -c '{script}' sh {{agent}}"

    def start_daemons(self) -> None:
        """Start the daemons that do not run, and wait until the nodes are ready. A closed cluster gets none.

        Raise OSError, of which TimeoutError is one, or subprocess.SubprocessError if that fails.
        """
        with self._lock:
            if self._is_closed:
                return
            if not self._pids("slurmctld"):
                self._run("slurmctld", "-f", self.configuration)
            for node in NODES:
                if not self._pids(f"slurmd-{node}"):
                    self._run("slurmd", "-f", self.configuration, "-N", node)
        _wait_until(lambda: self._is_closed or self._states() <= {"idle", "mix", "alloc", "comp"}, 60.0)

    def kill_daemons(self) -> None:
        """Kill slurmctld and both slurmd as `kill -9` does."""
        pids = [pid for name in ("slurmctld", *(f"slurmd-{node}" for node in NODES)) for pid in self._pids(name)]
        assert len(pids) == 3
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        _wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

    def close(self) -> None:
        """End all jobs, then the daemons and all other processes of the nodes, such as coordinators."""
        with self._lock:
            self._is_closed = True
        if self._pids("slurmctld"):
            with suppress(subprocess.SubprocessError, TimeoutError):
                self._run("scancel", "--signal=KILL", "--full", "--user=root")
                _wait_until(lambda: not self._run("squeue", "--noheader"))
        with suppress(TimeoutError):
            _wait_until(self._kill_processes)

    def _kill_processes(self) -> bool:
        """Kill the processes whose environment names a path in the folder. Return whether there was none."""
        path = os.fsencode(f"{self.folder}/")
        has_none = True
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has ended meanwhile
                if path in (process / "environ").read_bytes():
                    has_none = False
                    os.kill(int(process.name), signal.SIGKILL)
        return has_none

    def _states(self) -> set[str]:
        with suppress(subprocess.CalledProcessError):  # slurmctld does not listen so far
            return set(self._run("sinfo", "--noheader", "--Node", "--format=%t").split())
        return {"unknown"}

    def _pids(self, name: str) -> list[int]:
        file = self.folder / f"{name}.pid"
        with suppress(FileNotFoundError, ValueError):
            pid = int(file.read_text())
            if os.path.exists(f"/proc/{pid}"):
                return [pid]
        return []

    def _run(self, *command: object) -> str:
        env = {**os.environ, "SLURM_CONF": str(self.configuration)}
        words = [str(word) for word in command]
        return subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def _wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a change of other processes. Raise TimeoutError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Slurm's daemons have not reached the expected state within {seconds:g} s")
        time.sleep(0.01)


def _free_ports(number: int) -> list[int]:
    """Return ports that Linux gives no other program while the daemons do not run."""
    with ExitStack() as probes:
        found: list[int] = []
        for port in random.sample(_PORTS, len(_PORTS)):
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == number:
                return found
    raise OSError(f"fewer than {number} ports from {_PORTS[0]} to {_PORTS[-1]} are free")
