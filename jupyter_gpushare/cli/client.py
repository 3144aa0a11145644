"""`jupyter gpushare quota | hold | release | evict | suspend | resume CLIENT`: one's own clients, or for admins all."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .. import units
from ..wire import messages, quotas
from ..wire.client import Client, CoordinatorError
from . import without_coordinator
from .status import client_label


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of each of these sub-commands."""
    parser.add_argument("client", metavar="CLIENT", help="its label, or its id or the beginning of it")
    command = parser.prog.split()[-1]
    if command == "quota":
        parser.add_argument(
            "changes",
            nargs="*",
            metavar="KEY=VALUE",
            help="such as share=0.5 limit=0.9 memory=8GiB resident=2GiB class=offline; none: show it",
        )
    if command == "hold":
        parser.add_argument(
            "seconds",
            nargs="?",
            metavar="TIME",
            help="from now on, such as 90 or 5min; 0: no longer; default: the most",
        )
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """0, or 1 when no coordinator answers, 2 when it refuses."""
    try:
        with Client(args.socket) as connection:
            client = select_client(args.client, connection.request(messages.Status())["clients"])
            identity = client["id"]
            name = client_label(client)
            match args.command_name:
                case "quota":
                    changes = units.parse_pairs(" ".join(args.changes))
                    said = _quota_message(connection.request(messages.SetQuota(client=identity, changes=changes)))
                case "hold":
                    said = _hold_message(connection.request(messages.Hold(client=identity, seconds=args.seconds)))
                case "release":
                    said = _release_message(connection.request(messages.Release(client=identity)))
                case "evict":
                    said = _evict_message(connection.request(messages.Evict(client=identity)))
                case "suspend":
                    changed = connection.request(messages.Suspend(client=identity))["changed"]
                    said = "it gets no turns until it is resumed" if changed else "it is suspended already"
                case _:
                    changed = connection.request(messages.Resume(client=identity))["changed"]
                    said = "it takes part again" if changed else "it was not suspended"
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure(args.command_name, error, args.socket)
    print(f"{name}: {said}")
    return 0


def select_client(name: str, clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The client that is meant: by its id, its label, or the beginning of its id. Raises ValueError."""
    ways = (
        [client for client in clients if client["id"] == name],
        [client for client in clients if client["label"] == name],
        [client for client in clients if name and client["id"].startswith(name)],
    )
    found = next((way for way in ways if way), [])
    if len(found) == 1:
        return found[0]
    several = found or clients
    there = ", ".join(f"{_client_title(client)} ({client['id']})" for client in several) or "none"
    raise ValueError(
        f"{name!r} is {'several clients' if found else 'no client'}; {'they are' if found else 'there are'}: {there}"
    )


def _client_title(client: dict[str, Any]) -> str:
    return client["label"] or ("no label" if client.get("own", True) else f"a client of {client['user']}")


def _quota_message(quota: dict[str, Any]) -> str:
    """As it may be typed, and what to know about it."""
    total = quota.get("device_memory")
    whole = f"; memory=none is all of the device's, {units.format_size(total)}" if total else ""
    lines = [quotas.format_quota(quota) + (whole if quota["memory"] is None else "")]
    return "\n".join([*lines, *(f"note: {note}" for note in quota.get("notes", []))])


def _release_message(result: dict[str, Any]) -> str:
    turn, hold = result.get("turn", result["released"]), result.get("hold", False)
    if turn:
        return "its turn ends, and its hold" if hold else "its turn ends"
    return "its hold ends; it has no turn now" if hold else "it has no turn now, and holds nothing"


def _evict_message(result: dict[str, Any]) -> str:
    if not result["evicting"]:
        return "it has no memory on the device that could leave"
    return f"{units.format_size(result['bytes'])} leave the device, and come back with its next turn"


def _hold_message(result: dict[str, Any]) -> str:
    left = result["hold_seconds_left"]
    if left is None:
        return "it holds the GPU no longer"
    span = units.format_duration(left)
    return (
        f"it keeps the GPU for {span}"
        if result["running"]
        else f"it keeps the GPU once it has it, up to {span} from now"
    )
