"""Restriction of a snapshot to the fields that a user may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..host.user_database import user_name
from ..transport.connection import Connection
from ..transport.peer_identity import Identity
from . import launch_limits

# Only the owner sees the label (a notebook's path), the cells, the progress with its text, and the notes, which address
# the client's user. Admins see the processes of a client, because admins deal with turns that do not end.
_OWNER_FIELDS: dict[str, Any] = {
    "label": "",
    "notes": [],
    "wait_reason": "",
    "cell_ids": [],
    "progress": None,
    "progress_text": "",
}
_ADMIN_FIELDS: dict[str, Any] = {"processes": [], "kernel_pids": [], "cgroup": None}


class SnapshotEncoder:
    """Encoder of one snapshot for different users, which encodes each part once for all users that see it alike.

    `owners` has the user of each client.
    """

    def __init__(self, status: Mapping[str, Any], owners: Mapping[str, str]) -> None:
        self.status = status  # the whole snapshot, which no user may see
        self._owners = owners
        self._clients_by_id = {client["id"]: client for client in status.get("clients", ())}
        self._encoded_clients: dict[tuple[str, bool, bool], msgspec.Raw] = {}  # by id, is owner, is admin
        self._encoded_snapshots: dict[tuple[str, bool], msgspec.Raw] = {}  # by user, is admin

    def for_user(self, connection: Connection | Identity) -> msgspec.Raw:
        """Return the snapshot as JSON for the user of `connection`."""
        key = connection.user, connection.admin
        if key not in self._encoded_snapshots:
            clients = [
                self._client(client, self._owners[client["id"]] == connection.user, connection.admin)
                for client in self.status["clients"]
            ]
            self._encoded_snapshots[key] = msgspec.Raw(msgspec.json.encode(_redact(self.status, clients, connection)))
        return self._encoded_snapshots[key]

    def _client(self, client: dict[str, Any], own: bool, admin: bool) -> msgspec.Raw:
        key = client["id"], own, admin
        if key not in self._encoded_clients:
            hidden = {} if own else _OWNER_FIELDS if admin else {**_OWNER_FIELDS, **_ADMIN_FIELDS}
            limits = self._limits(client, own)
            text = "; ".join(limit["text"] for limit in limits)
            visible = {**client, **hidden, "limits": limits, "limit_text": text}
            self._encoded_clients[key] = msgspec.Raw(
                msgspec.json.encode({**visible, "own": own, "may_change": own or admin})
            )
        return self._encoded_clients[key]

    def _limits(self, client: dict[str, Any], own: bool) -> list[dict[str, Any]]:
        """Return the limits with their texts. Only the owner of both clients sees the label of a colocated client."""

        def name_of(identity: str) -> str:
            other = self._clients_by_id.get(identity)
            if other is None:
                return "another client"
            if own and self._owners[identity] == self._owners[client["id"]]:
                return str(other["label"] or identity)
            return f"a client of {other['user']}"

        return [{**limit, "text": launch_limits.describe_limit(limit, name_of)} for limit in client["limits"]]


def _redact(status: Mapping[str, Any], clients: list[Any], connection: Connection | Identity) -> dict[str, Any]:
    name, admin = user_name(connection.user), connection.admin
    devices = [
        {
            **device,
            **{
                field: [_redact_process(one, name if not admin else one["user"]) for one in device.get(field, ())]
                for field in ("foreign_processes", "locked_by")
            },
        }
        for device in status["devices"]
    ]
    # Even admins get only their own usage here, because snapshots are frequent. Admins may query all usage.
    coordinator = status["coordinator"]
    coordinator = {**coordinator, "usage": [row for row in coordinator.get("usage", ()) if row["user"] == name]}
    viewer = {"user": name, "admin": admin}
    return {**status, "devices": devices, "clients": clients, "coordinator": coordinator, "viewer": viewer}


def _redact_process(process: dict[str, Any], user: str | None) -> dict[str, Any]:
    """Return a foreign process, with its user only if that is `user`."""
    return {**process, "user": user if process["user"] == user else None}
