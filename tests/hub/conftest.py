"""Fixture with a JupyterHub: ada and bob with their servers, and the coordinator of the whole machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import messages

from ..driver_facts.harness import PTX
from ..support.markdown_blocks import block
from ..users.conftest import ROOT, Host, new_host
from . import hub as hubs
from . import machine as machines

USERS = ("ada", "bob")
# Settings of the machine's admin after the usual settings of tests/users.
ADMIN = """
c.GpuShare.tenants = {"students": {"users": ["ada", "bob"], "memory": "64MiB"}}
c.GpuShare.sharing = "exclusive"
"""
# Settings of ada that must have no effect.
ADA_SETTINGS = """
c.GpuShare.policy = "fcfs"
c.GpuShare.time_quantum = 600.0
c.GpuShare.tenants = {}
c.GpuShare.default_quota = {"memory": "200MiB"}
"""


def hub_problem() -> str:
    """Return the reason why no hub can run here, or an empty text."""
    if importlib.util.find_spec("jupyterhub") is None:
        return "needs JupyterHub: pip install 'jupyter-gpushare[hub]'"
    if not hubs.proxy():
        return "needs configurable-http-proxy, from npm or from pip"
    return machines.problem()


def machine_environment(folder: Path) -> dict[str, str]:
    """Return the environment of every program on the machine."""
    ours = ("GPUSHARE_", "LD_", "CUDA_", "JPY_", "JUPYTER", "IPYTHON", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return clean | server_environment(folder)


def server_environment(folder: Path) -> dict[str, str]:
    """Return the variables of users' servers: paths of this checkout and its kernelspec, and the simulated devices."""
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
    """Put the files of `pip install` where every user's server finds them."""
    kernels = folder / "share" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "python3-gpushare").symlink_to(kernel_env.PACKAGE / "kernelspec" / "python3-gpushare")
    shutil.copytree(ROOT / "jupyter-config" / "server-config", folder / "enabled" / "jupyter_server_config.d")
    (folder / "simlog").mkdir()
    (folder / "simlog").chmod(0o1777)


class HubSetup(NamedTuple):
    """Hub on a host with the coordinator of the host, and a session of each user."""

    host: Host
    hub: hubs.Hub
    sessions: dict[str, hubs.Session]

    def start_coordinator(self) -> None:
        start_coordinator(self.host)

    def clients(self) -> dict[str, dict[str, Any]]:
        return {client["id"]: client for client in self.host.request(messages.Status())["clients"]}


def start_coordinator(host: Host) -> None:
    """Start the machine's coordinator as its service manager does."""
    host.coordinator("--simulate", settings=ADMIN, environment=server_environment(host.folder))


@pytest.fixture(scope="module")
def hub_setup() -> Iterator[HubSetup]:
    if problem := hub_problem():
        pytest.skip(problem)
    with new_host() as host:
        install(host.folder)
        start_coordinator(host)
        configuration = host.machine.users["ada"].home / ".jupyter"
        configuration.mkdir()
        for name in ("jupyter_server_config.py", "jupyter_gpushare_config.py"):
            (configuration / name).write_text(ADA_SETTINGS)
        titles = ("jupyterhub_config.py", "in jupyterhub_config.py")
        snippet = "".join(block("how-to/jupyterhub.md", title) for title in titles)
        hub = hubs.Hub(
            host.machine, USERS, host.folder, snippet, machine_environment(host.folder), server_environment(host.folder)
        )
        try:
            yield HubSetup(host, hub, hub.login(*USERS))
        except BaseException:
            print(hub.log.read_text())  # pytest shows it with the failure
            raise
        finally:
            hub.close()
