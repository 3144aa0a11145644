"""Test of two users' kernels on one node: neither user can read or interrupt the other's kernel."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster.node_connection import CONNECTIONS

from ..cluster.conftest import RemoteNotebook, add_kernelspec
from .conftest import ROOT, Host
from .test_attacks import TRY

SIMULATION = {
    "GPUSHARE_SIMULATE": "1",
    "GPUSHARE_SIM_STATE": "/dev/shm/simulated-devices",
    "GPUSHARE_SIM_SHARED": "1",
}
ATTACKS = """
attempt("files", lambda: os.listdir(folder))
for name in ("connection.json", "state", "output"):
    attempt(name, lambda: open(f"{folder}/{name}", "rb").read())
for pid in pids:
    for name in ("environ", "mem", "maps"):
        attempt(f"{name} {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    for number in numbers:
        attempt(f"signal {number} {pid}", lambda: os.kill(pid, number))
"""


@pytest.fixture
def start_kernel(
    bare_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], RemoteNotebook]]:
    """Provide a function that starts a kernel on the host as a user, beside the coordinator of all users."""
    add_kernelspec(tmp_path, monkeypatch)
    bare_host.coordinator("--simulate", environment=SIMULATION)
    started: list[RemoteNotebook] = []

    def start(user: str) -> RemoteNotebook:
        home = bare_host.machine.users[user].home
        home.chmod(0o755)  # as on many hosts
        variables = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **SIMULATION}
        words = ["env", "-i", "-C", str(home), *(f"{name}={value}" for name, value in variables.items()), "{agent}"]
        settings = {
            "engine": shlex.join(bare_host.machine.argv(*words, user=user)),
            "nodes": [f"{user}-node"],
            "addresses": {f"{user}-node": "127.0.0.1"},
        }
        manager = KernelManager(kernel_name="remote", config=Config({"GpuShareCluster": settings}))
        manager.start_kernel(cwd=str(home))
        started.append(RemoteNotebook(manager))
        return started[-1]

    yield start
    for notebook in started:
        notebook.client.stop_channels()
        notebook.manager.shutdown_kernel(now=True)
    CONNECTIONS.close()


def test_users_can_neither_read_nor_interrupt_each_others_kernels(
    bare_host: Host, start_kernel: Callable[[str], RemoteNotebook]
) -> None:
    notebooks = {user: start_kernel(user) for user in ("ada", "bob")}
    targets = {}
    for user, notebook in notebooks.items():
        notebook.use_gpu()
        notebook.run(f"name = {user!r}")
        assert notebook.value("__import__('os').getuid()") == bare_host.uid(user)
        (folder,) = bare_host.machine.users[user].home.glob("**/kernels/*")
        pids = notebook.value("[__import__('os').getpid(), __import__('os').getppid()]")
        targets[user] = {"folder": str(folder), "pids": pids}
    for attacker, victim in (("ada", "bob"), ("bob", "ada")):
        signals = [0, signal.SIGINT, signal.SIGKILL]
        tried = bare_host.run(attacker, TRY + ATTACKS, numbers=signals, **targets[victim])
        assert set(tried.values()) == {"PermissionError"}, tried
    for user, notebook in notebooks.items():
        assert notebook.value("name") == user
        notebook.interrupt_an_endless_cell()
        own = bare_host.run(user, TRY + ATTACKS, numbers=[0], **targets[user])
        assert "PermissionError" not in own.values(), own
