"""Who may ask for what: a client's owner for the client, admins for everything."""

from __future__ import annotations

from ....core.base.errors import UnknownClient
from ...clients.client_runtime import ClientRuntime
from ...engine.coordinator import Coordinator
from ...transport.connection import Connection


def client_owned_by(coordinator: Coordinator, connection: Connection, client: str) -> ClientRuntime:
    """The client, if this connection may change it. Raises UnknownClient and PermissionError."""
    known = coordinator.scheduler.clients.get(client)
    if known is None or client not in coordinator.runtimes:
        raise UnknownClient(f"no client {client!r} is known here")
    if not connection.admin and known.user != connection.user:
        raise PermissionError(f"client {client!r} belongs to another user")
    return coordinator.runtimes[client]


def require_admin(connection: Connection, action: str) -> None:
    """Raises PermissionError for anybody else; `doing` is what they would do: "stop it"."""
    if not connection.admin:
        raise PermissionError(f"only admins of this coordinator {action}")
