"""`jupyter gpushare …`: what the sub-commands are. Each lives in its own module, imported when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__

# name: (module with add_arguments(parser) and main(args) -> int, what it does)
COMMANDS = {
    "status": (".status", "who runs, who waits, what everybody has"),
    "usage": (".usage", "who has used the GPUs, waited for them and moved memory, in the last days"),
    "config": (".config", "read or change a running coordinator's settings"),
    "quota": (".client", "read or change a client's quota"),
    "hold": (".client", "let a client keep the GPU between cells for a while"),
    "release": (".client", "end a client's turn, and its hold"),
    "evict": (".client", "move a client's memory off the device, until its next turn"),
    "suspend": (".client", "give a client no turns, and move its memory off the device, until it is resumed"),
    "resume": (".client", "let a suspended client take part again"),
    "device": (".device", "take a device out of use, or into use again"),
    "run": (".run", "put any program under sharing"),
    "kernelspec": (".kernelspec", "make shared variants of installed kernels"),
    "doctor": (".doctor.main", "what is right and wrong on this machine"),
    "demo": ("..demo", "three notebooks share one device, with a report"),
    "simulate": (".simulate", "compare policies in virtual time"),
    "record": (".record", "write what a coordinator's clients do to a trace, for simulate"),
    "bench": ("..bench", "measure gate, handoff and start"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["coordinator"]:  # a traitlets application with options of its own
        from ..coordinator.app import CoordinatorApp

        CoordinatorApp.launch_instance(words[1:])
        return 0
    args = build_parser(words[0] if words else "").parse_args(words)
    if not args.command_name:
        build_parser("").print_help()
        return 2
    try:
        return int(importlib.import_module(COMMANDS[args.command_name][0], __package__).main(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left at the end either
        return 1


def build_parser(chosen: str) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the command `chosen`."""
    top = argparse.ArgumentParser(prog="jupyter gpushare", description="Many notebook kernels share one GPU.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command_name", metavar="COMMAND")
    commands.add_parser("coordinator", help="the daemon that schedules (see --help-all there)", add_help=False)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            importlib.import_module(module, __package__).add_arguments(command)
    return top
