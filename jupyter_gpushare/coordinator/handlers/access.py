"""Who may ask for what: a client's owner for the client, admins for everything."""

from __future__ import annotations

from ...core.errors import UnknownClient
from ..daemon import Daemon
from ..members import Member
from ..peer import Peer


def owned(daemon: Daemon, peer: Peer, client: str) -> Member:
    """The client, if this peer may change it. Raises UnknownClient and PermissionError."""
    known = daemon.scheduler.clients.get(client)
    if known is None or client not in daemon.members:
        raise UnknownClient(f"no client {client!r} is known here")
    if not peer.admin and known.tenant != peer.user:
        raise PermissionError(f"client {client!r} belongs to another user")
    return daemon.members[client]


def admins_only(peer: Peer, doing: str) -> None:
    """Raises PermissionError for anybody else; `doing` is what they would do: "stop it"."""
    if not peer.admin:
        raise PermissionError(f"only admins of this coordinator {doing}")
