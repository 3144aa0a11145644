"""What becomes of clients that nobody uses for long: their user is told, their memory leaves, they are suspended.

Nothing is lost by it, and nobody has to undo it: the next cell or GPU call does. A client is idle while it has no
grant, wants none, has no open cell and holds nothing. One that a person has suspended is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...units import format_duration
from ..base.deadline_queue import DeadlineQueue
from ..interface.commands import Command, NotifyUser
from ..interface.settings import AUTO
from ..state.model import Client
from ..turns.turn_scheduler import TurnScheduler
from .user_requests import UserRequests

AUTO_EVICT_SECONDS = 1800.0  # seconds, where `idle_evict` is "auto" and memory is short
AUTO_WARN_SECONDS = 600.0  # seconds before anything is done, or half of the time, where `idle_warn` is "auto"
_RECHECK_SECONDS = 60.0  # whether memory has become short, which nobody waits for
_IDLE = "idle"


class IdleForecast(NamedTuple):
    """Of a client that has been idle for `idle_seconds`: in how many its memory leaves and in how many it is
    suspended, as things are now; None: that does not come, or has come. `is_warning_due`: its user is to be told."""

    idle_seconds: float
    evict_in_seconds: float | None = None
    suspend_in_seconds: float | None = None
    is_warning_due: bool = False


class IdlePolicy:
    """Of all clients. `apply` comes between an event and what is decided about turns, so that whoever is back is
    served at once. It costs O(log n) for each client that the event was about."""

    def __init__(
        self, clients: Mapping[str, Client], turns: TurnScheduler, user_requests: UserRequests, out: list[Command]
    ) -> None:
        self._clients = clients
        self._turns = turns
        self._user_requests = user_requests
        self._out = out
        self._deadlines = DeadlineQueue()

    def next_deadline(self) -> float | None:
        first = self._deadlines.earliest()
        return first[0] if first else None

    def apply(self, now: float) -> None:
        """Look at clients that something has happened to, and act on those that have been idle for long enough."""
        self.update(now)
        for _, identity in self._deadlines.pop_due(now):
            client = self._clients[identity]
            if client.idle_since is None:
                self._update_client(client, now)  # its hold is over
            else:
                self._apply_due(client, client.idle_since, now)

    def update(self, now: float) -> None:
        """Find out which clients have begun, or ceased, to be idle."""
        stirred, self._turns.clients_to_review = self._turns.clients_to_review, {}
        for client in stirred.values():
            if self._clients.get(client.id) is client:
                self._update_client(client, now)
            else:
                self._deadlines.set((_IDLE, client.id), None)

    def on_settings_changed(self) -> None:
        """What has been done stays until the client is back."""
        self._turns.clients_to_review |= self._clients

    def forecast(self, client: Client, now: float) -> IdleForecast | None:
        """None: the client is not idle."""
        since = client.idle_since
        if since is None:
            return None
        evict, suspend = self._evict_at(client, since), self._suspend_at(client, since)
        if self._keeps_memory(client):
            evict = None
        return IdleForecast(
            now - since,
            None if evict is None else max(0.0, evict - now),
            None if suspend is None else max(0.0, suspend - now),
            bool(client.processes) and self._is_warning_due(since, evict, suspend, now),
        )

    def on_restart(self, client: Client, now: float) -> None:
        """Its program starts anew: whatever became of the one before, this one has not been idle."""
        client.idle_since = None
        self._end_idleness(client, now)
        self._turns.clients_to_review[client.id] = client  # idle anew from now on, if it is

    def _is_warning_due(self, since: float, evict: float | None, suspend: float | None, now: float) -> bool:
        after = self._turns.settings.idle_warn
        if after != AUTO:
            return bool(after) and now >= since + float(after)
        return any(
            due is not None and now >= due - min(AUTO_WARN_SECONDS, (due - since) / 2) for due in (evict, suspend)
        )

    def _evict_at(self, client: Client, since: float) -> float | None:
        """When its memory is to leave; None: never, or there is nothing that could."""
        after = self._turns.settings.idle_evict
        if not after or client.evicted or client.suspended or client.memory_use.resident <= client.memory_use.unmovable:
            return None
        return since + (AUTO_EVICT_SECONDS if after == AUTO else float(after))

    def _suspend_at(self, client: Client, since: float) -> float | None:
        after = self._turns.settings.idle_suspend
        return since + after if after and client.processes and not client.suspended else None

    def _keeps_memory(self, client: Client) -> bool:
        """Whether its memory may stay for as long as there is enough."""
        return self._turns.settings.idle_evict == AUTO and not any(
            device.has_memory_shortage for device in client.device_bindings
        )

    def _update_client(self, client: Client, now: float) -> None:
        """Begin or end its idleness, or go on with it."""
        held = client.hold_seconds_left(now) is not None
        if client.is_in_use or held:
            client.idle_since = None
            self._end_idleness(client, now)
            self._deadlines.set((_IDLE, client.id), client.hold_until if held and not client.is_in_use else None)
        elif client.suspended_by_user:
            client.idle_since = None
            self._deadlines.set((_IDLE, client.id), None)
        else:
            if client.idle_since is None:
                client.idle_since = now
            self._schedule(client, client.idle_since, now)

    def _end_idleness(self, client: Client, now: float) -> None:
        if client.evicted_by_policy:
            client.evicted_by_policy = False
            self._turns.set_evicted(client, False)
        if client.suspended_by_policy:
            self._user_requests.resume(client, now)

    def _apply_due(self, client: Client, since: float, now: float) -> None:
        evict, suspend = self._evict_at(client, since), self._suspend_at(client, since)
        if suspend is not None and suspend <= now:
            self._user_requests.suspend(client, now, by_policy=True)
            self._out.append(
                NotifyUser(client.id, f"idle for {format_duration(now - since)}: suspended until it is used")
            )
        elif evict is not None and evict <= now and not self._keeps_memory(client):
            self._user_requests.evict(client, now, by_policy=True)
            idle = format_duration(now - since)
            self._out.append(NotifyUser(client.id, f"idle for {idle}: its memory leaves until its next turn"))
        self._schedule(client, since, now)

    def _schedule(self, client: Client, since: float, now: float) -> None:
        """Set when it is to be looked at again."""
        evict, suspend = self._evict_at(client, since), self._suspend_at(client, since)
        if evict is not None and self._keeps_memory(client):
            evict = max(evict, now + _RECHECK_SECONDS)
        first = min((due for due in (evict, suspend) if due is not None), default=None)
        self._deadlines.set((_IDLE, client.id), first)
