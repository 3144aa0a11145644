"""Command `jupyter gpushare config [NAME [VALUE]]`, which reads or changes the settings of a running coordinator."""

from __future__ import annotations

import argparse
import json
import sys

from ..settings.table import SETTINGS
from ..wire import messages
from ..wire.client import Client, CoordinatorError
from . import without_coordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", nargs="?", help="a setting, such as time_quantum, or devices.0.policy; default: all")
    parser.add_argument("value", nargs="?", help="new value, in force until the coordinator stops")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Return 0, or 1 if no coordinator answers, or 2 if the coordinator refuses."""
    changes = {} if args.value is None else {args.name: args.value}
    try:
        with Client(args.socket) as client:
            settings = client.request(messages.Config(changes=changes))
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure("config", error, args.socket)
    if args.name is not None and args.name.startswith("devices."):
        args.name = "devices"
    if args.name is not None and args.name not in settings:
        print(
            f"jupyter gpushare config: unknown setting {args.name!r}: allowed are {', '.join(settings)}",
            file=sys.stderr,
        )
        return 2
    for name, value in settings.items():
        if args.name in (None, name):
            print(f"{name} = {json.dumps(value)}")
    for setting in (name.rpartition(".")[2] for name in changes):
        if setting in SETTINGS and SETTINGS[setting].note:
            print(f"note: {SETTINGS[setting].note}")
    return 0
