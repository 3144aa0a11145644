"""Listener that accepts connections, identifies their users and limits the connections of each user."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ...config.traits import GpuShare
from ..transport.connection import Connection, refuse
from ..transport.peer_identity import IdentificationFailed, PeerIdentifier
from ..transport.rate_limits import UserBudget, WindowCounter

_ACCEPT_PAUSE_SECONDS = 0.5  # without accepting when the system has no resources for another connection
_MAX_DROPPED_AT_ONCE = 16  # connections when no descriptors are left, because one process needs several descriptors
_MAX_ACCEPTED_AT_ONCE = 64  # connections before the event loop reads from other connections

log = logging.getLogger(__name__)


class ConnectionHandler(Protocol):
    """Handler of the lines of all connections."""

    def on_connected(self, connection: Connection) -> None:
        """Take a new connection."""

    def on_line(self, connection: Connection, line: bytes) -> None:
        """Handle one line."""

    def on_closed(self, connection: Connection) -> None:
        """Remove a connection that has ended."""

    def is_unidentified(self, connection: Connection) -> bool:
        """Return whether the connection is that of no process or kernel."""


class ConnectionAcceptor:
    """Acceptor of all connections of one daemon. `settings` returns the settings in force."""

    def __init__(
        self, dispatcher: ConnectionHandler, identifier: PeerIdentifier, settings: Callable[[], GpuShare]
    ) -> None:
        self._dispatcher = dispatcher
        self._identifier = identifier
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[socket.socket, str] = {}
        self._connections: dict[Connection, None] = {}  # the newest last
        self._budgets: dict[str, UserBudget] = {}
        self._logged_rejections = WindowCounter(60.0, self._loop.time)  # by user
        self._reserve_descriptor: int | None = _open_reserve_descriptor()

    def listen(self, listener: socket.socket, socket_user: str = "") -> None:
        """Accept connections from `listener`. `socket_user`: the user whose socket it is; "": a socket of all users."""
        self._listeners[listener] = socket_user
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting and reading; the connections stay open.

        A request that the coordinator granted from now on would not be saved.
        """
        for connection in self._connections:
            connection.mute()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._reserve_descriptor is not None:
            os.close(self._reserve_descriptor)
            self._reserve_descriptor = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_accept_error(listener, error)
                return
            self._admit(accepted, self._listeners[listener])

    def _admit(self, accepted: socket.socket, socket_user: str) -> None:
        try:
            identity = self._identifier.identify(accepted, socket_user)
        except IdentificationFailed as error:
            log.warning("refusing a connection: %s", error)
            accepted.close()
            return
        budget = self._budget_of(identity.user)
        limit = self._settings().max_connections
        budget.connections += 1
        connection = Connection(
            accepted, identity, self._dispatcher.on_line, self._on_closed, budget, lambda: self._settings().max_messages
        )
        self._connections[connection] = None
        self._dispatcher.on_connected(connection)
        if limit and budget.connections > limit:
            self._reject(connection, f"user {identity.user} has {limit} connections already, the most a user may have")

    def _budget_of(self, user: str) -> UserBudget:
        """Return the budget of a user.

        Budgets of users without connections are removed, but not those whose removal would refill them.
        """
        if user not in self._budgets:
            now = self._loop.time()
            for other in [one for one, budget in self._budgets.items() if budget.is_idle(now)]:
                del self._budgets[other]
            self._budgets[user] = UserBudget()
        return self._budgets[user]

    def _on_closed(self, connection: Connection) -> None:
        del self._connections[connection]
        self._budgets[connection.user].connections -= 1
        self._dispatcher.on_closed(connection)

    def _reject(self, connection: Connection, message: str) -> None:
        if self._logged_rejections.count(connection.user) == 1:  # a flood of connections must not fill the log
            log.warning("dropping the connection of %s: %s", connection, message)
        refuse(connection, 0, "too_many", message)
        connection.drop()

    def _on_accept_error(self, listener: socket.socket, error: OSError) -> None:
        """Handle a failed accept.

        Without free descriptors, drop connections of the user that has the most of them: otherwise one user could take
        all descriptors and lock out all other users.
        """
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._reserve_descriptor is not None:
            os.close(self._reserve_descriptor)
            self._reserve_descriptor = None
            with contextlib.suppress(OSError):
                accepted, _ = listener.accept()
                self._admit(accepted, self._listeners[listener])
            for connection in self._connections_to_drop():
                self._reject(connection, "no descriptors are left, and this user has the most connections")
            self._reserve_descriptor = _open_reserve_descriptor()
            return
        log.warning("pausing for %.1f s, because a connection cannot be accepted: %s", _ACCEPT_PAUSE_SECONDS, error)
        self._loop.remove_reader(listener)  # the socket stays readable, so the event loop would spin
        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, listener)
        self._reserve_descriptor = (
            self._reserve_descriptor if self._reserve_descriptor is not None else _open_reserve_descriptor()
        )

    def _connections_to_drop(self) -> list[Connection]:
        """Return connections of the user that has the most, first those without a process or kernel."""
        others = list(self._connections)[:-1]  # without the newest
        counts = Counter(connection.user for connection in others)
        if not counts:
            return list(self._connections)
        ((user, _),) = counts.most_common(1)
        candidates = [connection for connection in reversed(others) if connection.user == user]
        return sorted(candidates, key=lambda connection: not self._dispatcher.is_unidentified(connection))[
            :_MAX_DROPPED_AT_ONCE
        ]

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)


def _open_reserve_descriptor() -> int | None:
    """Open a descriptor that can be closed when no other is left; return None if none is left now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
