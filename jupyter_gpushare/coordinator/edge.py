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

from ..config.traits import GpuShare
from .authority import Authority, Unidentified
from .limits import Ledger, Window
from .peer import Peer
from .replies import refuse
from .service import Service

_BREATHER = 0.5  # seconds without accepting connections when the system has nothing left for them
_ROOM = 16  # connections that are given up at once when there is no room: a process brings several descriptors
_BATCH = 64  # connections that are accepted before others are heard again

log = logging.getLogger(__name__)


class Edge:
    """All connections of one coordinator. `settings`: those in force."""

    def __init__(self, service: Service, authority: Authority, settings: Callable[[], GpuShare]) -> None:
        self._service = service
        self._authority = authority
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[socket.socket, str] = {}
        self._peers: dict[Peer, None] = {}  # the newest last
        self._ledgers: dict[str, Ledger] = {}
        self._said = Window(60.0, self._loop.time)  # refusals in the log, by user
        self._spare: int | None = _spare()

    def listen(self, listener: socket.socket, entrance: str = "") -> None:
        """Take connections from `listener` on. `entrance`: the user whose socket it is; "": everybody's."""
        self._listeners[listener] = entrance
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """No more of them; those that are there stay, unheard: what was agreed to from now on would not be kept."""
        for peer in self._peers:
            peer.silence()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._is_full(listener, error)
                return
            self._take(connection, self._listeners[listener])

    def _take(self, connection: socket.socket, entrance: str) -> None:
        try:
            identity = self._authority.identify(connection, entrance)
        except Unidentified as error:
            log.warning("a connection is refused: %s", error)
            connection.close()
            return
        ledger = self._ledger(identity.user)
        most = self._settings().max_connections
        ledger.connections += 1
        peer = Peer(
            connection, identity, self._service.line, self._ended, ledger, lambda: self._settings().max_messages
        )
        self._peers[peer] = None
        self._service.connected(peer)
        if most and ledger.connections > most:
            self._send_away(peer, f"user {identity.user} has {most} connections already, the most it may have")

    def _ledger(self, user: str) -> Ledger:
        """Who has no connection is forgotten, but for who would begin anew by that."""
        if user not in self._ledgers:
            now = self._loop.time()
            for other in [one for one, ledger in self._ledgers.items() if ledger.is_blank(now)]:
                del self._ledgers[other]
            self._ledgers[user] = Ledger()
        return self._ledgers[user]

    def _ended(self, peer: Peer) -> None:
        del self._peers[peer]
        self._ledgers[peer.user].connections -= 1
        self._service.ended(peer)

    def _send_away(self, peer: Peer, why: str) -> None:
        if self._said.count(peer.user) == 1:  # or the log would be what it floods
            log.warning("%s is sent away: %s", peer, why)
        refuse(peer, 0, "too_many", why)
        peer.drop()

    def _is_full(self, listener: socket.socket, error: OSError) -> None:
        """No connection can be taken. If that is for want of descriptors, whoever has the most of them gives one up:
        else one user who takes all of them would keep out everybody."""
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                self._take(connection, self._listeners[listener])
            for peer in self._losers():
                self._send_away(peer, "no descriptors are left, and this user has the most connections")
            self._spare = _spare()
            return
        log.warning("a connection was not accepted: %s", error)
        self._loop.remove_reader(listener)  # it would be readable at once, again and again
        self._loop.call_later(_BREATHER, self._resume, listener)
        self._spare = self._spare if self._spare is not None else _spare()

    def _losers(self) -> list[Peer]:
        """Some connections of the user who has the most: first such as no process and no kernel depends on."""
        others = list(self._peers)[:-1]  # not the one that has just come
        counts = Counter(peer.user for peer in others)
        if not counts:
            return list(self._peers)
        ((greediest, _),) = counts.most_common(1)
        known = [peer for peer in reversed(others) if peer.user == greediest]
        return sorted(known, key=lambda peer: not self._service.is_stranger(peer))[:_ROOM]

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)


def _spare() -> int | None:
    """A descriptor to give up when there are no others; None if there are none now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
