"""Who may see what of a snapshot: one's own clients as they are, of others' what sharing with them needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .authority import Identity
from .peer import Peer
from .users import tenant_name

# A label is a notebook's path, cells are its own, and notes speak to the client's user: theirs alone. Admins are told
# which processes a client has: they are who is asked when a turn doesn't end.
_OWNERS: dict[str, Any] = {"label": "", "notes": [], "cell_ids": []}
_ADMINS: dict[str, Any] = {"processes": [], "kernel_pids": []}


def seen_by(status: Mapping[str, Any], owners: Mapping[str, str], peer: Peer | Identity) -> dict[str, Any]:
    """The snapshot `status` for the user of `peer`. `owners`: of each client, its user."""
    name, admin = tenant_name(peer.user), peer.admin
    clients = []
    for client in status["clients"]:
        own = owners[client["id"]] == peer.user
        hidden = {} if own else _OWNERS if admin else {**_OWNERS, **_ADMINS}
        clients.append({**client, **hidden, "own": own, "may_change": own or admin})
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
