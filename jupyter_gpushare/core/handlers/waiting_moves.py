"""Moves of clients that wait, or share their device at work, to devices without work.

A client that has waited for about as long as a move takes moves, because its wait may go on (the ski-rental rule). The
waits of short turns count together. Work that has taken long already will probably take long, so it pays for its move
sooner. Of colocated clients with such work each but one moves, because each has only a part of the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..state.model import Client, Device
from ..turns.grant_table import GrantTable
from .client_moves import ClientMoves, is_free
from .placement_adapter import PlacementAdapter

_CHECK_SECONDS = 0.4  # between two looks at the clients
_LONG_WORK_SECONDS = 10.0  # of the work at hand, from which on its client waits only a part of the time
_PART_FOR_LONG_WORK = 1 / 3
_COUNTED_TIMES = 10  # the time for which a client's waits count together, over the wait that is long enough


class WaitingMoves:
    """Moves of all clients, which cost O(n) for each look at them."""

    def __init__(self, table: GrantTable, placement: PlacementAdapter, moves: ClientMoves) -> None:
        self._table = table
        self._placement = placement
        self._moves = moves
        self._look_at: float | None = None
        self._waits: dict[str, tuple[float, float]] = {}  # by client: since when its waits count, and the waits before

    def next_deadline(self) -> float | None:
        """Return when to look at the clients; None: no client could move."""
        return self._look_at

    def apply(self, now: float) -> None:
        """Move clients to free devices, if the time has come to look at them."""
        table, settings = self._table, self._table.policies.host_settings
        is_off = not settings.wait_move and not settings.devices
        may_gain = bool(table.waiting) or len(table.grants) > 1
        if is_off or len(table.devices) < 2 or not may_gain:
            self._look_at = None
        elif self._look_at is None:
            self._look_at = now + _CHECK_SECONDS
        elif self._look_at <= now:
            self._look_at = now + _CHECK_SECONDS
            self._move_clients(now)

    def _move_clients(self, now: float) -> None:
        free = {uuid: device for uuid, device in self._table.devices.items() if is_free(device, now)}
        if not free:
            self._waits.clear()
            return
        known = {client.id for device in self._table.devices.values() for client in device.clients.values()}
        self._waits = {identity: waits for identity, waits in self._waits.items() if identity in known}
        for client in self._candidates(now):
            if uuid := self._placement.device_to_share_work(client, free.values()):
                self._moves.move_to_free(client, uuid, now)
                del free[uuid]
                if not free:
                    return

    def _candidates(self, now: float) -> Iterator[Client]:
        """Yield the clients that gain most first: those of the longest queues, then those that share a device."""
        waiting = [client for client in self._table.waiting.values() if self._has_waited(client, now)]
        yield from sorted(waiting, key=lambda client: len(client.device_bindings[0].queue), reverse=True)
        for device in self._table.devices.values():
            if len(device.grants) > 1 and not any(client.moving_to for client in device.clients.values()):
                yield from self._colocated_at_work(device, now)[1:]

    def _has_waited(self, client: Client, now: float) -> bool:
        """Return whether the client has waited for long enough."""
        if client.grant or client.waiting_since is None or client.ready_at > now or not _can_move(client, now):
            return False
        (here,) = client.device_bindings
        patience, waits = here.settings.wait_move, client.wait_seconds_at(now)
        if self._table.policies.policy_of(client).work_seconds(client) >= _LONG_WORK_SECONDS:
            patience *= _PART_FOR_LONG_WORK
        since, before = self._waits.get(client.id, (now, waits))
        if now - since > _COUNTED_TIMES * patience:
            since, before = now, waits
        self._waits[client.id] = since, before
        if not here.grants and here.queue.head(now) is client:
            return False  # its turn begins
        return bool(patience) and max(now - client.waiting_since, waits - before) >= patience

    def _colocated_at_work(self, device: Device, now: float) -> list[Client]:
        """Return the clients with long work that have the device together, those that cannot move first."""
        found = []
        for grant in device.grants:
            work = self._table.policies.policy_of(grant.client).work_seconds(grant.client) + now - grant.granted_at
            if grant.client.is_at_work and work >= _LONG_WORK_SECONDS and not grant.is_draining:
                found.append(grant.client)
        found.sort(key=lambda client: _can_move(client, now))
        return found if device.settings.wait_move and len(found) > 1 and _can_move(found[1], now) else []


def _can_move(client: Client, now: float) -> bool:
    """Return whether the driver may be able to move the client's process, which has not moved just now."""
    if client.moving_to or client.hibernated or client.can_spill or client.may_move_at > now:
        return False
    return len(client.devices) == 1 and len(client.processes) == 1
