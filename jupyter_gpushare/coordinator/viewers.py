"""Who may see what of a snapshot: one's own clients as they are, of others' what sharing with them needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..wire import messages
from ..wire.client import encode
from .authority import Identity
from .peer import Peer
from .users import tenant_name

# A label is a notebook's path, cells are its own, and notes speak to the client's user: theirs alone. Admins are told
# which processes a client has: they are who is asked when a turn doesn't end.
_OWNERS: dict[str, Any] = {"label": "", "notes": [], "cell_ids": []}
_ADMINS: dict[str, Any] = {"processes": [], "kernel_pids": []}


def seen_by(status: Mapping[str, Any], owners: Mapping[str, str], peer: Peer | Identity) -> dict[str, Any]:
    """The snapshot `status` for the user of `peer`. `owners`: of each client, its user."""
    clients = [_client(client, own, peer.admin) for client, own in _whose(status, owners, peer)]
    return _shown(status, clients, peer)


class Lines:
    """The lines that tell followers one snapshot. What several may see alike is written once: each client may be
    another user's, and each of these a follower."""

    def __init__(self, status: Mapping[str, Any], owners: Mapping[str, str]) -> None:
        self._status = status
        self._owners = owners
        self._clients: dict[tuple[str, bool, bool], msgspec.Raw] = {}  # by name, seen by its owner, by an admin
        self._lines: dict[tuple[str, bool], bytes] = {}  # by user: many servers may be one user's

    def of(self, peer: Peer | Identity) -> bytes:
        key = peer.user, peer.admin
        if key not in self._lines:
            clients = [self._client(one, own, peer.admin) for one, own in _whose(self._status, self._owners, peer)]
            self._lines[key] = encode(messages.Snapshot(status=_shown(self._status, clients, peer)))
        return self._lines[key]

    def _client(self, client: dict[str, Any], own: bool, admin: bool) -> msgspec.Raw:
        key = client["id"], own, admin
        if key not in self._clients:
            self._clients[key] = msgspec.Raw(msgspec.json.encode(_client(client, own, admin)))
        return self._clients[key]


def _whose(
    status: Mapping[str, Any], owners: Mapping[str, str], peer: Peer | Identity
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each client, and whether it is that peer's user's own."""
    return ((client, owners[client["id"]] == peer.user) for client in status["clients"])


def _client(client: dict[str, Any], own: bool, admin: bool) -> dict[str, Any]:
    hidden = {} if own else _OWNERS if admin else {**_OWNERS, **_ADMINS}
    return {**client, **hidden, "own": own, "may_change": own or admin}


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
