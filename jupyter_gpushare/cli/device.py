"""`jupyter gpushare device UUID [--fail REASON]`: take a device out of use, or into use again."""

from __future__ import annotations

import argparse
import sys

from ..wire import messages
from ..wire.client import Client, CoordinatorError
from . import without_coordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `device` sub-command."""
    parser.add_argument("device", metavar="UUID", help="the device, as `status` names it")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fail", metavar="REASON", help="new clients get other devices; who is there is told")
    what.add_argument("--recover", action="store_true", help="it is to be used again")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """0, or 1 when no coordinator answers, 2 when it refuses."""
    if args.fail is not None and not args.fail.strip():
        print(
            "jupyter gpushare device: error: --fail needs a reason, which is what people there are told",
            file=sys.stderr,
        )
        return 2
    try:
        with Client(args.socket) as client:
            result = client.request(messages.Device(device=args.device, failed=args.fail or ""))
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure("device", error, args.socket)
    there = ", ".join(result["clients"]) or "none"
    print(f"{args.device}: {'out of use' if args.fail else 'in use again'}; clients there: {there}")
    return 0
