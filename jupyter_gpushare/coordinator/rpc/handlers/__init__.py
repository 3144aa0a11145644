"""Handlers of requests: one file for each subject, with a table of the messages that the file answers.

A handler takes the connection and its message and returns the result, or DEFERRED_REPLY. A handler raises Refused for a
request that cannot be granted, and PermissionError for a request that this user may not make. Both errors change
nothing.

A user may make requests about its own clients, and an admin about all clients and the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ....core.base.errors import UnknownClient
from ...clients.client_runtime import ClientRuntime
from ...engine.state import CoordinatorState
from ...transport.connection import Connection

Handler: TypeAlias = Callable[[Connection, Any], Any]

DEFERRED_REPLY = object()  # result of a handler that sends the reply later


def client_owned_by(state: CoordinatorState, connection: Connection, client: str) -> ClientRuntime:
    """Return the client if this connection may change it. Raises UnknownClient and PermissionError."""
    known = state.scheduler.clients.get(client)
    if known is None or client not in state.runtimes:
        raise UnknownClient(f"this coordinator has no client {client!r}")
    if not connection.admin and known.user != connection.user:
        raise PermissionError(f"client {client!r} belongs to another user: only that user and admins may do this")
    return state.runtimes[client]


def require_admin(connection: Connection, action: str) -> None:
    """Raise PermissionError unless the connection is an admin's; `action` completes "only admins may …"."""
    if not connection.admin:
        raise PermissionError(f"only admins of this coordinator may {action}")
