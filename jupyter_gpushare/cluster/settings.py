"""Traits of `c.GpuShareCluster`: the nodes, and the engine that starts node agents there."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import Dict, Enum, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from .. import units
from ..wire import address

# Variables of the server that node agents of Slurm get, because `srun` sends variables over the network in plain text.
_SLURM_VARIABLES = "HOME,USER,LOGNAME,SHELL,PATH,LANG"
# Command by which an engine runs the node agent on a node, with the standard streams of the command.
ENGINES = {
    "local": "{agent}",
    "ssh": "ssh -T -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {node} {quoted_agent}",
    # With the id of a job, `srun` would start a step of the job that the server itself runs in.
    "slurm": f"env -u SLURM_JOB_ID -u SLURM_JOBID srun --export={_SLURM_VARIABLES} --job-name=gpushare --nodes=1 "
    "--ntasks=1 --oversubscribe --nodelist={node} {agent}",
    "kubectl": "kubectl exec --quiet --stdin {node} -- {agent}",
    "ray": f"{shlex.quote(sys.executable)} -m jupyter_gpushare.cluster.ray_bridge {{node}} {{agent}}",
}
_FIELDS = {"node", "agent", "quoted_agent"}
_NODE = re.compile(r"[A-Za-z0-9][\w.:@-]*")  # never an option of the command
_LOCAL_NODE = "localhost"
ALL_NODES = "all"  # value of the option --node, and so no name of a node


class GpuShareCluster(Configurable):
    """Settings of kernels on other hosts."""

    engine = Unicode(
        "local",
        config=True,
        help="How a node agent is started on a node: local, ssh, slurm, kubectl, ray, or a command with {node} and "
        "{agent}. {agent} stands for the words of the agent's command, and {quoted_agent} for one word of a shell.",
    )
    nodes = List(
        Unicode(),
        config=True,
        help='Names of the nodes, as the engine knows them. "localhost" is this host, which needs no engine.',
    )
    addresses = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        config=True,
        help="IP address at which this server reaches a node's kernels, by node; default: the address of its name.",
    )
    prefix = Unicode(
        config=True,
        help="Folder of the Python environment on the nodes, with bin/python, ipykernel and jupyter-gpushare; default: "
        "the folder of this server's environment.",
    )
    variables = List(
        Unicode(),
        ["JPY_SESSION_NAME"],
        config=True,
        help="Variables of the server's environment that kernels on nodes get. The kernelspec's variables always go.",
    )
    ports = Unicode(config=True, help='Ports of kernels on nodes, such as "40000-40999"; default: any free ports.')
    encryption = Enum(
        ["required", "off"],
        "required",
        config=True,
        help="Encryption of the connections to kernels on nodes. required: kernels that cannot do it do not start.",
    )
    orphan_timeout = Unicode(
        "24h",
        config=True,
        help='Time after which a kernel ends that no Jupyter server waits for, such as "24h"; "0": never.',
    )
    node_timeout = Unicode(
        "0",
        config=True,
        help="Time after which a kernel counts as ended whose node does not answer, and starts anew on another node. "
        '"0": never, so that nothing is lost when the node answers again.',
    )
    room_timeout = Unicode(
        "10min",
        config=True,
        help="Time for which a kernel's start waits for a node with room, before the start fails. "
        '"0": the start fails at once.',
    )
    start_timeout = Unicode("60s", config=True, help="Time within which a node agent and a kernel must start.")
    daemon = Unicode(
        config=True,
        help="Socket of the cluster daemon that chooses nodes, /path or unix:/path; default: each server chooses.",
    )
    placement = Enum(
        ["spread", "pack", "fgd"], "spread", config=True, help="Strategy by which the cluster daemon chooses nodes."
    )
    tenants = Dict(
        config=True,
        help="Tenants of the cluster daemon, as in c.GpuShare.tenants. A guaranteed cell may be a whole node: "
        '{"physics": {"groups": ["physics"], "cells": {"node": 2}}}. Ceilings hold over all nodes for the starts that '
        "the daemon chooses nodes for; c.GpuShare.tenants of the nodes enforces ceilings.",
    )

    @classmethod
    def from_files(cls) -> GpuShareCluster:
        """Return the settings in the user's and the host's `jupyter_server_config`. Raise TraitError."""
        app = JupyterApp(config_file_name="jupyter_server_config")
        app.load_config_file()
        return cls(config=app.config)

    @validate("engine")
    def _check_engine(self, proposal: dict[str, str]) -> str:
        text = str(proposal["value"])
        fields = set(re.findall(r"{(\w+)}", text))
        if text not in ENGINES and not (fields & {"agent", "quoted_agent"} and fields <= _FIELDS):
            raise TraitError(
                f"GpuShareCluster.engine: {text!r} is neither one of {', '.join(ENGINES)} nor a command with {{agent}} "
                "or {quoted_agent}, and {node}"
            )
        return text

    @validate("nodes")
    def _check_nodes(self, proposal: dict[str, Any]) -> list[str]:
        for name in proposal["value"]:
            check_node(name, "GpuShareCluster.nodes")
            if proposal["value"].count(name) > 1:
                raise TraitError(f"GpuShareCluster.nodes: {name!r} is there more than once: allowed is each name once")
        return list(proposal["value"])

    @validate("ports")
    def _check_ports(self, proposal: dict[str, Any]) -> str:
        found = re.fullmatch(r"(\d+)-(\d+)", proposal["value"])
        if proposal["value"] and not (found and 1024 <= int(found[1]) < int(found[2]) < 1 << 16):
            raise TraitError(
                f"GpuShareCluster.ports: {proposal['value']!r} is no range of ports: allowed are FIRST-LAST, "
                "from 1024 to 65535"
            )
        return str(proposal["value"])

    @validate("daemon")
    def _check_daemon(self, proposal: dict[str, Any]) -> str:
        try:
            return address.socket_path(proposal["value"]) if proposal["value"] else ""
        except address.BadAddress as error:
            raise TraitError(f"GpuShareCluster.daemon: {error}") from None

    @validate("orphan_timeout", "node_timeout", "room_timeout", "start_timeout")
    def _check_time(self, proposal: dict[str, Any]) -> str:
        name = proposal["trait"].name
        try:
            units.parse_duration(proposal["value"])
        except ValueError as error:
            raise TraitError(f"GpuShareCluster.{name}: {error}") from None
        if name == "start_timeout" and not units.parse_duration(proposal["value"]):
            raise TraitError(
                f"GpuShareCluster.start_timeout: {proposal['value']!r} leaves no time for a start: allowed is a "
                "duration above 0"
            )
        return str(proposal["value"])

    @property
    def all_nodes(self) -> Sequence[str]:
        """Names of the nodes; this host if the setting has none."""
        return list(self.nodes) or [_LOCAL_NODE]

    @property
    def room_seconds(self) -> float:
        return units.parse_duration(self.room_timeout)

    @property
    def start_seconds(self) -> float:
        return units.parse_duration(self.start_timeout)

    @property
    def port_range(self) -> tuple[int, int]:
        first, _, last = self.ports.partition("-")
        return (int(first), int(last)) if last else (0, 0)

    def command(self, node: str, arguments: Sequence[str] = ("agent",)) -> list[str]:
        """Return the command that runs a node agent, or another command of `jupyter gpushare`, on this node."""
        python = os.path.join(self.prefix or sys.prefix, "bin", "python")
        remote = [python, "-m", "jupyter_gpushare", *arguments]
        words: list[str] = []
        engine = self._engine_of(node)
        for word in shlex.split(ENGINES.get(engine, engine)):
            if word == "{agent}":
                words += remote
            else:
                words.append(word.replace("{node}", node).replace("{quoted_agent}", shlex.join(remote)))
        return words

    def engine_digest(self, node: str) -> str:
        """Return a digest of the settings that decide which host a node agent of this node runs on."""
        return hashlib.sha256(shlex.join([self._engine_of(node), self.prefix]).encode()).hexdigest()

    def _engine_of(self, node: str) -> str:
        return "local" if node == _LOCAL_NODE and node in self.nodes else self.engine

    def address(self, node: str) -> str:
        """Return the IP address of the node's kernels. Raise OSError for an unknown name."""
        if node in self.addresses:
            return str(self.addresses[node])
        if self.engine == "local":
            return "127.0.0.1"
        return socket.gethostbyname(node.rpartition("@")[2])


def check_node(name: str, setting: str) -> None:
    """Raise TraitError for a text that is no name of a node, such as an option of the engine's command."""
    if not _NODE.fullmatch(name):
        raise TraitError(
            f"{setting}: {name!r} is no name of a node: allowed are letters, digits and . _ : @ -, "
            "with a letter or a digit first"
        )
    if name == ALL_NODES:
        raise TraitError(f"{setting}: {name!r} is no name of a node: the option --node means all nodes by it")
