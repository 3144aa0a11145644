"""Requests of users about turns and devices: release, hold, evict, suspend, resume, interrupt and move."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .... import units
from ....core.base.errors import Conflict, Refused
from ....core.interface import events as ev
from ....wire import messages
from ...engine.move_executor import MoveExecutor
from ...engine.page_sync import PageSync
from ...engine.restart_recovery import RestartRecovery
from ...engine.state import CoordinatorState
from ...storage.audit_log import AuditLog
from ...transport.connection import Connection, refuse, reply
from . import DEFERRED_REPLY, Handler, client_owned_by

log = logging.getLogger(__name__)


class TurnHandlers:
    """Handlers of requests about the turns of clients."""

    def __init__(
        self,
        state: CoordinatorState,
        dispatch: Callable[[ev.Event], None],
        page_sync: PageSync,
        recovery: RestartRecovery,
        audit: AuditLog,
        moves: MoveExecutor,
    ) -> None:
        self._state = state
        self._dispatch = dispatch
        self._page_sync = page_sync
        self._recovery = recovery
        self._audit = audit
        self._moves = moves
        self._moving: dict[Connection, set[str]] = {}  # clients whose moves a connection has requested
        self.handlers: dict[type, Handler] = {
            messages.Release: self._release,
            messages.Hold: self._hold,
            messages.Evict: self._evict,
            messages.Suspend: lambda connection, request: self._set_suspended(connection, request.client, True),
            messages.Resume: lambda connection, request: self._set_suspended(connection, request.client, False),
            messages.Interrupt: self._interrupt,
            messages.Move: self._move,
        }

    def _release(self, connection: Connection, request: messages.Release) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        client = self._state.client(runtime)
        turn, hold = client.grant is not None, client.hold_seconds_left(self._state.now) is not None
        self._dispatch(ev.ReleaseRequested(runtime.client_id))
        had, has = {"turn": turn, "hold": hold}, {"turn": False, "hold": False}
        self._audit.record(connection, "release", request.client, had, has)
        return {"released": turn or hold, "turn": turn, "hold": hold}

    def _hold(self, connection: Connection, request: messages.Hold) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        limit = self._state.scheduler.settings_of(self._state.client(runtime)).max_hold
        try:
            seconds = limit if request.seconds is None else units.parse_duration(request.seconds)
        except ValueError as error:
            raise Refused(f"hold: {error}; allowed are 0 to {limit:g} seconds (max_hold)") from None
        before = self._state.scheduler.clients[request.client].hold_seconds_left(self._state.now)
        self._dispatch(ev.HoldRequested(runtime.client_id, seconds))
        left = self._state.client(runtime).hold_seconds_left(self._state.now)
        self._audit.record(connection, "hold", request.client, before, left)
        running = self._state.scheduler.clients[request.client].grant is not None
        return {"hold_seconds_left": left, "running": running}

    def _evict(self, connection: Connection, request: messages.Evict) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        if runtime.uses_plain_mode:
            raise Conflict(
                f"client {runtime.client_id} has its memory in mode plain, which cannot leave the device: "
                "free the memory in the program, or start the program with GPUSHARE_MEMORY_MODE=swap or unified"
            )
        self._page_sync.read_memory(runtime)
        before = runtime.memory_use
        self._dispatch(ev.EvictRequested(runtime.client_id))
        self._audit.record(
            connection, "evict", request.client, {"resident": before.resident}, {"resident": before.unmovable}
        )
        return {"evicting": before.movable > 0, "bytes": before.movable}

    def _set_suspended(self, connection: Connection, identity: str, suspended: bool) -> Any:
        runtime = client_owned_by(self._state, connection, identity)
        client = self._state.scheduler.clients[identity]
        # A user's suspension of a client that the idle policy has suspended is a change, because it lasts longer.
        before = client.suspended and not (suspended and client.suspended_by_policy)
        self._dispatch(ev.SuspendRequested(identity) if suspended else ev.ResumeRequested(identity))
        self._recovery.save_soon(runtime, self._state.client(runtime), self._state.now)
        self._audit.record(
            connection, "suspend" if suspended else "resume", identity, {"suspended": before}, {"suspended": suspended}
        )
        if before != suspended:
            log.info("%s %s client %s", connection, "suspended" if suspended else "resumed", identity)
        return {"suspended": suspended, "changed": before != suspended}

    def _interrupt(self, connection: Connection, request: messages.Interrupt) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        for handle in runtime.processes.values():
            handle.interrupt()
        self._audit.record(connection, "interrupt", request.client, None, {"processes": len(runtime.processes)})
        return {"processes": len(runtime.processes)}

    def _move(self, connection: Connection, request: messages.Move) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        self._page_sync.read_memory(runtime)
        before = list(self._state.client(runtime).devices)

        def answer(device: str, error: str) -> None:
            self._moving.get(connection, set()).discard(runtime.client_id)
            self._audit.record(connection, "move", request.client, before, error or [device])
            if error:
                refuse(connection, request.id, Conflict.reason, error)
            else:
                reply(connection, request.id, {"device": device})

        self._moves.request(runtime.client_id, request.device, answer)
        if self._moves.is_requested(runtime.client_id):
            self._moving.setdefault(connection, set()).add(runtime.client_id)
        return DEFERRED_REPLY

    def on_closed(self, connection: Connection) -> None:
        """Withdraw the moves that this connection has requested, because their requester has been interrupted."""
        for client in self._moving.pop(connection, ()):
            self._dispatch(ev.MoveWithdrawn(client))
