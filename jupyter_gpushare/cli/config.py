"""`jupyter gpushare config [NAME [VALUE]]`: read or change a running coordinator's settings."""

from __future__ import annotations

import argparse
import json
import sys

from ..wire import messages
from ..wire.client import Client, CoordinatorError
from . import without_coordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `config` sub-command."""
    parser.add_argument("name", nargs="?", help="a setting, for example time_quantum; none: all of them")
    parser.add_argument("value", nargs="?", help="its new value, in force until the coordinator ends")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """0, or 1 when no coordinator answers, 2 when it refuses."""
    changes = {} if args.value is None else {args.name: args.value}
    try:
        with Client(args.socket) as client:
            settings = client.request(messages.Config(changes=changes))
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure("config", error, args.socket)
    if args.name is not None and args.name not in settings:
        print(
            f"jupyter gpushare config: unknown setting {args.name!r}: there are {', '.join(settings)}",
            file=sys.stderr,
        )
        return 2
    for name, value in settings.items():
        if args.name in (None, name):
            print(f"{name} = {json.dumps(value)}")
    return 0
