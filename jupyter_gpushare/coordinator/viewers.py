"""Who may see what of a snapshot: one's own clients as they are, of others' what sharing with them needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from . import launch_limits
from .authority import Identity
from .peer import Peer
from .users import tenant_name

# A label is a notebook's path, cells are its own, and notes speak to the client's user: theirs alone. Admins are told
# which processes a client has: they are who is asked when a turn doesn't end.
_OWNERS: dict[str, Any] = {"label": "", "notes": [], "cell_ids": []}
_ADMINS: dict[str, Any] = {"processes": [], "kernel_pids": []}


class Views:
    """The views that users have of one snapshot. What several may see alike is encoded once.

    `owners`: the user of each client.
    """

    def __init__(self, status: Mapping[str, Any], owners: Mapping[str, str]) -> None:
        self.status = status  # the whole of it, which is shown to no user as it is
        self._owners = owners
        self._known = {client["id"]: client for client in status.get("clients", ())}
        self._clients: dict[tuple[str, bool, bool], msgspec.Raw] = {}  # by name, seen by its owner, by an admin
        self._views: dict[tuple[str, bool], msgspec.Raw] = {}  # by user: many servers may be one user's

    def of(self, peer: Peer | Identity) -> msgspec.Raw:
        """Return the snapshot for the user of `peer`, as JSON."""
        key = peer.user, peer.admin
        if key not in self._views:
            clients = [
                self._client(client, self._owners[client["id"]] == peer.user, peer.admin)
                for client in self.status["clients"]
            ]
            self._views[key] = msgspec.Raw(msgspec.json.encode(_shown(self.status, clients, peer)))
        return self._views[key]

    def _client(self, client: dict[str, Any], own: bool, admin: bool) -> msgspec.Raw:
        key = client["id"], own, admin
        if key not in self._clients:
            hidden = {} if own else _OWNERS if admin else {**_OWNERS, **_ADMINS}
            seen = {**client, **hidden, "limit_text": self._limit_text(client, own)}
            self._clients[key] = msgspec.Raw(msgspec.json.encode({**seen, "own": own, "may_change": own or admin}))
        return self._clients[key]

    def _limit_text(self, client: dict[str, Any], own: bool) -> str:
        """Only the owner of both clients sees the label of the one beside."""

        def name_of(identity: str) -> str:
            other = self._known.get(identity)
            if other is None:
                return "another client"
            if own and self._owners[identity] == self._owners[client["id"]]:
                return str(other["label"] or identity)
            return f"a client of {other['tenant']}"

        return launch_limits.text(client["limits"], name_of)


def _shown(status: Mapping[str, Any], clients: list[Any], peer: Peer | Identity) -> dict[str, Any]:
    name, admin = tenant_name(peer.user), peer.admin
    devices = [
        {
            **device,
            **{
                field: [_stranger(one, name if not admin else one["user"]) for one in device.get(field, ())]
                for field in ("outside", "locked_by")
            },
        }
        for device in status["devices"]
    ]
    # Admins ask for everybody's usage when they want it: a snapshot goes out ten times a second.
    about = status["coordinator"]
    about = {**about, "usage": [row for row in about.get("usage", ()) if row["user"] == name]}
    you = {"tenant": name, "admin": admin}
    return {**status, "devices": devices, "clients": clients, "coordinator": about, "you": you}


def _stranger(process: dict[str, Any], user: str | None) -> dict[str, Any]:
    """A process outside of sharing; whose it is, only if it is that user's."""
    return {**process, "user": user if process["user"] == user else None}
