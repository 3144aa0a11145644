"""Requests of users about turns: release, hold, evict, suspend, resume and interrupt."""

from __future__ import annotations

import logging
from typing import Any

from .... import units
from ....core.base.errors import Refused
from ....core.interface import events as ev
from ....wire import messages
from ...engine.coordinator import Coordinator
from ...transport.connection import Connection
from . import Handler
from .authorization import client_owned_by

log = logging.getLogger(__name__)


class TurnHandlers:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.handlers: dict[type, Handler] = {
            messages.Release: self._release,
            messages.Hold: self._hold,
            messages.Evict: self._evict,
            messages.Suspend: lambda connection, request: self._set_suspended(connection, request.client, True),
            messages.Resume: lambda connection, request: self._set_suspended(connection, request.client, False),
            messages.Interrupt: self._interrupt,
        }

    def _release(self, connection: Connection, request: messages.Release) -> Any:
        turn, hold = self._coordinator.release(client_owned_by(self._coordinator, connection, request.client))
        had, has = {"turn": turn, "hold": hold}, {"turn": False, "hold": False}
        self._coordinator.audit.record(connection, "release", request.client, had, has)
        return {"released": turn or hold, "turn": turn, "hold": hold}

    def _hold(self, connection: Connection, request: messages.Hold) -> Any:
        runtime = client_owned_by(self._coordinator, connection, request.client)
        limit = self._coordinator.scheduler.settings.max_hold
        try:
            seconds = limit if request.seconds is None else units.parse_duration(request.seconds)
        except ValueError as error:
            raise Refused(f"hold: {error}; allowed are 0 to {limit:g} seconds (max_hold)") from None
        before = self._coordinator.scheduler.clients[request.client].hold_seconds_left(self._coordinator.now)
        left = self._coordinator.hold(runtime, seconds)
        self._coordinator.audit.record(connection, "hold", request.client, before, left)
        running = self._coordinator.scheduler.clients[request.client].grant is not None
        return {"hold_seconds_left": left, "running": running}

    def _evict(self, connection: Connection, request: messages.Evict) -> Any:
        before = self._coordinator.evict(client_owned_by(self._coordinator, connection, request.client))
        self._coordinator.audit.record(
            connection, "evict", request.client, {"resident": before.resident}, {"resident": before.unmovable}
        )
        return {"evicting": before.resident > before.unmovable, "bytes": before.resident}

    def _set_suspended(self, connection: Connection, identity: str, suspended: bool) -> Any:
        runtime = client_owned_by(self._coordinator, connection, identity)
        client = self._coordinator.scheduler.clients[identity]
        # A user's suspension of a client that the idle policy has suspended is a change, because it lasts longer.
        before = client.suspended and not (suspended and client.suspended_by_policy)
        self._coordinator.dispatch(ev.SuspendRequested(identity) if suspended else ev.ResumeRequested(identity))
        self._coordinator.save_client(runtime)
        self._coordinator.audit.record(
            connection, "suspend" if suspended else "resume", identity, {"suspended": before}, {"suspended": suspended}
        )
        if before != suspended:
            log.info("%s %s client %s", connection, "suspended" if suspended else "resumed", identity)
        return {"suspended": suspended, "changed": before != suspended}

    def _interrupt(self, connection: Connection, request: messages.Interrupt) -> Any:
        runtime = client_owned_by(self._coordinator, connection, request.client)
        for handle in runtime.processes.values():
            handle.interrupt()
        self._coordinator.audit.record(
            connection, "interrupt", request.client, None, {"processes": len(runtime.processes)}
        )
        return {"processes": len(runtime.processes)}
