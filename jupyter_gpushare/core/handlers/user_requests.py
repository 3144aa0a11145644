"""Handlers of requests to release, hold, evict, suspend and resume a client, by users and the idle policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.errors import Conflict, Refused
from ..interface import events as ev
from ..interface.commands import Command, UpdateQuota
from ..state.model import Client, EntityRegistry
from ..turns.grant_table import GrantTable
from ..turns.turn_close import TurnCloser


class UserRequests:
    """Handlers of events of users' requests; `handlers` has the handler of each event."""

    def __init__(
        self, registry: EntityRegistry, table: GrantTable, closer: TurnCloser, commands: list[Command]
    ) -> None:
        self._registry = registry
        self._table = table
        self._closer = closer
        self._commands = commands
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.ReleaseRequested: self._on_release_requested,
            ev.HoldRequested: self._on_hold_requested,
            ev.EvictRequested: self._on_evict_requested,
            ev.SuspendRequested: self._on_suspend_requested,
            ev.ResumeRequested: self._on_resume_requested,
        }

    def _on_release_requested(self, event: ev.ReleaseRequested, now: float) -> None:
        client = self._registry.client(event.client)
        client.hold_until = None
        if client.grant and not client.grant.is_draining:
            self._closer.start_closing(client.grant, now)
        self._table.mark_dirty(client)

    def _on_hold_requested(self, event: ev.HoldRequested, now: float) -> None:
        client = self._registry.client(event.client)
        max_hold = self._table.policies.settings_of(client).max_hold
        if not 0 <= event.seconds <= max_hold:
            raise Refused(f"hold={event.seconds:g} is out of range: allowed are 0 to {max_hold:g} seconds (max_hold)")
        if client.suspended_by_user and event.seconds:
            raise Conflict(f"client {client.id} is suspended and has nothing to hold: resume it first")
        if client.hold_seconds_left(now) is None:
            client.holding_since = now
        # Holds without a gap count as one, so that they end after `max_hold` in all.
        client.hold_until = min(now + event.seconds, client.holding_since + max_hold) if event.seconds else None
        self._table.mark_dirty(client)

    def _on_evict_requested(self, event: ev.EvictRequested, now: float) -> None:
        self.evict(self._registry.client(event.client), now)

    def _on_suspend_requested(self, event: ev.SuspendRequested, now: float) -> None:
        client = self._registry.client(event.client)
        if not event.by_policy or not (client.suspended or client.is_in_use):
            self.suspend(client, now, event.by_policy)

    def _on_resume_requested(self, event: ev.ResumeRequested, now: float) -> None:
        client = self._registry.client(event.client)
        client.idle_since = None  # so that no policy suspends the client again at once
        self.resume(client, now)

    def evict(self, client: Client, now: float, by_policy: bool = False) -> None:
        client.evicted = True
        client.evicted_by_policy = by_policy
        client.hold_until = None
        if client.grant and not client.grant.is_draining:
            self._closer.start_closing(client.grant, now)
        self._table.update_forced_eviction(client)
        self._table.mark_dirty(client)

    def suspend(self, client: Client, now: float, by_policy: bool = False) -> None:
        client.suspended = True
        client.suspended_by_policy = by_policy
        client.hold_until = None
        self._table.leave_queue(client, now)
        if client.grant and not client.grant.is_draining:
            self._closer.start_closing(client.grant, now)
        self._table.update_forced_eviction(client)
        self._table.mark_dirty(client)
        self._commands.append(UpdateQuota(client.id))  # a later coordinator reads the suspension from the pages

    def resume(self, client: Client, now: float) -> None:
        client.suspended = client.suspended_by_policy = False
        if client.is_waiting_at_gate and client.grant is None:
            self._table.enter_queue(client, now)
        self._table.update_forced_eviction(client)
        self._table.mark_dirty(client)
        self._commands.append(UpdateQuota(client.id))
