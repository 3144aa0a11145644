"""Idle policy, which warns users of idle clients, evicts memory, and moves, hibernates or suspends the clients.

A client is idle while it has no grant, does not wait, has no open cell and no hold. The policy skips a client that a
user has suspended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...units import format_duration
from ..base.deadline_queue import DeadlineQueue
from ..interface.commands import Command, NotifyUser
from ..interface.settings import AUTO
from ..state.model import Client
from ..turns.grant_table import GrantTable
from .client_moves import ClientMoves
from .placement_adapter import PlacementAdapter
from .user_requests import UserRequests

AUTO_EVICT_SECONDS = 1800.0  # of idleness, if `idle_evict` is "auto" and memory is short
AUTO_WARN_SECONDS = 600.0  # before an action, or half of the time until it, if `idle_warn` is "auto"
_RECHECK_SECONDS = 60.0  # between two checks whether a device is short of memory
_IDLE = "idle"


class IdleForecast(NamedTuple):
    """Idleness of a client, and the times of its eviction and its suspension.

    `idle_seconds`: how long the client has been idle. The times are in seconds from now; None: never, or done already.
    `is_warning_due`: the client's user gets a warning.
    """

    idle_seconds: float
    evict_in_seconds: float | None = None
    suspend_in_seconds: float | None = None
    is_warning_due: bool = False


class IdlePolicy:
    """Idle policy of all clients, which costs O(log n) for each client of an event, and O(n) to find a device.

    `apply` runs between an event and the decisions on turns, so that a client that is in use again is served at once.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        table: GrantTable,
        user_requests: UserRequests,
        placement: PlacementAdapter,
        moves: ClientMoves,
        commands: list[Command],
    ) -> None:
        self._clients = clients
        self._table = table
        self._user_requests = user_requests
        self._placement = placement
        self._moves = moves
        self._commands = commands
        self._deadlines = DeadlineQueue()

    def next_deadline(self) -> float | None:
        first = self._deadlines.earliest()
        return first[0] if first else None

    def apply(self, now: float) -> None:
        """Update the clients of the last event, and act on clients that have been idle for long enough."""
        self.update(now)
        for _, identity in self._deadlines.pop_due(now):
            client = self._clients[identity]
            if client.idle_since is None:
                self._update_client(client, now)  # its hold is over
            else:
                self._apply_due(client, client.idle_since, now)

    def update(self, now: float) -> None:
        """Find the clients that have begun, or ceased, to be idle."""
        clients, self._table.clients_to_review = self._table.clients_to_review, {}
        for client in clients.values():
            if self._clients.get(client.id) is client:
                self._update_client(client, now)
            else:
                self._deadlines.set((_IDLE, client.id), None)

    def on_settings_changed(self) -> None:
        """Review all clients by the new settings. An evicted or suspended client stays so until it is in use again."""
        self._table.clients_to_review |= self._clients

    def forecast(self, client: Client, now: float) -> IdleForecast | None:
        """Return the forecast of an idle client; None: the client is not idle."""
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
            bool(client.processes) and self._is_warning_due(client, since, evict, suspend, now),
        )

    def on_restart(self, client: Client, now: float) -> None:
        """Begin the idleness of the client anew, because its program has started again."""
        client.idle_since = None
        self._end_idleness(client, now)
        self._table.clients_to_review[client.id] = client  # it may be idle from now on

    def _is_warning_due(
        self, client: Client, since: float, evict: float | None, suspend: float | None, now: float
    ) -> bool:
        after = self._table.policies.settings_of(client).idle_warn
        if after != AUTO:
            return bool(after) and now >= since + float(after)
        return any(
            due is not None and now >= due - min(AUTO_WARN_SECONDS, (due - since) / 2) for due in (evict, suspend)
        )

    def _evict_at(self, client: Client, since: float) -> float | None:
        """Return when the client's memory is to leave; None: never, or the client has no memory that could."""
        after = self._table.policies.settings_of(client).idle_evict
        if not after or client.evicted or client.suspended or client.memory_use.resident <= client.memory_use.unmovable:
            return None
        return since + (AUTO_EVICT_SECONDS if after == AUTO else float(after))

    def _suspend_at(self, client: Client, since: float) -> float | None:
        after = self._table.policies.settings_of(client).idle_suspend
        return since + after if after and client.processes and not client.suspended else None

    def _move_at(self, client: Client, since: float) -> float | None:
        """Return when the client may move to a device without work; None: never."""
        after = self._table.policies.settings_of(client).idle_move
        return max(since + after, client.may_move_at) if after and _can_be_checkpointed(client) else None

    def _hibernate_at(self, client: Client, since: float) -> float | None:
        """Return when the client may hibernate; None: never."""
        after = self._table.policies.settings_of(client).hibernate_after
        return max(since + after, client.may_hibernate_at) if after and _can_be_checkpointed(client) else None

    def _keeps_memory(self, client: Client) -> bool:
        """Return whether the client's memory may stay, because no device is short of memory."""
        return self._table.policies.settings_of(client).idle_evict == AUTO and not any(
            device.has_memory_shortage for device in client.device_bindings
        )

    def _update_client(self, client: Client, now: float) -> None:
        """Begin, continue or end the idleness of the client."""
        is_holding = client.hold_seconds_left(now) is not None
        if client.is_in_use or is_holding:
            client.idle_since = None
            self._end_idleness(client, now)
            self._deadlines.set((_IDLE, client.id), client.hold_until if is_holding and not client.is_in_use else None)
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
            self._table.set_evicted(client, False)
        if client.suspended_by_policy:
            self._user_requests.resume(client, now)

    def _apply_due(self, client: Client, since: float, now: float) -> None:
        evict, suspend = self._evict_at(client, since), self._suspend_at(client, since)
        idle = format_duration(now - since)
        if suspend is not None and suspend <= now:
            self._user_requests.suspend(client, now, by_policy=True)
            self._commands.append(
                NotifyUser(client.id, f"idle for {idle}, so it is suspended until its next cell or GPU call")
            )
        elif evict is not None and evict <= now and not self._keeps_memory(client):
            self._user_requests.evict(client, now, by_policy=True)
            self._commands.append(NotifyUser(client.id, f"idle for {idle}, so its memory leaves until its next turn"))
        move = self._move_at(client, since)
        if move is not None and move <= now:
            client.may_move_at = now + _RECHECK_SECONDS
            if device := self._placement.device_without_work(client, now):
                self._moves.move_idle(client, device, now)
        hibernate = self._hibernate_at(client, since)
        if hibernate is not None and hibernate <= now:
            self._moves.hibernate(client, now)
        self._schedule(client, since, now)

    def _schedule(self, client: Client, since: float, now: float) -> None:
        """Set the time of the next check of the client."""
        evict, suspend = self._evict_at(client, since), self._suspend_at(client, since)
        if evict is not None and self._keeps_memory(client):
            evict = max(evict, now + _RECHECK_SECONDS)
        move, hibernate = self._move_at(client, since), self._hibernate_at(client, since)
        first = min((due for due in (evict, suspend, move, hibernate) if due is not None), default=None)
        self._deadlines.set((_IDLE, client.id), first)


def _can_be_checkpointed(client: Client) -> bool:
    """Return whether the client has one process on one device, which may leave the device now."""
    is_away = client.suspended or client.moving_to or client.hibernated
    return not is_away and len(client.devices) == 1 and len(client.processes) == 1
