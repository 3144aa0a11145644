"""Bridge from the standard streams of a command to a node agent that an actor of Ray runs on a node.

    python -m jupyter_gpushare.cluster.ray_bridge NODE COMMAND ...

The only module that imports Ray, which ends a process whose cluster has ended: the Jupyter server runs it as a command.
Ray pickles the actor's class by value, because its module is `__main__`, so workers need no other part of this package.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

# A package of jsonschema, which Ray imports and Jupyter completes, compiles a grammar of URIs for a second.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    sys.exit(f"the engine ray cannot import Ray: {error}; pip install 'jupyter-gpushare[ray]'")

_CHUNK_BYTES = 1 << 16
_CLUSTER_SECONDS = 20.0  # to reach the cluster; Ray itself tries for minutes
_RAYLET_SECONDS = 2.0
_NAMES = ("NodeName", "NodeManagerHostname", "NodeManagerAddress", "NodeID")
_CALLS = 4  # of an actor at a time: one for each stream, and one spare


class Agent:
    """Actor with one node agent, which has the environment and the priorities of the raylet instead of a worker's."""

    def start(self, command: Sequence[str]) -> str:
        """Start the command. Return a sentence about the error, or ""."""
        raylet = os.getppid()
        with (
            suppress(OSError),
            open(f"/proc/{raylet}/oom_score_adj") as score,
            open("/proc/self/oom_score_adj", "w") as own,
        ):
            own.write(score.read())
        with suppress(OSError):  # only root may raise a priority
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, raylet))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # of this thread, which the command inherits
        try:
            with open(f"/proc/{raylet}/environ", "rb") as file:
                pairs = [entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry]
            self._process = subprocess.Popen(
                command,
                # LD_PRELOAD is Ray's allocator in a raylet.
                env={name: value for name, value in pairs if not name.startswith(b"RAY_") and name != b"LD_PRELOAD"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # because Ray kills the process group of a worker
            )
        except OSError as error:
            return f"the node cannot run {error.filename}: {error.strerror}"
        return ""

    def write(self, data: bytes) -> None:
        """Write to the standard input; b"" closes it."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # the end of the output shows the end of the command
            if data:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()

    def read(self, name: str) -> bytes:
        """Return the next bytes of `stdout` or `stderr`, or b"" at the end."""
        data: bytes = getattr(self._process, name).read1(_CHUNK_BYTES)
        return data

    def wait(self) -> int:
        """Return the exit status of the command."""
        return self._process.wait()


class Bridge:
    """Standard streams of this process, without the lines that Ray prints."""

    def __init__(self) -> None:
        self._output, self._errors = os.dup(1), os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)

    def fail(self, sentence: str) -> NoReturn:
        """End this process, also in the midst of a call of Ray."""
        _write_all(self._errors, f"{sentence}\n".encode())
        os._exit(1)

    def connect(self) -> None:
        """Connect to the cluster."""
        address = os.environ.get("RAY_ADDRESS") or "auto"
        sentence = f"no Ray cluster can be reached at the address {address} (RAY_ADDRESS)"
        timer = threading.Timer(_CLUSTER_SECONDS, self.fail, [f"{sentence} within {_CLUSTER_SECONDS:g} s"])
        timer.daemon = True
        timer.start()
        try:
            ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
        except Exception as error:
            self.fail(f"{sentence}: {_first_line(error)}")
        timer.cancel()

    def node_id(self, name: str) -> str:
        """Return the id of the node with this name, host name, address or id, as far as its raylet listens."""
        alive = [one for one in ray.nodes() if one["Alive"]]
        found = [one for one in alive if name in (one.get(key) for key in _NAMES)]
        for one in found:
            with suppress(OSError):
                place = (one["NodeManagerAddress"], one["NodeManagerPort"])
                socket.create_connection(place, _RAYLET_SECONDS).close()
                return str(one["NodeID"])
        if found:
            self.fail(f"the raylet of the node {name} does not answer")
        names = ", ".join(sorted({one.get("NodeName") or one["NodeManagerAddress"] for one in alive}))
        self.fail(f"the Ray cluster has no node {name}: its nodes are {names}")

    def relay(self, agent: Any) -> int:
        """Relay the streams until the command has closed its output. Return the exit status."""
        self._start_thread(lambda: self._relay_input(agent))
        errors = self._start_thread(lambda: self._relay_output(agent, "stderr", self._errors))
        self._relay_output(agent, "stdout", self._output)
        errors.join()
        return int(ray.get(agent.wait.remote()))

    def _start_thread(self, target: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except ray.exceptions.RayError as error:
                self.fail(f"the actor of Ray has ended: {_first_line(error)}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _relay_input(self, agent: Any) -> None:
        while data := os.read(0, _CHUNK_BYTES):
            ray.get(agent.write.remote(data))
        ray.get(agent.write.remote(b""))

    def _relay_output(self, agent: Any, name: str, output: int) -> None:
        while data := ray.get(agent.read.remote(name)):
            _write_all(output, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main(node: str, command: Sequence[str]) -> int:
    """Run the command on the node. Return its exit status."""
    bridge = Bridge()
    bridge.connect()
    placed = NodeAffinitySchedulingStrategy(bridge.node_id(node), soft=False)
    try:
        agent = ray.remote(Agent).options(num_cpus=0, max_concurrency=_CALLS, scheduling_strategy=placed).remote()
        if sentence := ray.get(agent.start.remote(command)):
            bridge.fail(sentence)
        return bridge.relay(agent)
    except ray.exceptions.RayError as error:
        bridge.fail(f"the actor of Ray has ended: {_first_line(error)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
