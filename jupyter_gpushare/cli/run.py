"""`jupyter gpushare run [OPTIONS] -- COMMAND …`: any program as a client of its own.

The command replaces this process, so its exit status, its signals and its terminal are its own. It gets a
turn like a notebook that runs one endless cell.

Inside a shared notebook, or another `run`, the command joins that client: its quota, memory mode and turns are the
outer one's, which nobody escapes by accident. `--new` makes it a client of its own.
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
    """Called by the command line on the parser of the `run` sub-command."""
    parser.add_argument("--share", metavar="F", help="guaranteed fraction of the device's time, 0 to 1")
    parser.add_argument("--limit", metavar="F", help="largest fraction of it, above 0 and up to 1")
    parser.add_argument("--memory", metavar="SIZE", help="device memory it may allocate, 8GiB or a part of it, 0.5")
    parser.add_argument("--resident", metavar="SIZE", help="device memory that it may keep while others wait")
    parser.add_argument(
        "--service",
        "--class",
        metavar="CLASS",
        choices=("online", "offline"),
        help="offline: has what online ones leave",
    )
    parser.add_argument(
        "--memory-mode", metavar="MODE", default="", help="how it holds device memory; default: as the coordinator says"
    )
    parser.add_argument("--label", metavar="TEXT", default="", help="its name in queues; default: the program's")
    parser.add_argument("--gpus", metavar="N", default="1", help="how many devices it sees (default 1)")
    parser.add_argument(
        "--place",
        metavar="WORD=NAME",
        action="append",
        default=[],
        help="where: device=, affinity=, anti_affinity= or exclusion=; repeatable, see docs/how-to/placement.md",
    )
    parser.add_argument("--simulate", action="store_true", default=None, help="use the simulated driver")
    parser.add_argument(
        "--new", action="store_true", help="a client of its own, also inside a shared notebook or another 'run'"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the program")


def main(args: argparse.Namespace) -> int:
    """Returns only when there is nothing to run: 2 bad values, 126 not executable, 127 not found."""
    try:
        place = quota_options.label_options(args.place)
        wanted = {name: getattr(args, name) for name in ("share", "limit", "memory", "resident", "service")}
        quota = quota_options.quota_text(**wanted, **place)
        quota = quota_options.with_inherited_quota(quota)
        mode = quota_options.parse_memory_mode(args.memory_mode)
        words = ["--gpus", str(args.gpus), *(["--simulate"] if args.simulate else [])]
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        parsed = launcher.parse([*words, "--", *command], sys.executable)
    except launcher.LauncherUsageError as error:
        hint = "jupyter gpushare run [OPTIONS] -- COMMAND ..."
        return _fail(str(error) if command else f"no command was given: {hint}", 2)
    except ValueError as error:
        return _fail(str(error), 2)
    if not args.new and os.environ.get("GPUSHARE_PREPARED") and os.environ.get("GPUSHARE_CLIENT"):
        return _run_inside_client(args, command)
    # The command as typed: here "python" is what the user's PATH says.
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
    """Return what of the quota has no effect."""
    if not env.get("GPUSHARE_CLIENT"):
        return []
    try:
        with Client(env["GPUSHARE_SOCKET"]) as coordinator:
            return list(coordinator.request(messages.SetQuota(client=env["GPUSHARE_CLIENT"], changes={}))["notes"])
    except CoordinatorError:
        return []


def _run_inside_client(args: argparse.Namespace, command: list[str]) -> int:
    """As a part of the client that this runs in."""
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
    if asked := [name for name, value in own.items() if value]:
        label = os.environ.get("GPUSHARE_LABEL") or os.environ["GPUSHARE_CLIENT"]
        return _fail(
            f"{', '.join(asked)}: this runs inside of {label!r} and is a part of that client, with its quota; "
            "with --new it becomes a client of its own",
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
