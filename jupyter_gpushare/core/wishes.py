"""What people say of a client's turns: give up, keep, leave, stay away, come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events as ev
from .errors import Conflict, Refused
from .known import Known
from .turns import Turns


class Wishes:
    """Takes events of what is asked for; `handlers` says which."""

    def __init__(self, known: Known, turns: Turns) -> None:
        self._known = known
        self._turns = turns
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

    def _turn_held(self, event: ev.TurnHeld, now: float) -> None:
        client = self._known.client(event.client)
        most = self._turns.settings.max_hold
        if not 0 <= event.seconds <= most:
            raise Refused(f"hold={event.seconds:g} is out of range: allowed are 0 to {most:g} seconds (max_hold)")
        if client.suspended and event.seconds:
            raise Conflict(f"client {client.id} is suspended and has nothing to hold: resume it first")
        if client.held_for(now) is None:
            client.holding_since = now
        # One hold after the other is no way around the longest one.
        client.hold_until = min(now + event.seconds, client.holding_since + most) if event.seconds else None
        self._turns.touch(client)

    def _evicted(self, event: ev.Evicted, now: float) -> None:
        client = self._known.client(event.client)
        client.evicted = True
        client.hold_until = None
        if client.grant and not client.grant.draining:
            self._turns.begin_closing(client.grant, now)
        self._turns.bound(client)
        self._turns.touch(client)

    def _suspended(self, event: ev.Suspended, now: float) -> None:
        client = self._known.client(event.client)
        client.suspended = True
        client.hold_until = None
        self._turns.leave_queue(client, now)
        if client.grant and not client.grant.draining:
            self._turns.begin_closing(client.grant, now)
        self._turns.bound(client)
        self._turns.touch(client)

    def _resumed(self, event: ev.Resumed, now: float) -> None:
        client = self._known.client(event.client)
        client.suspended = False
        if client.wants and client.grant is None:
            self._turns.enter_queue(client, now, now)
        self._turns.bound(client)
        self._turns.touch(client)
