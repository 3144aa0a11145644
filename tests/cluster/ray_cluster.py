"""Two nodes of Ray on one machine, by two `ray start`, whose raylets have different environments.

Each node has a state, a runtime and a device folder of its own, so it has kernels, a coordinator and a simulated device
of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ..support.polling import wait_until

NODES = ("gpu1", "gpu2")
IS_INSTALLED = importlib.util.find_spec("ray") is not None
_START_SECONDS = 120.0
_STARTS = 3  # at most, because a raylet ends whose helper processes have not started within 15 s, as on a busy machine


class RayCluster:
    """Running cluster below a short folder. The first node has the head."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self._sessions: dict[str, int] = {}  # of the last `ray start` by node
        try:
            for node in NODES:
                self.start_node(node)
        except BaseException:
            self.close()
            raise

    def start_node(self, node: str) -> None:
        """Start the processes of a node, and wait until the node belongs to the cluster."""
        own = self.folder / node
        for name in ("state", "run", "locks"):
            (own / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        env = {
            **os.environ,
            "XDG_STATE_HOME": str(own / "state"),
            "XDG_RUNTIME_DIR": str(own / "run"),
            "GPUSHARE_LOCK_DIR": str(own / "locks"),
            "GPUSHARE_SIM_STATE": str(own / "devices"),
            "GPUSHARE_SIMULATE": "1",
        }
        env.pop("RAY_ADDRESS", None)
        place = [f"--address={self.address}"] if self.address else ["--head", "--port=0", "--include-dashboard=false"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *place, f"--node-name={node}", "--num-gpus=0"]
        command += ["--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={own}"]
        for _ in range(_STARTS):
            started = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            self._sessions[node] = started.pid
            output = started.communicate(timeout=_START_SECONDS)[0]
            if started.returncode == 0:
                break
            _kill(self.processes(node))
        assert started.returncode == 0, output
        if not self.address:
            found = re.search(r"--address='([\d.:]+)'", output)
            assert found, output
            self.address = found[1]

    def kill_node(self, node: str) -> None:
        """Kill the raylet and the workers of a node as `kill -9` does."""
        assert self.raylet(node)
        _kill(self.processes(node))

    def raylet(self, node: str) -> int:
        """Return the process id of the raylet of a node."""
        return next(pid for pid, name in self.processes(node).items() if name == "raylet")

    def workers(self, node: str) -> dict[int, str]:
        """Return the workers of a node that have an actor of the bridge."""
        return {pid: name for pid, name in self.processes(node).items() if name.startswith("ray::Agent")}

    def kill_workers(self, node: str) -> None:
        pids = self.workers(node)
        assert pids
        _kill(pids)

    def processes(self, node: str) -> dict[int, str]:
        """Return the names of the processes in the session of a node's `ray start`, by process id."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
                if int(rest.split()[3]) == self._sessions[node] and rest[0] != "Z":
                    found[int(entry.name)] = name
        return found

    def close(self) -> None:
        for node in self._sessions:
            _kill(self.processes(node))


def _kill(pids: dict[int, str]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(_is_alive(pid) for pid in pids))


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
