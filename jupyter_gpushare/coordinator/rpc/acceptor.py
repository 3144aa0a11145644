"""Where connections come in: who is there is found out, and that nobody has more of them than is fair."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable

from ...config.traits import GpuShare
from ..transport.connection import Connection
from ..transport.peer_identity import IdentificationFailed, PeerIdentifier
from ..transport.rate_limits import UserBudget, WindowCounter
from ..transport.responses import refuse
from .request_dispatcher import RequestDispatcher

_ACCEPT_PAUSE_SECONDS = 0.5  # seconds without accepting connections when the system has nothing left for them
_MAX_DROPPED_AT_ONCE = (
    16  # connections that are given up at once when there is no room: a process brings several descriptors
)
_MAX_ACCEPTED_AT_ONCE = 64  # connections that are accepted before others are heard again

log = logging.getLogger(__name__)


class ConnectionAcceptor:
    """All connections of one coordinator. `settings`: those in force."""

    def __init__(
        self, dispatcher: RequestDispatcher, identifier: PeerIdentifier, settings: Callable[[], GpuShare]
    ) -> None:
        self._dispatcher = dispatcher
        self._identifier = identifier
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[socket.socket, str] = {}
        self._connections: dict[Connection, None] = {}  # the newest last
        self._budgets: dict[str, UserBudget] = {}
        self._logged_rejections = WindowCounter(60.0, self._loop.time)  # refusals in the log, by user
        self._reserve_descriptor: int | None = _open_reserve_descriptor()

    def listen(self, listener: socket.socket, socket_user: str = "") -> None:
        """Take connections from `listener` on. `entrance`: the user whose socket it is; "": everybody's."""
        self._listeners[listener] = socket_user
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """No more of them; those that are there stay, unheard: what was agreed to from now on would not be kept."""
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
            log.warning("a connection is refused: %s", error)
            accepted.close()
            return
        budget = self._budget_of(identity.user)
        most = self._settings().max_connections
        budget.connections += 1
        connection = Connection(
            accepted, identity, self._dispatcher.on_line, self._on_closed, budget, lambda: self._settings().max_messages
        )
        self._connections[connection] = None
        self._dispatcher.on_connected(connection)
        if most and budget.connections > most:
            self._reject(connection, f"user {identity.user} has {most} connections already, the most it may have")

    def _budget_of(self, user: str) -> UserBudget:
        """Who has no connection is forgotten, but for who would begin anew by that."""
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

    def _reject(self, connection: Connection, why: str) -> None:
        if self._logged_rejections.count(connection.user) == 1:  # or the log would be what it floods
            log.warning("%s is sent away: %s", connection, why)
        refuse(connection, 0, "too_many", why)
        connection.drop()

    def _on_accept_error(self, listener: socket.socket, error: OSError) -> None:
        """No connection can be taken. If that is for want of descriptors, whoever has the most of them gives one up:
        else one user who takes all of them would keep out everybody."""
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
        log.warning("a connection was not accepted: %s", error)
        self._loop.remove_reader(listener)  # it would be readable at once, again and again
        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, listener)
        self._reserve_descriptor = (
            self._reserve_descriptor if self._reserve_descriptor is not None else _open_reserve_descriptor()
        )

    def _connections_to_drop(self) -> list[Connection]:
        """Some connections of the user who has the most: first such as no process and no kernel depends on."""
        others = list(self._connections)[:-1]  # not the one that has just come
        counts = Counter(connection.user for connection in others)
        if not counts:
            return list(self._connections)
        ((greediest, _),) = counts.most_common(1)
        known = [connection for connection in reversed(others) if connection.user == greediest]
        return sorted(known, key=lambda connection: not self._dispatcher.is_unidentified(connection))[
            :_MAX_DROPPED_AT_ONCE
        ]

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)


def _open_reserve_descriptor() -> int | None:
    """A descriptor to give up when there are no others; None if there are none now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
