"""Connections of processes and kernels: what each is since its hello or attach, and what it says from then on."""

from __future__ import annotations

import logging
from typing import Any

from ..core import events as ev
from ..core.errors import IllegalEvent, Refused
from ..wire import messages
from ..wire.client import encode
from .brought import BadHello
from .daemon import Daemon
from .handlers.clients import Clients
from .handlers.quotas import Quotas
from .inspection import Inspections
from .members import Member
from .peer import Peer
from .ports import ProcessPort
from .replies import refuse

MAX_CELLS = 1024

log = logging.getLogger(__name__)


class Session:
    """What a connection has become: a process, a kernel, or neither."""

    def __init__(self) -> None:
        self.port: ProcessPort | None = None
        self.member: Member | None = None


class Sessions:
    """Of all connections of one daemon."""

    def __init__(self, daemon: Daemon, clients: Clients, quotas: Quotas, inspections: Inspections) -> None:
        self._daemon = daemon
        self._clients = clients
        self._quotas = quotas
        self._inspections = inspections
        self._sessions: dict[Peer, Session] = {}

    def begin(self, peer: Peer) -> None:
        self._sessions[peer] = Session()

    def is_stranger(self, peer: Peer) -> bool:
        return self._sessions[peer].member is None

    def end(self, peer: Peer) -> None:
        session = self._sessions.pop(peer, Session())
        if session.port:
            self._daemon.registry.leave(session.port)
        elif session.member:
            self._quotas.end_cell(peer, session.member)
            for request in session.member.kernels.pop(peer, {}):
                self._daemon.feed(ev.CellEnded(session.member.client, request))
            self._daemon.registry.maybe_forget(session.member)

    def take(self, peer: Peer, message: Any) -> bool:
        """False: the message is no process's or kernel's. Raises IllegalEvent for one that cannot come now."""
        session = self._sessions[peer]
        if isinstance(message, messages.Details):
            self._inspections.answer(self._port(peer, "details"), message)
        elif isinstance(message, messages.Hello):
            self._hello(peer, session, message)
        elif isinstance(message, messages.Attach):
            self._attach(peer, session, message)
        elif isinstance(message, messages.Cell):
            self._cell(peer, session, message)
        else:
            return False
        return True

    def bell(self, peer: Peer) -> None:
        """The page of the process says something new. Raises IllegalEvent."""
        port, member = self._port(peer, "doorbell"), self._sessions[peer].member
        if member:
            self._daemon.levels.look(member)
        self._daemon.look_at_page(port)

    def _port(self, peer: Peer, what: str) -> ProcessPort:
        port = self._sessions[peer].port
        if port is None:
            raise IllegalEvent(f"{what} before hello")
        return port

    def _hello(self, peer: Peer, session: Session, hello: messages.Hello) -> None:
        if session.port or session.member:
            raise IllegalEvent("a second hello or attach on one connection")
        known = hello.client in self._daemon.members
        try:
            member = self._clients.member(peer, hello)
            session.port, instead = self._daemon.registry.join(member, peer, hello)
        except (PermissionError, BadHello, Refused) as error:
            log.warning("%s: hello refused: %s", peer, error)
            refuse(peer, 0, _reason(error), str(error))
            peer.drop()
            if not known and hello.client in self._daemon.members:
                member.forgotten = True
                self._daemon.registry.maybe_forget(member)
            return
        session.member = member
        self._daemon.registry.maybe_forget(member)
        if instead is None:
            peer.send(encode(messages.Welcome()))
        else:
            peer.send(encode(messages.Join()), [instead])

    def _attach(self, peer: Peer, session: Session, attach: messages.Attach) -> None:
        if session.port or session.member:
            raise IllegalEvent("a second hello or attach on one connection")
        try:
            session.member = self._clients.member(peer, attach)
        except (PermissionError, Refused) as error:
            refuse(peer, 0, _reason(error), str(error))
            peer.drop()
            return
        session.member.kernels[peer] = {}
        self._daemon.registry.maybe_forget(session.member)
        peer.send(encode(messages.Welcome()))

    def _cell(self, peer: Peer, session: Session, cell: messages.Cell) -> None:
        if session.member is None or peer not in session.member.kernels:
            raise IllegalEvent("cell before attach")
        requests = session.member.kernels[peer]
        if cell.state == "end":
            requests.pop(cell.request, None)
            self._quotas.end_cell(peer, session.member, cell.request)
            self._daemon.feed(ev.CellEnded(session.member.client, cell.request))
        elif len(requests) < MAX_CELLS:
            requests[cell.request] = cell.cell_id
            self._daemon.feed(ev.CellStarted(session.member.client, cell.request))


def _reason(error: PermissionError | BadHello | Refused) -> str:
    """For programs."""
    if isinstance(error, PermissionError):
        return "forbidden"
    return error.reason if isinstance(error, Refused) else "invalid"
