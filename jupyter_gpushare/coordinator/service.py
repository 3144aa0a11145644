"""What each message means: from a decoded line to an event, a request answered, or a peer refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..core import events as ev
from ..core.errors import IllegalEvent, Refused, UnknownClient, UnknownProcess
from ..core.placement import Request
from ..wire import messages, text
from ..wire.client import encode
from . import requests, waiting
from .brought import BadHello
from .daemon import Daemon
from .inspection import Inspections
from .members import Member
from .peer import Peer
from .ports import ProcessPort
from .viewers import is_admin

MAX_CELLS = 1024

LATER = object()  # the result of a request that is answered when somebody else has answered

_OF_PROCESSES = (
    messages.Wants,
    messages.Unwants,
    messages.Drained,
    messages.Evicting,
    messages.Restored,
    messages.Idle,
    messages.Busy,
    messages.Short,
    messages.Declined,
    messages.Details,
)

log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(messages.Incoming)


class Session:
    """What a connection has become: a process, a kernel, or neither."""

    def __init__(self) -> None:
        self.port: ProcessPort | None = None
        self.member: Member | None = None


class Service:
    """Answers the peers of one daemon."""

    def __init__(self, daemon: Daemon, stop: Callable[[], None]) -> None:
        self._daemon = daemon
        self._stop = stop
        self._sessions: dict[Peer, Session] = {}
        self._inspections = Inspections()
        self._process_messages: dict[type, Callable[[ProcessPort, Any], ev.Event]] = {
            messages.Wants: lambda port, _: ev.Wanted(port.number),
            messages.Unwants: lambda port, _: ev.Unwanted(port.number),
            messages.Drained: lambda port, message: ev.Drained(port.number, message.epoch),
            messages.Evicting: lambda port, message: ev.Evicting(port.number, message.epoch),
            messages.Restored: lambda port, message: ev.Restored(port.number, message.epoch),
            messages.Idle: lambda port, message: ev.WentIdle(port.number, message.epoch),
            messages.Busy: lambda port, message: ev.WentBusy(port.number, message.epoch),
        }
        self._requests: dict[type, Callable[[Peer, Any], Any]] = {
            messages.Register: self._register,
            messages.Forget: self._forget,
            messages.Status: lambda peer, _: self._daemon.followers.view(peer.uid),
            messages.Subscribe: self._subscribe,
            messages.History: lambda _, request: self._daemon.tell_history(request.after, request.client),
            messages.Outlook: self._outlook,
            messages.Draws: self._draws,
            messages.SetQuota: self._set_quota,
            messages.Release: self._release,
            messages.Hold: self._hold,
            messages.Evict: self._evict,
            messages.Suspend: lambda peer, request: self._set_suspended(peer, request.client, True),
            messages.Resume: lambda peer, request: self._set_suspended(peer, request.client, False),
            messages.Interrupt: self._interrupt,
            messages.Inspect: self._inspect,
            messages.Device: self._device,
            messages.Config: self._config,
            messages.Stop: self._end,
        }

    # --- the edge calls these

    def connected(self, peer: Peer) -> None:
        self._sessions[peer] = Session()

    def ended(self, peer: Peer) -> None:
        session = self._sessions.pop(peer, Session())
        self._daemon.followers.discard(peer)
        if session.port:
            self._daemon.leave(session.port)
        elif session.member:
            for request in session.member.kernels.pop(peer, set()):
                self._daemon.feed(ev.CellEnded(session.member.client, request))
            self._daemon.maybe_forget(session.member)

    def line(self, peer: Peer, line: bytes) -> None:
        """Handle one line. Whatever it says, only this peer is affected by its mistakes."""
        if len(line) > messages.MAX_LINE:
            self._refuse(peer, 0, "too_long", f"a line is longer than {messages.MAX_LINE} bytes")
            peer.drop()
            return
        try:
            message = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(peer, _id_of(line), "malformed", f"not a message: {error}")
            return
        try:
            self._handle(peer, message)
        except IllegalEvent as error:
            log.warning("%s dropped: %s", peer, error)
            self._refuse(peer, getattr(message, "id", 0), error.reason, str(error))
            peer.drop()
        except Exception:
            log.exception("bug: %s sent %.200r; story:\n%s", peer, line, "\n".join(self._daemon.scheduler.story()))
            self._refuse(peer, getattr(message, "id", 0), "internal", "a bug of the coordinator; see its log")
            peer.drop()
        finally:
            for descriptor in peer.take_descriptors():
                os.close(descriptor)

    def _handle(self, peer: Peer, message: Any) -> None:
        session = self._sessions[peer]
        if isinstance(message, _OF_PROCESSES):
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
            self._answer(peer, message)

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
            self._daemon.levels.make_room(port)
        elif isinstance(message, messages.Declined):
            self._daemon.orders.unlock_unless_granted(member, port.devices)
        else:
            self._inspections.answer(port, message)

    def _answer(self, peer: Peer, request: Any) -> None:
        try:
            result = self._requests[type(request)](peer, request)
        except PermissionError as error:
            self._refuse(peer, request.id, "forbidden", str(error))
        except Refused as error:
            self._refuse(peer, request.id, error.reason, str(error))
        else:
            if result is not LATER:
                peer.send(encode(messages.Reply(id=request.id, result=result)))

    def _refuse(self, peer: Peer, number: int, reason: str, message: str) -> None:
        peer.send(encode(messages.Error(id=number, reason=reason, message=message)))

    # --- processes and kernels

    def _hello(self, peer: Peer, session: Session, hello: messages.Hello) -> None:
        if session.port or session.member:
            raise IllegalEvent("a second hello or attach on one connection")
        known = hello.client in self._daemon.members
        try:
            member = self._member(peer, hello)
            instead = self._daemon.join(member, peer, hello, peer.take_descriptors())
        except (PermissionError, BadHello, Refused) as error:
            log.warning("%s: hello refused: %s", peer, error)
            self._refuse(peer, 0, "forbidden" if isinstance(error, PermissionError) else "invalid", str(error))
            peer.drop()
            if not known and hello.client in self._daemon.members:
                member.forgotten = True
                self._daemon.maybe_forget(member)
            return
        session.port = next(port for port in member.processes.values() if port.peer is peer)
        session.member = member
        self._daemon.maybe_forget(member)
        if instead:
            peer.send(encode(messages.Join()), instead)
        else:
            peer.send(encode(messages.Welcome()))

    def _attach(self, peer: Peer, session: Session, attach: messages.Attach) -> None:
        if session.port or session.member:
            raise IllegalEvent("a second hello or attach on one connection")
        try:
            session.member = self._member(peer, attach)
        except (PermissionError, Refused) as error:
            self._refuse(peer, 0, "forbidden" if isinstance(error, PermissionError) else "invalid", str(error))
            peer.drop()
            return
        session.member.kernels[peer] = set()
        self._daemon.maybe_forget(session.member)
        peer.send(encode(messages.Welcome()))

    def _member(self, peer: Peer, message: messages.Hello | messages.Attach | messages.Register) -> Member:
        gpus = message.gpus if isinstance(message, messages.Register) else None
        default = self._daemon.settings.default_quota
        try:
            quota, request = requests.read(message.quota, default, gpus or 1)
        except Refused as error:
            if gpus is not None:
                raise
            log.warning("%s: quota %r not used: %s", peer, message.quota, error)
            quota, request = default, Request()
        # Whose program is not about to start has its devices already.
        member = self._daemon.member(
            message.client, message.token, str(peer.uid), message.label, quota, request, running=gpus is None
        )
        member.forgotten = False
        return member

    def _cell(self, peer: Peer, session: Session, cell: messages.Cell) -> None:
        if session.member is None or peer not in session.member.kernels:
            raise IllegalEvent("cell before attach")
        requests = session.member.kernels[peer]
        if cell.state == "end":
            requests.discard(cell.request)
            self._daemon.feed(ev.CellEnded(session.member.client, cell.request))
        elif len(requests) < MAX_CELLS:
            requests.add(cell.request)
            self._daemon.feed(ev.CellStarted(session.member.client, cell.request))

    # --- requests

    def _owned(self, peer: Peer, client: str) -> Member:
        """The client, if this peer may change it. Raises UnknownClient and PermissionError."""
        known = self._daemon.scheduler.clients.get(client)
        if known is None or client not in self._daemon.members:
            raise UnknownClient(f"no client {client!r} is known here")
        if not self._admin(peer) and known.tenant != str(peer.uid):
            raise PermissionError(f"client {client!r} belongs to another user")
        return self._daemon.members[client]

    def _admin(self, peer: Peer) -> bool:
        return is_admin(peer.uid)

    def _register(self, peer: Peer, request: messages.Register) -> Any:
        known = request.client in self._daemon.members
        member = self._member(peer, request)
        if request.ends_with_sender:
            self._daemon.watch(member, peer.pid)
        self._daemon.maybe_forget(member)
        client = self._daemon.scheduler.clients[request.client]
        visible = list(client.devices) if len(self._daemon.scheduler.devices) > 1 else []
        return {"client": request.client, "devices": visible, "known": known}

    def _forget(self, peer: Peer, request: messages.Forget) -> Any:
        member = self._owned(peer, request.client)
        member.forgotten = True
        self._daemon.maybe_forget(member)
        return {}

    def _subscribe(self, peer: Peer, request: messages.Subscribe) -> Any:
        return self._daemon.followers.add(peer)

    def _outlook(self, peer: Peer, request: messages.Outlook) -> Any:
        member = self._owned(peer, request.client)
        return waiting.told(self._daemon.scheduler, member, peer.uid, self._daemon.now)

    def _draws(self, peer: Peer, request: messages.Draws) -> Any:
        member = self._owned(peer, request.client)
        member.add_draws(request.session)
        return {"draws": list(member.draws)}

    def _set_quota(self, peer: Peer, request: messages.SetQuota) -> Any:
        member = self._owned(peer, request.client)
        client = self._daemon.scheduler.clients[request.client]
        if request.changes:
            before = client.quota
            capacity = sum(self._daemon.scheduler.devices[uuid].info.memory for uuid in client.devices)
            quota = before.changed(requests.changes_of(request.changes, capacity))
            self._daemon.feed(ev.QuotaChanged(request.client, quota, member.allocated))
            log.info("%s changed the quota of %s from %s to %s", peer, request.client, before, quota)
        return msgspec.to_builtins(client.quota)

    def _release(self, peer: Peer, request: messages.Release) -> Any:
        self._owned(peer, request.client)
        grant = self._daemon.scheduler.clients[request.client].grant
        self._daemon.feed(ev.TurnReleased(request.client))
        return {"released": grant is not None}

    def _hold(self, peer: Peer, request: messages.Hold) -> Any:
        member = self._owned(peer, request.client)
        try:
            longest = self._daemon.scheduler.settings.max_hold
            seconds = longest if request.seconds is None else text.parse_seconds(request.seconds)
        except ValueError as error:
            raise Refused(f"hold: {error}") from None
        left = self._daemon.hold(member, seconds)
        running = self._daemon.scheduler.clients[request.client].grant is not None
        return {"hold_seconds_left": left, "running": running}

    def _evict(self, peer: Peer, request: messages.Evict) -> Any:
        held = self._daemon.evict(self._owned(peer, request.client))
        return {"evicting": held.resident > held.pinned, "bytes": held.resident}

    def _set_suspended(self, peer: Peer, identity: str, suspended: bool) -> Any:
        member = self._owned(peer, identity)
        before = self._daemon.scheduler.clients[identity].suspended
        self._daemon.set_suspended(member, suspended)
        if before != suspended:
            log.info("%s %s client %s", peer, "suspended" if suspended else "resumed", identity)
        return {"suspended": suspended, "changed": before != suspended}

    def _interrupt(self, peer: Peer, request: messages.Interrupt) -> Any:
        member = self._owned(peer, request.client)
        for port in member.processes.values():
            port.page.interrupt()
        return {"processes": len(member.processes)}

    def _inspect(self, peer: Peer, request: messages.Inspect) -> Any:
        port = next((port for port in self._daemon.ports.values() if port.peer.pid == request.pid), None)
        member = self._daemon.member_of(port) if port else None
        if port is None or member is None:
            raise UnknownProcess(f"process {request.pid} is no client's process here")
        self._owned(peer, member.client)
        client = self._daemon.scheduler.clients[member.client]
        result = {
            "pid": request.pid,
            "client": member.client,
            "label": client.label if client.tenant == str(peer.uid) else "",
            "coordinator": {"pid": os.getpid(), "socket": self._daemon.socket_path},
            "page": port.page.values(),
        }

        def answered(details: dict[str, Any] | None) -> None:
            peer.send(encode(messages.Reply(id=request.id, result={**result, "details": details})))

        self._inspections.ask(port, answered)
        return LATER

    def _device(self, peer: Peer, request: messages.Device) -> Any:
        if not self._admin(peer):
            raise PermissionError("only admins of this coordinator take devices out of use")
        self._daemon.set_health(request.device, request.failed)
        log.info("%s says of device %s: %s", peer, request.device, request.failed or "works again")
        return {"clients": list(self._daemon.scheduler.placing.placement.on(request.device))}

    def _config(self, peer: Peer, request: messages.Config) -> Any:
        if request.changes:
            if not self._admin(peer):
                raise PermissionError("only admins of this coordinator change its settings")
            before = self._daemon.settings.as_json()
            self._daemon.change_settings(self._daemon.settings.changed(request.changes))
            log.info("%s changed the settings from %s to %s", peer, before, self._daemon.settings.as_json())
        return self._daemon.config()

    def _end(self, peer: Peer, request: messages.Stop) -> Any:
        if not self._admin(peer):
            raise PermissionError("only admins of this coordinator stop it")
        log.info("%s stops this coordinator", peer)
        self._stop()
        return {}


def _id_of(line: bytes) -> int:
    """The id of a request that is otherwise wrong, so that its sender learns which one it was."""
    try:
        number = msgspec.json.decode(line).get("id", 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return 0
    return number if type(number) is int else 0
