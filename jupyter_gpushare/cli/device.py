"""Command `jupyter gpushare device UUID`, which takes a device out of use or puts a device back into use."""

from __future__ import annotations

import argparse
import sys

from ..wire import messages
from ..wire.client import Client, CoordinatorError
from . import without_coordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "device",
        metavar="UUID",
        help="UUID of the device, as 'status' shows it; that of a GPU means all its MIG slices",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--fail", metavar="REASON", help="take the device out of use for new clients, and show its clients the reason"
    )
    action.add_argument("--recover", action="store_true", help="put the device back into use")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Return 0, or 1 if no coordinator answers, or 2 if the coordinator refuses."""
    if args.fail is not None and not args.fail.strip():
        print(
            "jupyter gpushare device: error: --fail needs a reason, which the users of the device see",
            file=sys.stderr,
        )
        return 2
    try:
        with Client(args.socket) as client:
            result = client.request(messages.Device(device=args.device, failed=args.fail or ""))
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure("device", error, args.socket)
    clients = ", ".join(result["clients"]) or "none"
    print(f"{args.device}: {'out of use' if args.fail else 'in use again'}; clients on the device: {clients}")
    return 0
