"""Command `jupyter gpushare run [OPTIONS] -- COMMAND …`, which runs any program as a client.

The program replaces this process, so it has its own exit status, signals and terminal.
The program gets turns like a notebook with one endless cell.

Inside a shared notebook or another `run`, the program joins the outer client.
The outer client's quota, memory mode and turns hold for the program, so that no program escapes them by accident.
`--new` makes the program a client of its own.
"""

from __future__ import annotations

import argparse
import os
import sys

from .. import launcher
from ..config import quota_options
from ..launch import kernel_env
from ..wire import messages
from ..wire.client import Client, CoordinatorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--share", metavar="F", help="guaranteed fraction of the device's time, from 0 to 1")
    parser.add_argument("--limit", metavar="F", help="largest fraction of the device's time, above 0 and up to 1")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="device memory that the program may allocate, such as 8GiB, or 0.5 for half the device",
    )
    parser.add_argument(
        "--resident",
        metavar="SIZE",
        help="device memory that the program may keep while other clients wait, and in mode unified in its turns too",
    )
    parser.add_argument(
        "--service",
        "--class",
        metavar="CLASS",
        choices=("online", "offline"),
        help="online or offline: offline clients run after online clients",
    )
    parser.add_argument(
        "--memory-mode",
        metavar="MODE",
        default="",
        help="memory mode: unified, swap or plain; default: the coordinator's mode",
    )
    parser.add_argument(
        "--label", metavar="TEXT", default="", help="label of the client in all views; default: the program's name"
    )
    parser.add_argument("--gpus", metavar="N", default="1", help="number of devices of the program (default 1)")
    parser.add_argument(
        "--place",
        metavar="WORD=NAME",
        action="append",
        default=[],
        help="placement: device=, affinity=, anti_affinity= or exclusion=; repeatable, see docs/how-to/placement.md",
    )
    parser.add_argument("--simulate", action="store_true", default=None, help="use the simulated driver")
    parser.add_argument(
        "--new", action="store_true", help="make a new client, also inside a shared notebook or another 'run'"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the program")


def main(args: argparse.Namespace) -> int:
    """Execute the program, or return the exit status: 2 for usage, 126 for not executable, 127 for not found."""
    try:
        labels = quota_options.label_options(args.place)
        requested = {name: getattr(args, name) for name in ("share", "limit", "memory", "resident", "service")}
        quota = quota_options.quota_text(**requested, **labels)
        quota = quota_options.with_inherited_quota(quota)
        mode = quota_options.parse_memory_mode(args.memory_mode)
        words = ["--gpus", str(args.gpus), *(["--simulate"] if args.simulate else [])]
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        parsed = launcher.parse([*words, "--", *command], sys.executable)
    except launcher.LauncherUsageError as error:
        usage = "jupyter gpushare run [OPTIONS] -- COMMAND ..."
        return _fail(str(error) if command else f"the command is missing: {usage}", 2)
    except ValueError as error:
        return _fail(str(error), 2)
    if not args.new and os.environ.get("GPUSHARE_PREPARED") and os.environ.get("GPUSHARE_CLIENT"):
        return _run_inside_client(args, command)
    # The command remains as typed, so that "python" is the first one on the user's PATH.
    parsed = parsed._replace(command=command, quota=quota, label=args.label, memory_mode=mode)
    try:
        env = launcher.build_shared_environment(parsed, "run")
    except kernel_env.TooManyDevices as error:
        return _fail(str(error), 2)
    if env.get("GPUSHARE_NOTE"):
        print(f"gpushare: {env['GPUSHARE_NOTE']}", file=sys.stderr)
    for note in _quota_notes(env) if args.share else ():
        print(f"gpushare: note: {note}", file=sys.stderr)
    return _exec(command, env)


def _quota_notes(env: dict[str, str]) -> list[str]:
    """Return notes on the parts of the quota that have no effect."""
    if not env.get("GPUSHARE_CLIENT"):
        return []
    try:
        with Client(env["GPUSHARE_SOCKET"]) as coordinator:
            return list(coordinator.request(messages.SetQuota(client=env["GPUSHARE_CLIENT"], changes={}))["notes"])
    except CoordinatorError:
        return []


def _run_inside_client(args: argparse.Namespace, command: list[str]) -> int:
    """Execute the program as a part of the client of this process."""
    own = {
        "--share": args.share,
        "--limit": args.limit,
        "--memory": args.memory,
        "--resident": args.resident,
        "--service": args.service,
        "--memory-mode": args.memory_mode,
        "--label": args.label,
        "--gpus": args.gpus != "1",
        "--simulate": args.simulate and os.environ.get("GPUSHARE_SIMULATE") != "1",
    }
    if refused := [name for name, value in own.items() if value]:
        label = os.environ.get("GPUSHARE_LABEL") or os.environ["GPUSHARE_CLIENT"]
        return _fail(
            f"{', '.join(refused)}: the program would run inside the client {label!r} and under its quota; "
            "add --new to make a new client",
            2,
        )
    return _exec(command, dict(os.environ))


def _exec(command: list[str], env: dict[str, str]) -> int:
    try:
        launcher.exec_program(command, env)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)


def _fail(message: str, status: int) -> int:
    print(f"jupyter gpushare run: error: {message}", file=sys.stderr)
    return status
