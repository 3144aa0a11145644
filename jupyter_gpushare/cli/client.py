"""Commands `jupyter gpushare quota | hold | release | evict | move | suspend | resume CLIENT`.

Users can change their own clients, and admins all clients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .. import units
from ..wire import messages, quotas
from ..wire.client import Client, CoordinatorError, Unreachable
from . import without_coordinator
from .status import client_label, is_connected

_MOVE_SECONDS = 3600.0  # for a turn on both devices, and for the move


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of each of the commands."""
    parser.add_argument("client", metavar="CLIENT", help="label of the client, or its id or the beginning of its id")
    command = parser.prog.split()[-1]
    if command == "quota":
        parser.add_argument(
            "changes",
            nargs="*",
            default=[],  # without a default, argparse names the argument among the required ones
            metavar="KEY=VALUE",
            help="changes such as share=0.5 limit=0.9 memory=8GiB resident=2GiB class=offline; default: show the quota",
        )
    if command == "move":
        parser.add_argument("device", metavar="DEVICE", help="UUID, index or name of the device to move to")
    if command == "hold":
        parser.add_argument(
            "seconds",
            nargs="?",
            metavar="TIME",
            help="time from now, such as 90 or 5min; 0 ends the hold; default: as long as the settings allow",
        )
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Return 0, or 1 if no coordinator answers, or 2 if the coordinator refuses."""
    try:
        with Client(args.socket, timeout=_MOVE_SECONDS if args.command_name == "move" else 5.0) as connection:
            client = select_client(args.client, connection.request(messages.Status())["clients"])
            identity = client["id"]
            name = client_label(client)
            match args.command_name:
                case "quota":
                    changes = units.parse_pairs(" ".join(args.changes))
                    message = _quota_message(connection.request(messages.SetQuota(client=identity, changes=changes)))
                case "hold":
                    message = _hold_message(connection.request(messages.Hold(client=identity, seconds=args.seconds)))
                case "release":
                    message = _release_message(connection.request(messages.Release(client=identity)))
                case "evict":
                    message = _evict_message(connection.request(messages.Evict(client=identity)))
                case "move":
                    moved = _move(connection, identity, args.device)
                    message = (
                        f"the client is on device {moved['device']} now; memory on the host returns with its next turn"
                    )
                case "suspend":
                    changed = connection.request(messages.Suspend(client=identity))["changed"]
                    message = (
                        "the client gets no turns until you resume it" if changed else "the client is suspended already"
                    )
                case _:
                    changed = connection.request(messages.Resume(client=identity))["changed"]
                    message = "the client takes turns again" if changed else "the client was not suspended"
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure(args.command_name, error, args.socket)
    print(f"{name}: {message}")
    return 0


def _move(connection: Client, client: str, device: str) -> Any:
    try:
        return connection.request(messages.Move(client=client, device=device))
    except KeyboardInterrupt:
        print(
            "jupyter gpushare move: interrupted, so the move is withdrawn, unless the driver has begun it; "
            "'jupyter gpushare status' shows the state and the device of the client",
            file=sys.stderr,
        )
        raise
    except Unreachable as error:
        raise Unreachable(
            f"{error}; the client has moved only if the driver had begun the move: as soon as a coordinator answers, "
            "'jupyter gpushare status' shows the device of the client"
        ) from None


def select_client(name: str, clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the client with this id, this label, or this beginning of its id. Raise ValueError.

    Among several clients, one with a connected process counts more than clients whose kernels may have ended.
    """
    matches = (
        [client for client in clients if client["id"] == name],
        [client for client in clients if client["label"] == name],
        [client for client in clients if name and client["id"].startswith(name)],
    )
    found = next((match for match in matches if match), [])
    for candidates in (found, [client for client in found if is_connected(client)]):
        if len(candidates) == 1:
            return candidates[0]
    listed = ", ".join(f"{_client_title(client)} ({client['id']})" for client in found or clients) or "none"
    if found:
        raise ValueError(f"{name!r} matches several clients, so give the id of one of them: {listed}")
    raise ValueError(f"no client has the label or id {name!r}; the clients are: {listed}")


def _client_title(client: dict[str, Any]) -> str:
    return client["label"] or ("no label" if client.get("own", True) else f"a client of {client['user']}")


def _quota_message(quota: dict[str, Any]) -> str:
    """Format a quota in the form of the arguments, with its notes."""
    total = quota.get("device_memory")
    all_memory = f"; memory=none is all of the device's memory, {units.format_size(total)}" if total else ""
    lines = [quotas.format_quota(quota) + (all_memory if quota["memory"] is None else "")]
    return "\n".join([*lines, *(f"note: {note}" for note in quota.get("notes", []))])


def _release_message(result: dict[str, Any]) -> str:
    turn, hold = result.get("turn", result["released"]), result.get("hold", False)
    if turn:
        return "its turn and its hold end" if hold else "its turn ends"
    return "its hold ends; the client has no turn at present" if hold else "the client has no turn and no hold"


def _evict_message(result: dict[str, Any]) -> str:
    if not result["evicting"]:
        return "the client has no memory on the device that can be moved"
    return f"{units.format_size(result['bytes'])} move off the device and return with the next turn"


def _hold_message(result: dict[str, Any]) -> str:
    left = result["hold_seconds_left"]
    if left is None:
        return "the client no longer holds the GPU"
    span = units.format_duration(left)
    if result["running"]:
        return f"the client keeps the GPU for {span}, also between cells"
    return f"when the client gets the GPU, it keeps the GPU up to {span} from now"
