"""Authorization of requests: a user for its own clients, an admin for all clients and the coordinator."""

from __future__ import annotations

from ....core.base.errors import UnknownClient
from ...clients.client_runtime import ClientRuntime
from ...engine.coordinator import Coordinator
from ...transport.connection import Connection


def client_owned_by(coordinator: Coordinator, connection: Connection, client: str) -> ClientRuntime:
    """Return the client if this connection may change it. Raises UnknownClient and PermissionError."""
    known = coordinator.scheduler.clients.get(client)
    if known is None or client not in coordinator.runtimes:
        raise UnknownClient(f"this coordinator has no client {client!r}")
    if not connection.admin and known.user != connection.user:
        raise PermissionError(f"client {client!r} belongs to another user: only that user and admins may do this")
    return coordinator.runtimes[client]


def require_admin(connection: Connection, action: str) -> None:
    """Raise PermissionError unless the connection is an admin's; `action` completes "only admins may …"."""
    if not connection.admin:
        raise PermissionError(f"only admins of this coordinator may {action}")
