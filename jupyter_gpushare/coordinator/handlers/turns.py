"""What people say of a client's turns: give up, keep, stay away, come back, stop waiting."""

from __future__ import annotations

import logging
from typing import Any

from ... import units
from ...core import events as ev
from ...core.errors import Refused
from ...wire import messages
from ..daemon import Daemon
from ..peer import Peer
from . import Handler
from .access import owned

log = logging.getLogger(__name__)


class Turns:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.handlers: dict[type, Handler] = {
            messages.Release: self._release,
            messages.Hold: self._hold,
            messages.Evict: self._evict,
            messages.Suspend: lambda peer, request: self._set_suspended(peer, request.client, True),
            messages.Resume: lambda peer, request: self._set_suspended(peer, request.client, False),
            messages.Interrupt: self._interrupt,
        }

    def _release(self, peer: Peer, request: messages.Release) -> Any:
        turn, hold = self._daemon.release(owned(self._daemon, peer, request.client))
        had, has = {"turn": turn, "hold": hold}, {"turn": False, "hold": False}
        self._daemon.audit.note(peer, "release", request.client, had, has)
        return {"released": turn or hold, "turn": turn, "hold": hold}

    def _hold(self, peer: Peer, request: messages.Hold) -> Any:
        member = owned(self._daemon, peer, request.client)
        longest = self._daemon.scheduler.settings.max_hold
        try:
            seconds = longest if request.seconds is None else units.parse_duration(request.seconds)
        except ValueError as error:
            raise Refused(f"hold: {error}; allowed are 0 to {longest:g} seconds (max_hold)") from None
        before = self._daemon.scheduler.clients[request.client].held_for(self._daemon.now)
        left = self._daemon.hold(member, seconds)
        self._daemon.audit.note(peer, "hold", request.client, before, left)
        running = self._daemon.scheduler.clients[request.client].grant is not None
        return {"hold_seconds_left": left, "running": running}

    def _evict(self, peer: Peer, request: messages.Evict) -> Any:
        held = self._daemon.evict(owned(self._daemon, peer, request.client))
        self._daemon.audit.note(peer, "evict", request.client, {"resident": held.resident}, {"resident": held.pinned})
        return {"evicting": held.resident > held.pinned, "bytes": held.resident}

    def _set_suspended(self, peer: Peer, identity: str, suspended: bool) -> Any:
        member = owned(self._daemon, peer, identity)
        client = self._daemon.scheduler.clients[identity]
        # Of whom is suspended for being idle, a person's word is another one.
        before = client.suspended and not (suspended and client.suspended_by_policy)
        self._daemon.feed(ev.Suspended(identity) if suspended else ev.Resumed(identity))
        self._daemon.remember(member)
        self._daemon.audit.note(
            peer, "suspend" if suspended else "resume", identity, {"suspended": before}, {"suspended": suspended}
        )
        if before != suspended:
            log.info("%s %s client %s", peer, "suspended" if suspended else "resumed", identity)
        return {"suspended": suspended, "changed": before != suspended}

    def _interrupt(self, peer: Peer, request: messages.Interrupt) -> Any:
        member = owned(self._daemon, peer, request.client)
        for port in member.processes.values():
            port.interrupt()
        self._daemon.audit.note(peer, "interrupt", request.client, None, {"processes": len(member.processes)})
        return {"processes": len(member.processes)}
