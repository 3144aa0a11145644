"""One hub for the tests of this folder: ada and bob with their servers, and the coordinator of the whole machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare import environment
from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client

from ..documents import block
from ..driver_facts.harness import PTX
from ..system.host import WAIT, eventually
from . import hub as hubs
from . import machine as machines

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "/run/gpushare/coordinator.sock"
USERS = ("ada", "bob")
SERVICE = "gpushare"  # the user of the machine's coordinator
# What the machine's admin decides for everybody.
ADMIN = """
c.GpuShare.policy = "fcfs"
c.GpuShare.sharing = "exclusive"
c.GpuShare.time_quantum = 0.2
c.GpuShare.tenants = {"students": {"users": ["ada", "bob"], "memory": "64MiB"}}
"""
# What ada would rather have.
ADAS_OWN = """
c.GpuShare.policy = "interactive"
c.GpuShare.time_quantum = 600.0
c.GpuShare.tenants = {}
c.GpuShare.default_quota = {"memory": "200MiB"}
"""


def needed() -> str:
    """Why no hub can be had here; "" if one can."""
    if importlib.util.find_spec("jupyterhub") is None:
        return "needs JupyterHub: pip install 'jupyter-gpushare[hub]'"
    if not hubs.proxy():
        return "needs configurable-http-proxy, from npm or from pip"
    return machines.problem()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gs-hub-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def machine(folder: Path) -> Iterator[machines.Machine]:
    if problem := needed():
        pytest.skip(problem)
    made = machines.Machine(folder, (*USERS, SERVICE))
    try:
        yield made
    finally:
        made.close()


def common(folder: Path) -> dict[str, str]:
    """The environment of every program on the machine."""
    ours = ("GPUSHARE_", "LD_", "CUDA_", "JPY_", "JUPYTER", "IPYTHON", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | of_servers(folder)


def of_servers(folder: Path) -> dict[str, str]:
    """What users' servers are given: where this checkout and its kernelspec are, and the simulated devices."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JUPYTER_PATH": str(folder / "share"),
        "JUPYTER_CONFIG_PATH": str(folder / "enabled"),
        "GPUSHARE_SIM_STATE": "/dev/shm/simulated-devices",
        "GPUSHARE_SIM_SHARED": "1",
        "GPUSHARE_SIM_MEMORY": str(256 << 20),
        "GPUSHARE_SIM_LOG": str(folder / "simlog"),
        "TEST_PTX": str(PTX),
    }


def install(folder: Path) -> None:
    """What `pip install` puts where every user's server looks."""
    kernels = folder / "share" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "python3-gpushare").symlink_to(environment.PACKAGE / "kernelspec" / "python3-gpushare")
    shutil.copytree(ROOT / "jupyter-config" / "server-config", folder / "enabled" / "jupyter_server_config.d")
    (folder / "simlog").mkdir()
    (folder / "simlog").chmod(0o1777)


class Coordinator:
    """The machine's own, as its service manager would start it."""

    def __init__(self, machine: machines.Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder
        self._socket = machine.path(SOCKET)
        (folder / "etc").mkdir()
        (folder / "etc" / "jupyter_gpushare_config.py").write_text(ADMIN)
        for mine, mode in ((self._socket.parent, 0o755), (folder / "state", 0o700)):
            mine.mkdir(mode=mode)
            os.chown(mine, machine.users[SERVICE].uid, machine.users[SERVICE].uid)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--system", "--simulate"]
        env = common(self._folder) | {
            "GPUSHARE_SYSTEM_CONFIG_PATH": f"{self._folder}/etc",
            "STATE_DIRECTORY": f"{self._folder}/state",
            "HOME": str(self._machine.users[SERVICE].home),
        }
        with (self._folder / "coordinator.log").open("ab") as log:
            self._process = subprocess.Popen(self._machine.argv(*command, user=SERVICE), env=env, stderr=log)
        eventually(lambda: address.answers(str(self._socket)), what=f"{self._folder}/coordinator.log")

    def stop(self) -> None:
        assert self._process
        self._process.terminate()
        self._process.wait(WAIT)

    def ask(self, message: Any) -> Any:
        """The answer to root, who is its admin."""
        with Client(str(self._socket)) as connection:
            return connection.request(message)

    def clients(self) -> dict[str, dict[str, Any]]:
        return {client["id"]: client for client in self.ask(messages.Status())["clients"]}


@pytest.fixture(scope="module")
def coordinator(machine: machines.Machine, folder: Path) -> Iterator[Coordinator]:
    install(folder)
    made = Coordinator(machine, folder)
    made.start()
    yield made
    made.stop()


class World(NamedTuple):
    machine: machines.Machine
    hub: hubs.Hub
    sessions: dict[str, hubs.Session]
    coordinator: Coordinator
    simlog: Path


@pytest.fixture(scope="module")
def world(machine: machines.Machine, coordinator: Coordinator, folder: Path) -> Iterator[World]:
    home = machine.users["ada"].home
    (home / ".jupyter").mkdir()
    for name in ("jupyter_server_config.py", "jupyter_gpushare_config.py"):
        (home / ".jupyter" / name).write_text(ADAS_OWN)
    snippet = block("jupyterhub.md", "jupyterhub_config.py") + block("jupyterhub.md", "in jupyterhub_config.py")
    hub = hubs.Hub(machine, USERS, folder, snippet, common(folder), of_servers(folder))
    try:
        yield World(machine, hub, hub.login(*USERS), coordinator, folder / "simlog")
    except BaseException:
        print(hub.log.read_text())  # pytest shows it with the failure
        raise
    finally:
        hub.close()
