"""What people say of a client's turns: give up, keep, leave, stay away, come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events as ev
from .commands import Command, Limits
from .errors import Conflict, Refused
from .known import Known
from .model import Client
from .turns import Turns


class Wishes:
    """Takes events of what is asked for; `handlers` says which."""

    def __init__(self, known: Known, turns: Turns, out: list[Command]) -> None:
        self._known = known
        self._turns = turns
        self._out = out
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.TurnReleased: self._turn_released,
            ev.TurnHeld: self._turn_held,
            ev.Evicted: self._evicted,
            ev.Suspended: self._suspended,
            ev.Resumed: self._resumed,
        }

    def _turn_released(self, event: ev.TurnReleased, now: float) -> None:
        client = self._known.client(event.client)
        client.hold_until = None
        if client.grant and not client.grant.draining:
            self._turns.begin_closing(client.grant, now)
        self._turns.touch(client)

    def _turn_held(self, event: ev.TurnHeld, now: float) -> None:
        client = self._known.client(event.client)
        most = self._turns.settings.max_hold
        if not 0 <= event.seconds <= most:
            raise Refused(f"hold={event.seconds:g} is out of range: allowed are 0 to {most:g} seconds (max_hold)")
        if client.suspended_by_person and event.seconds:
            raise Conflict(f"client {client.id} is suspended and has nothing to hold: resume it first")
        if client.held_for(now) is None:
            client.holding_since = now
        # One hold after the other is no way around the longest one.
        client.hold_until = min(now + event.seconds, client.holding_since + most) if event.seconds else None
        self._turns.touch(client)

    def _evicted(self, event: ev.Evicted, now: float) -> None:
        self.evict(self._known.client(event.client), now)

    def _suspended(self, event: ev.Suspended, now: float) -> None:
        client = self._known.client(event.client)
        if not event.by_policy or not (client.suspended or client.in_use):
            self.suspend(client, now, event.by_policy)

    def _resumed(self, event: ev.Resumed, now: float) -> None:
        client = self._known.client(event.client)
        client.idle_since = None  # or a policy would suspend it again
        self.resume(client, now)

    def evict(self, client: Client, now: float, by_policy: bool = False) -> None:
        client.evicted = True
        client.evicted_by_policy = by_policy
        client.hold_until = None
        if client.grant and not client.grant.draining:
            self._turns.begin_closing(client.grant, now)
        self._turns.bound(client)
        self._turns.touch(client)

    def suspend(self, client: Client, now: float, by_policy: bool = False) -> None:
        client.suspended = True
        client.suspended_by_policy = by_policy
        client.hold_until = None
        self._turns.leave_queue(client, now)
        if client.grant and not client.grant.draining:
            self._turns.begin_closing(client.grant, now)
        self._turns.bound(client)
        self._turns.touch(client)
        self._out.append(Limits(client.id))  # the pages tell a later coordinator

    def resume(self, client: Client, now: float) -> None:
        client.suspended = client.suspended_by_policy = False
        if client.wants and client.grant is None:
            self._turns.enter_queue(client, now)
        self._turns.bound(client)
        self._turns.touch(client)
        self._out.append(Limits(client.id))
