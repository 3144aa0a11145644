"""Option `--node NODE`, with which a command runs on a node of `c.GpuShareCluster` instead of this host.

The engine that starts node agents runs the command there, with the standard streams of this process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..cluster.settings import GpuShareCluster

ALL = "all"
HELP = f"run the command on this node of c.GpuShareCluster, or on '{ALL}' of them, instead of this host"
# Commands about the clients and the devices of one host.
COMMANDS = (
    *("status", "usage", "config", "quota", "hold", "release", "evict", "move", "suspend", "resume", "device"),
    "doctor",
)


def take_node(words: list[str]) -> str:
    """Remove the option from the words of a command line, and return its value, or "" without the option."""
    if not words or words[0] not in COMMANDS:
        return ""
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--node="):
            del words[at]
            return word.removeprefix("--node=")
        if word == "--node" and at + 1 < len(words):
            del words[at]
            return words.pop(at)
    return ""


def run_on_nodes(node: str, words: Sequence[str]) -> int:
    """Run a command on a node, or on all nodes one after the other. Return the largest exit status."""
    from traitlets import TraitError

    try:
        settings = read_settings()
        nodes = settings.all_nodes if node == ALL else [node]
        if unknown := set(nodes) - set(settings.all_nodes):
            raise ValueError(
                f"{unknown.pop()!r} is not in c.GpuShareCluster.nodes: allowed are {', '.join(settings.all_nodes)} "
                f"and {ALL}"
            )
    except (TraitError, ValueError) as error:
        print(f"jupyter gpushare {words[0]}: {error}", file=sys.stderr)
        return 2
    statuses = []
    for one in nodes:
        if node == ALL:
            print(f"--- {one}", flush=True)
        statuses.append(_run(settings.command(one, words), words[0]))
    return max(statuses)


def read_settings() -> GpuShareCluster:
    """Return the settings in the user's and the host's `jupyter_server_config`. Raise TraitError."""
    from jupyter_core.application import JupyterApp

    from ..cluster.settings import GpuShareCluster

    app = JupyterApp(config_file_name="jupyter_server_config")
    app.load_config_file()
    return GpuShareCluster(config=app.config)


def _run(command: Sequence[str], name: str) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        print(f"jupyter gpushare {name}: the engine cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 1
