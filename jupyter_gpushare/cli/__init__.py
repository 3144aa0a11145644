"""Sub-commands of `jupyter gpushare`, whose modules are imported only when a command needs them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__
from . import nodes

# Name of a command: module with `add_arguments(parser)` and `main(args) -> int`, and help text.
COMMANDS = {
    "status": (".status", "show the devices and the clients: running, waiting, quotas and memory"),
    "usage": (".usage", "show the GPU time, waits and moved memory of each user in the last days"),
    "config": (".config", "read or change the settings of a running coordinator"),
    "quota": (".client", "read or change a client's quota"),
    "hold": (".client", "let a client keep the GPU for some time, also between cells"),
    "release": (".client", "end a client's turn and hold"),
    "evict": (".client", "move a client's memory off the device until its next turn"),
    "move": (".client", "move a client with its memory to another device of the same type"),
    "suspend": (".client", "give a client no turns and move its memory off the device, until 'resume'"),
    "resume": (".client", "let a suspended client take turns again"),
    "device": (".device", "take a device out of use, or put a device back into use"),
    "run": (".run", "run any program as a client that shares the GPU"),
    "agent": (
        "..cluster.node.node_agent",
        "start kernels on this host for a Jupyter server elsewhere (for engines)",
    ),
    "cluster": ("..cluster_daemon.app", "run the daemon that chooses nodes for the Jupyter servers of this host"),
    "kernelspec": (".kernelspec", "install, list or remove shared variants of kernels"),
    "doctor": (".doctor.main", "check GPU sharing on this machine, and suggest remedies"),
    "demo": ("..demo", "share one device among three notebooks, with a report"),
    "simulate": (".simulate", "compare policies in virtual time"),
    "record": (".record", "record a coordinator's clients in a trace for 'simulate'"),
    "bench": ("..bench", "measure the costs and effects of sharing"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["coordinator"]:  # a traitlets application, which parses its options itself
        from ..coordinator.app import CoordinatorApp

        CoordinatorApp.launch_instance(words[1:])
        return 0
    if (node := nodes.take_node(words)) is not None:
        try:
            return nodes.run_on_nodes(node, words)
        except KeyboardInterrupt:
            return 130
    args = build_parser(words[0] if words else "").parse_args(words)
    if not args.command_name:
        build_parser("").print_help()
        return 2
    if not (getattr(args, "socket", "") or os.environ.get("GPUSHARE_CLIENT")):
        _use_configured_socket()
    try:
        return int(importlib.import_module(COMMANDS[args.command_name][0], __package__).main(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python writes the rest of its output at exit, which would fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _use_configured_socket() -> None:
    """Let `c.GpuShare.coordinator` in Jupyter's files precede `$GPUSHARE_SOCKET`, as in a Jupyter server.

    A process of a client has the variable from the client's own coordinator.
    """
    from ..config import config_files

    path, faults = config_files.coordinator_socket()
    for fault in faults:
        print(f"jupyter gpushare: {fault}", file=sys.stderr)
    if path:
        os.environ["GPUSHARE_SOCKET"] = path


def build_parser(chosen: str) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the command `chosen`."""
    top = argparse.ArgumentParser(prog="jupyter gpushare", description="Share GPUs among notebook kernels.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command_name", metavar="COMMAND")
    commands.add_parser("coordinator", help="run the daemon that schedules (options: --help-all)", add_help=False)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            importlib.import_module(module, __package__).add_arguments(command)
            if name in nodes.COMMANDS:
                command.add_argument("--node", metavar="NODE", help=nodes.HELP)
    return top
