"""What becomes of clients that nobody uses for long: their user is told, their memory leaves, they are suspended.

Nothing is lost by it, and nobody has to undo it: the next cell or GPU call does. A client is idle while it has no
grant, wants none, has no open cell and holds nothing. One that a person has suspended is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..units import format_duration
from .agenda import Agenda
from .commands import Command, Notice
from .model import Client
from .settings import AUTO
from .turns import Turns
from .wishes import Wishes

EVICT_AUTO = 1800.0  # seconds, where `idle_evict` is "auto" and memory is short
WARN_AUTO = 600.0  # seconds before anything is done, or half of the time, where `idle_warn` is "auto"
_LOOK_AGAIN = 60.0  # whether memory has become short, which nobody waits for
_IDLE = "idle"


class Prospect(NamedTuple):
    """Of a client that has been idle for `idle` seconds: in how many its memory leaves and in how many it is
    suspended, as things are now; None: that does not come, or has come. `warned`: its user is to be told."""

    idle: float
    evicted_in: float | None = None
    suspended_in: float | None = None
    warned: bool = False


class Idleness:
    """Of all clients. `settle` comes between an event and what is decided about turns, so that whoever is back is
    served at once. It costs O(log n) for each client that the event was about."""

    def __init__(self, clients: Mapping[str, Client], turns: Turns, wishes: Wishes, out: list[Command]) -> None:
        self._clients = clients
        self._turns = turns
        self._wishes = wishes
        self._out = out
        self._agenda = Agenda()

    def next_deadline(self) -> float | None:
        first = self._agenda.first()
        return first[0] if first else None

    def settle(self, now: float) -> None:
        """Look at clients that something has happened to, and act on those that have been idle for long enough."""
        self.look(now)
        for _, identity in self._agenda.take_due(now):
            client = self._clients[identity]
            if client.idle_since is None:
                self._look_at(client, now)  # its hold is over
            else:
                self._act(client, client.idle_since, now)

    def look(self, now: float) -> None:
        """Find out which clients have begun, or ceased, to be idle."""
        stirred, self._turns.stirred = self._turns.stirred, {}
        for client in stirred.values():
            if self._clients.get(client.id) is client:
                self._look_at(client, now)
            else:
                self._agenda.set((_IDLE, client.id), None)

    def settings_changed(self) -> None:
        """What has been done stays until the client is back."""
        self._turns.stirred |= self._clients

    def prospect(self, client: Client, now: float) -> Prospect | None:
        """None: the client is not idle."""
        since = client.idle_since
        if since is None:
            return None
        evict, suspend = self._evicts_at(client, since), self._suspends_at(client, since)
        if self._spares(client):
            evict = None
        return Prospect(
            now - since,
            None if evict is None else max(0.0, evict - now),
            None if suspend is None else max(0.0, suspend - now),
            bool(client.processes) and self._warns(since, evict, suspend, now),
        )

    def restarts(self, client: Client, now: float) -> None:
        """Its program starts anew: whatever became of the one before, this one has not been idle."""
        client.idle_since = None
        self._bring_back(client, now)
        self._turns.stirred[client.id] = client  # idle anew from now on, if it is

    def _warns(self, since: float, evict: float | None, suspend: float | None, now: float) -> bool:
        after = self._turns.settings.idle_warn
        if after != AUTO:
            return bool(after) and now >= since + float(after)
        return any(due is not None and now >= due - min(WARN_AUTO, (due - since) / 2) for due in (evict, suspend))

    def _evicts_at(self, client: Client, since: float) -> float | None:
        """When its memory is to leave; None: never, or there is nothing that could."""
        after = self._turns.settings.idle_evict
        if not after or client.evicted or client.suspended or client.held.resident <= client.held.pinned:
            return None
        return since + (EVICT_AUTO if after == AUTO else float(after))

    def _suspends_at(self, client: Client, since: float) -> float | None:
        after = self._turns.settings.idle_suspend
        return since + after if after and client.processes and not client.suspended else None

    def _spares(self, client: Client) -> bool:
        """Whether its memory may stay for as long as there is enough."""
        return self._turns.settings.idle_evict == AUTO and not any(device.is_short for device in client.books)

    def _look_at(self, client: Client, now: float) -> None:
        """Begin or end its idleness, or go on with it."""
        held = client.held_for(now) is not None
        if client.in_use or held:
            client.idle_since = None
            self._bring_back(client, now)
            self._agenda.set((_IDLE, client.id), client.hold_until if held and not client.in_use else None)
        elif client.suspended_by_person:
            client.idle_since = None
            self._agenda.set((_IDLE, client.id), None)
        else:
            if client.idle_since is None:
                client.idle_since = now
            self._arm(client, client.idle_since, now)

    def _bring_back(self, client: Client, now: float) -> None:
        if client.evicted_by_policy:
            client.evicted_by_policy = False
            self._turns.set_evicted(client, False)
        if client.suspended_by_policy:
            self._wishes.resume(client, now)

    def _act(self, client: Client, since: float, now: float) -> None:
        evict, suspend = self._evicts_at(client, since), self._suspends_at(client, since)
        if suspend is not None and suspend <= now:
            self._wishes.suspend(client, now, by_policy=True)
            self._out.append(Notice(client.id, f"idle for {format_duration(now - since)}: suspended until it is used"))
        elif evict is not None and evict <= now and not self._spares(client):
            self._wishes.evict(client, now, by_policy=True)
            idle = format_duration(now - since)
            self._out.append(Notice(client.id, f"idle for {idle}: its memory leaves until its next turn"))
        self._arm(client, since, now)

    def _arm(self, client: Client, since: float, now: float) -> None:
        """Set when it is to be looked at again."""
        evict, suspend = self._evicts_at(client, since), self._suspends_at(client, since)
        if evict is not None and self._spares(client):
            evict = max(evict, now + _LOOK_AGAIN)
        first = min((due for due in (evict, suspend) if due is not None), default=None)
        self._agenda.set((_IDLE, client.id), first)
