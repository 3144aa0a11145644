"""Connections of processes and kernels: what each is since its hello or attach, and what it says from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..core import events as ev
from ..core.errors import IllegalEvent, Refused
from ..wire import messages
from ..wire.client import encode
from .brought import BadHello
from .daemon import Daemon
from .handlers.clients import Clients
from .inspection import Inspections
from .members import Member
from .peer import Peer
from .ports import ProcessPort
from .replies import refuse
from .sizes import worded

MAX_CELLS = 1024

log = logging.getLogger(__name__)


class Session:
    """What a connection has become: a process, a kernel, or neither."""

    def __init__(self) -> None:
        self.port: ProcessPort | None = None
        self.member: Member | None = None


class Sessions:
    """Of all connections of one daemon."""

    def __init__(self, daemon: Daemon, clients: Clients, inspections: Inspections) -> None:
        self._daemon = daemon
        self._clients = clients
        self._inspections = inspections
        self._sessions: dict[Peer, Session] = {}
        self._process_messages: dict[type, Callable[[ProcessPort, Any], ev.Event]] = {
            messages.Wants: lambda port, _: ev.Wanted(port.number),
            messages.Unwants: lambda port, _: ev.Unwanted(port.number),
            messages.Drained: lambda port, message: ev.Drained(port.number, message.epoch),
            messages.Evicting: lambda port, message: ev.Evicting(port.number, message.epoch),
            messages.Restored: lambda port, message: ev.Restored(port.number, message.epoch),
            messages.Idle: lambda port, message: ev.WentIdle(port.number, message.epoch),
            messages.Busy: lambda port, message: ev.WentBusy(port.number, message.epoch),
        }

    def begin(self, peer: Peer) -> None:
        self._sessions[peer] = Session()

    def is_stranger(self, peer: Peer) -> bool:
        return self._sessions[peer].member is None

    def end(self, peer: Peer) -> None:
        session = self._sessions.pop(peer, Session())
        if session.port:
            self._daemon.registry.leave(session.port)
        elif session.member:
            for request in session.member.kernels.pop(peer, {}):
                self._daemon.feed(ev.CellEnded(session.member.client, request))
            self._daemon.registry.maybe_forget(session.member)

    def take(self, peer: Peer, message: Any) -> bool:
        """False: the message is no process's or kernel's. Raises IllegalEvent for one that cannot come now."""
        session = self._sessions[peer]
        if isinstance(message, messages.AfterHello):
            if session.port is None or session.member is None:
                raise IllegalEvent(f"{type(message).__name__.lower()} before hello")
            self._hear(session.port, session.member, message)
        elif isinstance(message, messages.Hello):
            self._hello(peer, session, message)
        elif isinstance(message, messages.Attach):
            self._attach(peer, session, message)
        elif isinstance(message, messages.Cell):
            self._cell(peer, session, message)
        else:
            return False
        return True

    def _hear(self, port: ProcessPort, member: Member, message: Any) -> None:
        if to_event := self._process_messages.get(type(message)):
            self._daemon.levels.look(member)
            self._daemon.feed(to_event(port, message))
            if isinstance(message, messages.Drained):
                self._daemon.orders.unlock_unless_granted(member, port.devices)
                if port.page.report.waiting:
                    # It may have begun to wait after a closing of its own, of which we have only just heard.
                    self._daemon.feed(ev.Wanted(port.number))
        elif isinstance(message, messages.Short):
            self._daemon.levels.make_room([port])
            self._daemon.levels.look(member)
        elif isinstance(message, messages.Declined):
            self._daemon.orders.unlock_unless_granted(member, port.devices)
        else:
            self._inspections.answer(port, message)

    def _hello(self, peer: Peer, session: Session, hello: messages.Hello) -> None:
        if session.port or session.member:
            raise IllegalEvent("a second hello or attach on one connection")
        known = hello.client in self._daemon.members
        try:
            member = self._clients.member(peer, hello)
            session.port, instead = self._daemon.registry.join(member, peer, hello)
        except (PermissionError, BadHello, Refused) as error:
            log.warning("%s: hello refused: %s", peer, worded(error))
            refuse(peer, 0, _reason(error), str(error))
            peer.drop()
            if not known and hello.client in self._daemon.members:
                member.forgotten = True
                self._daemon.registry.maybe_forget(member)
            return
        session.member = member
        self._daemon.registry.maybe_forget(member)
        if instead:
            peer.send(encode(messages.Join()), instead)
        else:
            peer.send(encode(messages.Welcome()))

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
            self._daemon.feed(ev.CellEnded(session.member.client, cell.request))
        elif len(requests) < MAX_CELLS:
            requests[cell.request] = cell.cell_id
            self._daemon.feed(ev.CellStarted(session.member.client, cell.request))


def _reason(error: PermissionError | BadHello | Refused) -> str:
    """For programs."""
    if isinstance(error, PermissionError):
        return "forbidden"
    return error.reason if isinstance(error, Refused) else "invalid"
